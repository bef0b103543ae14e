"""The report's own numbers on simulated stores: scans and conditions, rates of 0.1 to 10%, with and without an effect.

What single candidates, crosses and times are worth is simulated beside their statistics.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from analysis.criteria import DIARY
from analysis.observations import Observations
from analysis.statistics.estimate import generator
from analysis.studies import ask
from tests.analysis.simulate import Truth, simulate

SEEDS = 150


def store(kind: str, rates: tuple[float, float], rng: np.random.Generator) -> Observations:
    """Return two populations whose seeds are super at ``rates``: two scans of init, or two weight decays."""
    truths = []
    for which, rate in enumerate(rates):
        hits = rng.random(SEEDS) < rate
        for i, hit in enumerate(hits):
            seeds: dict[str, Any] = {"seeds.init": i, "seeds.order": 8 + which} if kind == "scans" else {"seed": i}
            given = {**seeds, "train.steps": 3000, "eval.every": 1500}
            if kind == "conditions":
                given["optim.weight_decay"] = (0.1, 0.0)[which]
            truths.append(Truth(given, 1500.0 if hit else 12_000.0))
    return simulate(truths)


def shares(kind: str, rates: tuple[float, float], draws: int) -> tuple[float, float, float]:
    """Return how often shares hold their rate, ratios theirs, and how often the populations are said to differ."""
    rng = generator(f"report {kind} {rates}")
    inside, ratios, differs = [], [], 0
    for _ in range(draws):
        observations = store(kind, rates, rng)
        census = ask("census", observations)
        assert len(census.parts) == 2, "every population is named"
        for part in census.parts:
            rate = rates[list(part.population.condition.values()) == ["0"] or part.population.fixed.get("order") == 9]
            inside.append(part.shares["super"].low <= rate <= part.shares["super"].high)
        (said,) = [f.shown for f in census.findings if f.label == "populations that differ"]
        differs += said.startswith("1 ")
        if kind == "conditions":
            study = ask("weight_decay", observations)
            found = [f.estimate for f in study.findings if f.label.startswith("super seeds at") and f.estimate]
            ratios += [e.low <= rates[1] / rates[0] <= e.high for e in found]
    return float(np.mean(inside)), float(np.mean(ratios)) if ratios else float("nan"), differs / draws


@pytest.mark.parametrize("kind", ["conditions", pytest.param("scans", marks=pytest.mark.slow)])
def test_two_populations_of_one_rate_are_both_named_and_not_told_apart(kind: str) -> None:
    inside, _, differs = shares(kind, (0.1, 0.1), 1)
    assert inside == 1 and differs == 0
    assert DIARY.horizon == 3000


@pytest.mark.slow
def test_every_share_and_ratio_covers_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["kind         rates            share holds  ratio holds  said to differ"]
    pairs = [(0.001, 0.001), (0.01, 0.01), (0.1, 0.1), (0.01, 0.1), (0.1, 0.3)]
    for kind, rates in itertools.product(("scans", "conditions"), pairs):
        inside, ratios, differs = shares(kind, rates, 40)
        lines.append(f"{kind:<12} {rates!s:<16} {inside:>11.3f}  {ratios:>11.3f}  {differs:>14.3f}")
        assert inside >= 0.90, lines[-1]
        assert not ratios < 0.87, lines[-1]
        assert rates[0] != rates[1] or differs <= 0.15, lines[-1]
    with capsys.disabled():
        print("\n" + "\n".join(lines))
