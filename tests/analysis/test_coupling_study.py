"""The validation-shuffling bug against order noise, where the truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.statistics.estimate import generator
from analysis.studies.val_shuffle import variance_ratio
from tests.analysis.questions import ask
from tests.analysis.simulate import Truth, simulate


def val_shuffle(early: float, late: float, shift: float, rng: np.random.Generator, ways: int = 2) -> list[Truth]:
    """Order noise before the first look is shared by coupled and uncoupled runs, later noise is drawn afresh."""
    truths = []
    for seed, base in enumerate(rng.normal(np.log(4000), 0.3, 6)):
        for order in range(8):
            shared = base + rng.normal(0, early)
            for way in range(ways + 1):
                given = {"seed": seed, "seeds.order": order, "train.steps": 12_000, "eval.every": 150}
                if way:
                    given |= {"eval.couple_order": True, "eval.passes": way}
                truths.append(Truth(given, float(np.exp(shared + rng.normal(0, late) + (shift if way else 0.0)))))
    return truths


def test_the_bug_is_order_noise_unless_it_is_more() -> None:
    rng = np.random.default_rng(16)

    def estimates(truths: list[Truth]) -> dict[str, Any]:
        study = ask("val_shuffle", simulate(truths))
        assert study.shared_steps == 196  # epochs of 49 updates, the first look at step 150
        return {f.label: f.estimate for f in study.findings}

    found = estimates(val_shuffle(0.3, 0.2, 0.0, rng))
    assert found["effect of the coupling"].low <= 0 <= found["effect of the coupling"].high
    assert found["size against order noise"].low <= 1 <= found["size against order noise"].high
    assert found["size against order noise"].high < 2.5
    # Against whole order seeds the change looks smaller: 0.2² of 0.2² + 0.3².
    whole = found["size against a whole order seed"]
    assert whole.low <= 0.04 / 0.13 <= whole.high < 1
    found = estimates(val_shuffle(0.3, 0.2, -0.8, rng))
    assert found["effect of the coupling"].high < -0.5
    assert found["size against order noise"].low > 1
    # without a second way of coupling there is nothing to hold the size against
    study = ask("val_shuffle", simulate(val_shuffle(0.3, 0.2, 0.0, rng, ways=1)))
    assert not any("size against order noise" in f.label for f in study.findings)
    assert any("eval.passes=1,2" in note for note in study.notes)


@pytest.mark.slow
def test_the_size_of_the_bug_covers() -> None:
    rng = generator("bug size")
    inside = 0
    for _ in range(300):
        off, one, two = rng.normal(0, 0.2, (3, 32))
        e = variance_ratio(((one - off) ** 2)[:, None], ((one - two) ** 2)[:, None], "test")
        inside += e.low <= 1 <= e.high
    assert 0.92 < inside / 300 < 0.99
