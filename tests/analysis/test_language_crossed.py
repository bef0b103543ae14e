"""Crossed seeds of language models: shares of the final loss, chaos among them, from simulated truth."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from analysis.figures import drawings
from analysis.observations import Observations
from analysis.statistics.estimate import generator
from analysis.studies.crossed import Crossed
from grok.config import identify, load_config
from grok.records import CurvePoint, RunResult
from grok.store import Row
from tests.analysis.questions import ask, needs
from tests.analysis.simulate import MACHINE
from tests.analysis.test_gpt_study import store_of as any_store_of

STD = {"init": 0.04, "order": 0.02, "dropout": 0.0, "perturb": 0.01}
"""True standard deviations of the final loss."""


def store_of(rows: list[Row]) -> Observations:
    return any_store_of(rows, "crossed", "cell")


def run(seeds: dict[str, int], final: float, **settings: Any) -> Row:
    config = load_config(
        {
            "mode": "gpt",
            "experiment": "gpt/tinystories_sample",
            "seeds": seeds,
            "train": {"steps": 200},
            "eval": {"every": 100},
            "model": {"dropout": 0.1},
            "perturb": {"ulps": 1},
            **settings,
        }
    )
    identity = identify(config, data_hash="d" * 20)
    curve = [CurvePoint(step=k, val_loss=loss) for k, loss in ((0, 7.0), (100, 5.5), (200, final))]
    result = RunResult(run_id=identity.run_id, status="completed", stop_reason="steps", steps=200, curve=curve)
    return Row(result, config, identity, MACHINE, data_hash="d" * 20)


def cross(std: dict[str, float], sizes: dict[str, int], **settings: Any) -> list[Row]:
    rng = generator("crossed language models")
    effects = {stream: rng.normal(0, std[stream], n) for stream, n in sizes.items() if stream != "perturb"}
    return [
        run(
            dict(zip(sizes, cell, strict=True)),
            4.5
            + sum(effects[stream][level] for stream, level in zip(effects, cell, strict=False))
            + rng.normal(0, std["perturb"]),
            **settings,
        )
        for cell in itertools.product(*map(range, sizes.values()))
    ]


@functools.cache
def language_cross() -> Observations:
    return store_of(cross(STD, {"init": 6, "order": 6, "dropout": 2, "perturb": 2}))


def test_the_shares_of_the_final_loss_hold_the_truth() -> None:
    study = ask("language_crossed", language_cross())
    assert isinstance(study, Crossed) and study.shares is not None
    total = sum(s * s for s in STD.values())
    for stream, name in (("init", "init"), ("order", "order"), ("dropout", "dropout"), ("perturb", "chaos")):
        e = study.shares.shares[name]
        assert e.low <= STD[stream] ** 2 / total <= e.high, name
    assert study.shares.levels == {"init": 6, "order": 6, "dropout": 2} and study.shares.replicates == 2
    assert study.scope.startswith("144 runs of gpt/tinystories_sample") and "validation loss at step 200" in study.scope
    assert {d.name for d in drawings(study)} == {"language_crossed_variance_shares", "language_crossed_heat_map"}
    words = " ".join(f.text for f in study.findings)
    assert "diary" not in words and "lowest loss" in words and "split" not in words


def test_a_store_of_language_models_says_nothing_of_splits_and_no_interval_over_shared_seeds() -> None:
    observations = language_cross()
    assert "runs of this study" in needs("crossed", observations)
    (finding,) = ask("gpt", observations).findings
    assert finding.estimate is None and "They share seeds" in finding.text
