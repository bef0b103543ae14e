"""The finders leave a run as it was and say something sensible."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grok import find
from grok.config.gpt import GptConfig
from grok.gpt.planning.finders import Size, alike, measure, range_test
from grok.gpt.training.checkpoint import History, capture
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.schedules import refuse_changing_shapes
from grok.gpt.training.trainer import Trainer
from grok.text.corpus import Corpus
from tests.gpt.conftest import differences, result_of, run

Build = Callable[..., GptConfig]


def trainer_of(config: GptConfig, corpus: Corpus) -> Trainer:
    return Trainer(config, corpus, Numerics.of(config, "cpu"))


def test_range_test_puts_everything_back(settings: Build, corpus: Corpus) -> None:
    """A run that was interrupted by the finder goes on with the bits of one that was not."""
    config = settings(model__dropout=0.1)
    plain, looked_at = trainer_of(config, corpus), trainer_of(config, corpus)
    for _ in range(3):
        plain.update()
        looked_at.update()
    before = capture(looked_at, History())
    found = range_test(looked_at, steps=60)
    after = capture(looked_at, History())
    assert before.state == after.state and before.tensors.keys() == after.tensors.keys()
    assert all(torch.equal(t, after.tensors[n]) for n, t in before.tensors.items())
    for _ in range(2):
        assert plain.update()[0].train_loss == looked_at.update()[0].train_loss
    assert 1e-6 < found.suggestion < 1.0
    assert found.ratio == pytest.approx(config.optim.lr / found.suggestion)
    assert found.losses.shape == found.rates.shape == found.smooth.shape
    assert (np.diff(found.rates) > 0).all()


def test_sizes_whose_repeats_overlap_are_not_told_apart() -> None:
    sizes = [Size(2, 90.0, 0, slowest=80.0), Size(8, 99.0, 0, slowest=70.0), Size(12, 100.0, 0, slowest=95.0)]
    assert [size.sequences for size in alike(sizes, sizes[2])] == [8]


def test_batch_sizes_are_measured(settings: Build, corpus: Corpus) -> None:
    trainer = trainer_of(settings(), corpus)
    before = capture(trainer, History())
    sizes = list(measure(trainer, largest=20, repeats=1))
    assert [s.sequences for s in sizes] == [1, 2, 4, 8, 16]
    assert all(s.tokens_per_second > 0 and s.memory > 1e5 and s.process > 1e7 for s in sizes)
    assert all(torch.equal(t, capture(trainer, History()).tensors[n]) for n, t in before.tensors.items())
    assert all(p.grad is None for p in trainer.parameters)


@pytest.mark.parametrize(
    ("train", "fastest", "largest", "says"),
    [
        (
            {"batch_size": 6},
            4,
            4,
            "train.micro_batch=3: of sizes up to 4, the largest that divides 6; larger",
        ),
        ({"batch_size": 64}, 8, 8, "train.micro_batch=8: larger ones were not tried (--largest 8)"),
        ({"batch_size": 64}, 8, 512, "train.micro_batch=8: larger ones are less than 3% faster, or do not fit"),
        ({"batch_size": 12}, 64, 512, "train.micro_batch=12: the whole batch at once"),
        ({"batch_size": 12, "batch_ramp": [4, 4, 64]}, 8, 512, "train.micro_batch=4: of sizes up to 8"),
    ],
)
def test_the_recommended_size_can_be_compiled(
    settings: Build, train: dict[str, Any], fastest: int, largest: int, says: str
) -> None:
    config = settings(**{f"train__{name}": value for name, value in train.items()})
    said = find._advice(config, fastest, largest)
    assert said.startswith(says), said
    config.train.micro_batch, config.numerics.compile = int(said.partition("=")[2].partition(":")[0]), True
    refuse_changing_shapes(config, 1)


def test_the_profiler_writes_a_trace_and_a_table(settings: Build, tmp_path: Path) -> None:
    """One setting, and a run that it does not move."""
    profiled = result_of(run(settings(log__profile=str(tmp_path / "p"))))
    assert differences(profiled, result_of(run(settings()))) == []
    trace = json.loads((tmp_path / "p/trace.json").read_text())
    updates = {e["name"] for e in trace["traceEvents"] if e.get("name", "").startswith("update ")}
    assert updates == {f"update {k}" for k in range(4, 9)}
    assert "AdamW.step" in (tmp_path / "p/table.txt").read_text()
