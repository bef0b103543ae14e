"""A small corpus of characters, small settings, and a run from start to end."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grok.commands.compose import apply
from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.gpt.training.engine import train
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.trainer import Trainer
from grok.records import Checkpoint, Event, Job, RunResult
from grok.streams import Stream
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare

Settings = dict[str, Any]
Build = Callable[..., GptConfig]
WORDS = "the cat sat on a mat and saw one red hen run to its barn where ten mice ate corn by night".split()


def text_of(words: int, seed: int = 1) -> str:
    """Return random words out of a small vocabulary, a line break after each twelfth."""
    picks = Stream("split", seed).at("words").integers(words, len(WORDS))
    return "".join(WORDS[i] + ("\n" if n % 12 == 11 else " ") for n, i in enumerate(picks))


def prepare_text(folder: Path, text: str, *, tokenizer: str = "char") -> Corpus:
    source = folder / "text.txt"
    source.write_text(text, encoding="utf-8")
    return prepare(Request(form="text", inputs=(str(source),), out=folder / "corpus", tokenizer=tokenizer))[0]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """About 15,000 characters, a tenth of them for validation."""
    return prepare_text(tmp_path_factory.mktemp("words"), text_of(4000))


def small(data: Path, **changes: Any) -> GptConfig:
    """Return settings of a run of a second on a corpus; every change is a dotted name with ``__`` for the dot."""
    settings: Settings = {
        "mode": "gpt",
        "experiment": "gpt/small",
        "data": {"path": str(data)},
        "model": {"layers": 2, "d_model": 24, "heads": 3, "context": 16},
        "optim": {"lr": 3e-3, "warmup_steps": 4},
        "train": {"steps": 12, "batch_size": 6, "threads": 1},
        "eval": {"every": 5, "windows": 8, "sample_tokens": 8},
        "numerics": {"compile": False},
        "log": {"quiet": True},
    }
    config = load_config(apply(settings, {name.replace("__", "."): value for name, value in changes.items()}))
    assert isinstance(config, GptConfig)
    return config


@pytest.fixture
def settings(corpus: Corpus) -> Build:
    return functools.partial(small, corpus.path)


EIGHT_BITS = pytest.mark.skipif(not find_spec("bitsandbytes"), reason="the extra `bitsandbytes` is not installed")
RUN = "0123456789abcdef0123"


def run(config: GptConfig, resume: Checkpoint | None = None, stop_at: int | None = None) -> list[Event]:
    """Train one run, or until ``stop_at`` updates are made, and return its events."""
    # the engine asks once before it builds a run, then before each update
    asked, first = 0, resume.step if resume else 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return stop_at is not None and first + asked - 2 >= stop_at

    return list(train([Job(run_id=RUN, config=config, resume=resume)], stop=stop))


def stopped(config: GptConfig, at: int, resume: Checkpoint | None = None) -> Checkpoint:
    """Train until ``at`` updates are made and return the checkpoint that is left."""
    checkpoint = run(config, resume, at)[-1]
    assert isinstance(checkpoint, Checkpoint)
    return checkpoint


def trainer_of(config: GptConfig, corpus: Corpus) -> Trainer:
    return Trainer(config, corpus, Numerics.of(config, "cpu"))


def result_of(events: Sequence[Event]) -> RunResult:
    """Return the run's own result (not those of abandoned branches)."""
    (result,) = [e for e in events if isinstance(e, RunResult) and e.run_id == RUN]
    return result


def differences(a: RunResult, b: RunResult) -> list[str]:
    """Return where two results differ in anything but wall time."""
    timing = {"tokens_per_second", "mfu", "peak_memory", "data_wait"}
    found = [n for n in ("weights_hash", "status", "stop_reason", "steps") if getattr(a, n) != getattr(b, n)]
    for kind in ("curve", "step_log"):
        ours, theirs = (list(map(asdict, getattr(r, kind))) for r in (a, b))
        if [p["step"] for p in ours] != [p["step"] for p in theirs]:
            found.append(f"{kind}: other steps")
        for p, q in zip(ours, theirs, strict=False):
            # repr, so that what is not a number equals itself
            found += [
                f"{kind} {p['step']} {n}: {p[n]!r} {q[n]!r}" for n in p if n not in timing and repr(p[n]) != repr(q[n])
            ]
    return found
