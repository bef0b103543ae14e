"""The finders leave a run as it was and say something sensible."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grok import find
from grok.config.gpt import GptConfig
from grok.gpt.planning.finders import Size, alike, best, measure, range_test, steepest
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


def norms_of(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets the norm of the gradient of each update."""
    norms: list[float] = []
    apply = trainer.apply

    def noted(norm: torch.Tensor, rate: float) -> None:
        norms.append(float(norm))
        apply(norm, rate)

    monkeypatch.setattr(trainer, "apply", noted)
    return norms


def test_range_test_in_half_precision(settings: Build, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient is that of the loss, whatever its scale; a scale that overflows is halved, without an update."""
    norms, tests = [], []
    for precision, scale in (("float32", 1.0), ("fp16", 2.0**16), ("fp16", 2.0**30)):
        trainer = trainer_of(settings(precision=precision), corpus)
        trainer.counters.scale = scale
        norms.append(norms_of(trainer, monkeypatch))
        tests.append(range_test(trainer, last=1e-2, steps=30))
        assert trainer.counters.scale == scale
    assert norms[1] == pytest.approx(norms[0], rel=0.05)
    assert 0 < len(norms[2]) < len(norms[1]) and np.isfinite(norms[2]).all()
    assert tests[1].losses == pytest.approx(tests[0].losses, abs=0.02)


def test_range_test_of_a_fresh_run(settings: Build, corpus: Corpus) -> None:
    trainer = trainer_of(settings(), corpus)
    range_test(trainer, steps=40)
    assert trainer.counters.step == 0 and not trainer.optimizer.state


def test_steepest_fall_is_found() -> None:
    rates = np.geomspace(1e-6, 1, 61)
    losses = 4 - 2 / (1 + np.exp(-3 * (np.log10(rates) + 3)))  # an S that falls fastest at 1e-3
    assert steepest(rates, losses) == pytest.approx(1e-3, rel=0.3)


def test_batch_sizes_are_measured(settings: Build, corpus: Corpus) -> None:
    trainer = trainer_of(settings(), corpus)
    before = capture(trainer, History())
    sizes = list(measure(trainer, largest=20, repeats=1))
    assert [s.sequences for s in sizes] == [1, 2, 4, 8, 16]
    assert all(s.tokens_per_second > 0 and s.memory > 1e5 and s.process > 1e7 for s in sizes)
    assert all(torch.equal(t, capture(trainer, History()).tensors[n]) for n, t in before.tensors.items())
    assert all(p.grad is None for p in trainer.parameters)


def test_batch_sizes_are_measured_at_the_whole_context(settings: Build, corpus: Corpus) -> None:
    """A context ramp begins with short sequences; the micro-batch has to fit at its end."""
    plain, ramped = (
        next(measure(trainer_of(settings(model__context=64, **ramp), corpus), largest=1, repeats=1)).memory
        for ramp in ({}, {"train__context_ramp": [8, 8, 100]})
    )
    assert ramped == pytest.approx(plain, rel=0.02)


def test_the_limit_of_a_container_ends_the_sizes(
    settings: Build, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(settings(), corpus)
    (size,) = measure(trainer, largest=1, repeats=1)
    for factor, sizes in ((1.5, 1), (4, 2)):
        limit = int(factor * size.process)
        monkeypatch.setattr("grok.gpt.planning.finders.memory_limit", lambda limit=limit: limit)
        assert len(list(measure(trainer, largest=2, repeats=1))) == sizes


def test_best_size_is_the_smallest_that_nothing_larger_beats() -> None:
    sizes = [Size(n, speed, 0) for n, speed in ((1, 100.0), (2, 190.0), (4, 300.0), (8, 305.0), (16, 290.0))]
    assert best(sizes).sequences == 4


def test_sizes_whose_repeats_overlap_are_named() -> None:
    sizes = [Size(n, fast, 0, slow) for n, fast, slow in ((1, 100.0, 60.0), (2, 190.0, 90.0), (4, 80.0, 70.0))]
    assert [size.sequences for size in alike(sizes, best(sizes))] == [1]


TINY = (
    "experiment=gpt/shakespeare_char", "model.layers=1", "model.d_model=16", "model.heads=2", "model.context=16",
    "train.batch_size=4", "train.threads=1",
)  # fmt: skip


def test_the_door_of_the_range_test(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A curve, a figure, and the configured rate over the suggested one."""
    given = [*TINY, f"data.path={corpus.path}", "optim.lr=1e-3", "--steps", "40", "--out", str(tmp_path / "out")]
    assert find.main(["lr", *given]) == 0
    said = capsys.readouterr().out
    suggested, ratio = (float(said.partition(before)[2].split()[0]) for before in ("at rate ", "optim.lr=0.001 is "))
    assert ratio == pytest.approx(1e-3 / suggested, rel=0.02)
    rows = list(csv.DictReader((tmp_path / "out/range_test.csv").read_text().splitlines()))
    assert 10 <= len(rows) <= 40 and float(rows[0]["lr"]) == 1e-6
    assert {f.name for f in (tmp_path / "out").iterdir()} == {"range_test.csv", "range_test.png", "range_test.svg"}
    assert find.main(["lr", *TINY, "data.path=nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_door_of_the_batch_finder(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    assert find.main(["batch_size", *TINY, f"data.path={corpus.path}", "--largest", "4"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[1:4]] == ["1", "2", "4"] and said[-1].startswith("train.micro_batch=")


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
