"""``--again``: a stored run's bits are what its settings give, or the command says where they are not."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grok.arithmetic.engine import train
from grok.config import identify
from grok.config.gpt import GptConfig
from grok.execute import worker
from grok.execute.groups import PlannedRun
from grok.gpt.training import engine as gpt
from grok.records import Job, RunResult
from grok.store import Provenance, Row, StoreWriter, open_store
from grok.text.corpus import Corpus
from tests.doors.conftest import TINY, Door
from tests.execute.conftest import tiny
from tests.gpt.conftest import corpus as corpus  # a small corpus of characters
from tests.gpt.conftest import settings as settings
from tests.gpt.test_stability import dirty as dirty  # one with a spike in it
from tests.gpt.test_stability import of

INLINE = ("executor=inline", "store.path=S")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def only_run(store: str = "S") -> str:
    (run_id,) = open_store(store).run_ids()
    return run_id


def verdict(text: str) -> str:
    return text.strip().splitlines()[-1].partition(":")[0]


def test_a_run_has_the_same_bits_and_nothing_is_stored(door: Door, tmp_path: Path) -> None:
    layers = "seeds.layers={head:5}"
    assert door(*TINY, *INLINE, "seed=3", "seeds.order=8", layers, "save=final", "checkpoint.keep=true").status == 0
    before = contents(tmp_path)
    ended = door("--again", only_run()[:8], "--store", "S")
    assert (ended.status, verdict(ended.out)) == (0, "same bits"), ended
    assert ended.last == "same bits: 2 evaluations and the hash of the final weights"
    assert ended.out.count("device=cpu;") == 2, "both tags are shown"
    assert contents(tmp_path) == before


def store_with(path: str, change: Callable[[RunResult], RunResult]) -> None:
    """Write a store of one run as it was trained, but for ``change``."""
    config = tiny(4)
    identity = identify(config)
    (result,) = (e for e in train([Job(run_id=identity.run_id, config=config)]) if isinstance(e, RunResult))
    with StoreWriter(path) as writer:
        writer.commit([Row(change(result), config, identity, Provenance.collect())])


def one_ulp(result: RunResult) -> RunResult:
    first, *rest = result.curve
    return replace(result, curve=[replace(first, val_loss=math.nextafter(first.val_loss, math.inf)), *rest])


def of_another_processor(result: RunResult) -> RunResult:
    """Change the tag, but not the path of products, which decides the bits."""
    return replace(result, numerics=re.sub("model=[^;]*", "model=another", result.numerics))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (one_ulp, "other bits: val_loss at step 3: "),
        (lambda result: replace(result, weights_hash="0" * 64), "other bits: weights_hash at step 6: "),
        (of_another_processor, "same bits: "),
        (lambda result: replace(result, weights_hash=None), "same bits: 2 evaluations"),
    ],
)
def test_one_bit_is_enough_and_the_tag_alone_is_not(
    door: Door, change: Callable[[RunResult], RunResult], says: str
) -> None:
    store_with("S", change)
    ended = door("--again", only_run(), "--store", "S")
    assert ended.last.startswith(says), ended
    assert ended.status == (0 if says.startswith("same") else 1)


def test_an_extended_and_an_early_stopped_run_are_trained_from_their_first_step(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*TINY, *INLINE, "checkpoint.keep=true", "eval.every=1")
    assert door(*words).status == 0
    assert "from the end of a shorter run" in door(*words, "train.steps=9").out
    longer = open_store("S").runs().set_index("steps").loc[9, "run_id"]
    assert verdict(door("--again", str(longer), "--store", "S").out) == "same bits"
    monkeypatch.setattr("grok.arithmetic.run.GENERALISED_VAL_ACC", 0.0)  # else it takes thousands of steps
    stop = ("train.stop_when_generalised=true", "train.stop_horizon=3", "train.stop_every=2", "store.path=Q")
    assert door(*TINY, "executor=inline", *stop).status == 0
    assert open_store("Q").run(only_run("Q"))["stop_reason"] == "generalised"
    ended = door("--again", only_run("Q"), "--store", "Q")
    assert verdict(ended.out) == "same bits" and "ended early (generalised)" in ended.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--again", "zz", "--store", "S"), "begins with 'zz'"),
        (("--again", "{run}", "--store", "S", "seed=4"), "seed=4 cannot be given with --again"),
        (("--again", "{run}", "--store", "S", "device=tpu"), "device='tpu' is not known"),
        (("--again", "{run}", "--store", "S", "numerics.compile=7"), "numerics.compile=7: int given"),
        (("--again", "{run}", "--store", "S", "device=cpu,cuda"), "device=cpu,cuda: expected one value"),
        (("--again", "{run}", "--store", "S", "numerics.compile=²"), "'numerics.compile=²' cannot be read"),
        (("--again", "{run}"), "--store"),
    ],
)
def test_what_cannot_be_trained_again_is_refused(door: Door, words: tuple[str, ...], says: str) -> None:
    store_with("S", lambda result: result)
    ended = door(*(word.format(run=only_run()) for word in words))
    assert (ended.status, says in ended.err) == (2, True), ended
    assert "Traceback" not in ended.err


def language_model(config: GptConfig, corpus: Corpus) -> None:
    """Train into S what ``config`` says, in this process."""
    identity = identify(config, corpus.hash)
    run = PlannedRun(config, identity, corpus.hash)
    with StoreWriter("S") as writer:
        for event in gpt.train([Job(run_id=identity.run_id, config=config)]):
            if isinstance(event, RunResult):
                writer.commit([worker.finished_row(event, run, Provenance.collect(), "S")])


def test_a_language_model_needs_its_corpus(
    door: Door, corpus: Corpus, dirty: Corpus, settings: Callable[..., GptConfig], tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(corpus.path, moved)
    language_model(settings(train__steps=7, data__path=str(moved)), corpus)
    before = contents(tmp_path / "S")
    words = ("--again", only_run()[:6], "--store", "S")
    ended = door(*words)
    assert verdict(ended.out) == "same bits" and ended.status == 0, ended
    assert contents(tmp_path / "S") == before
    shutil.rmtree(moved)
    ended = door(*words)
    assert ended.status == 2 and f"was trained on the corpus in {moved}, which is not there" in ended.err
    ended = door(*words, f"data.path={dirty.path}")
    assert ended.status == 2 and "is not the one that run" in ended.err
    assert verdict(door(*words, f"data.path={corpus.path}").out) == "same bits"


def test_both_branches_of_a_rollback_have_the_same_bits(
    door: Door, dirty: Corpus, settings: Callable[..., GptConfig]
) -> None:
    language_model(settings(**of(dirty, stability__policy="new_data_seed")), dirty)
    statuses = open_store("S").statuses()
    assert sorted(statuses.values()) == ["completed", "rolled_back"]
    for run_id in statuses:
        ended = door("--again", run_id, "--store", "S")
        assert (ended.status, verdict(ended.out)) == (0, "same bits"), ended
