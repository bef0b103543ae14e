"""What counts as one observation, which runs belong together, and when an event was."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.observations import Observations, differing_settings, is_random_seed
from grok.streams import derive_seed
from tests.analysis.simulate import Truth, census, simulate


def test_a_trajectory_counts_once_and_its_longest_run_stands_for_it() -> None:
    truths = [
        Truth({"seed": 1, "train.steps": 3000}, 9000),
        Truth({"seed": 1, "train.steps": 12_000}, 9000),
        Truth({"seed": 1, "train.steps": 3000, "replicate": 1}, 9000),
        Truth({"seed": 1, "train.steps": 3000, "eval.every": 500}, 9000),
        Truth({"seed": 2, "train.steps": 3000}, 9000),
    ]
    rows = simulate(truths).arithmetic
    assert rows["seed"].tolist() == [1, 2]
    assert rows["steps"].tolist() == [12_000, 3000]


def test_a_slower_repeat_does_not_stand_for_a_seed_that_stopped_early() -> None:
    """Both may train to step 20,000, and stop when they have generalised: only chosen seeds have repeats."""
    own = {"seed": 1, "train.steps": 20_000, "train.stop_when_generalised": True}
    first = Truth(own, 1500)
    repeat = Truth({**own, "replicate": 1000}, 9000, numerics="cpu/other path")
    assert simulate([first, repeat]).arithmetic["steps"].tolist() == [3000]
    assert simulate([Truth(own, 900, status="diverged"), repeat]).arithmetic["status"].tolist() == ["diverged"]


def test_another_numerics_tag_is_another_computation_of_one_trajectory() -> None:
    truths = [Truth({"seed": 1}, 900), Truth({"seed": 1, "replicate": 1}, 950, numerics="cuda/lanes 64")]
    found = simulate(truths)
    assert len(found.arithmetic) == 1
    assert len(found.observed) == 2


def test_failed_runs_are_no_observations_and_diverged_ones_never_generalise() -> None:
    truths = [Truth({"seed": 0}, 900), Truth({"seed": 1}, 900, status="failed"), Truth({"seed": 2}, 900, "diverged")]
    truths[2] = Truth({"seed": 2}, 900, status="diverged")
    found = simulate(truths)
    assert found.arithmetic["seed"].tolist() == [0, 2]
    times = found.times(found.arithmetic)
    assert times.seen.tolist() == [True, False]
    assert times.left[1] == 3000  # at risk to the end of its budget, not only until it broke


def test_times_lie_between_two_evaluations() -> None:
    found = simulate([Truth({"seed": 0, "eval.every": 250}, 1101), Truth({"seed": 1, "eval.every": 250}, 99_999)])
    times = found.times(found.arithmetic)
    assert (times.left[0], times.right[0]) == (1000, 1250)
    assert (times.left[1], times.right[1]) == (3000, np.inf)


def test_conditions_ignore_seeds_length_and_evaluation_but_no_other_setting() -> None:
    truths = [
        Truth({"seed": 0}, 900),
        Truth({"seed": 1, "train.steps": 500, "eval.every": 50}, 900),
        Truth({"seed": 2, "seeds.init": 5, "perturb.ulps": 1}, 900),
        Truth({"seed": 3, "optim.lr": 0.01}, 900),
    ]
    found = simulate(truths)
    assert found.conditions(found.arithmetic).tolist() == [0, 0, 0, 1]
    assert differing_settings(found.arithmetic.iloc[3]) == {"optim.lr": 0.01}
    assert differing_settings(found.arithmetic.iloc[0]) == {}


def test_random_seeds_are_told_by_their_streams_not_by_how_they_were_typed() -> None:
    truths = [
        Truth({"seed": 0}, 900),
        Truth({"seed": 1, "seeds.init": derive_seed(1, "init")}, 900),
        Truth({"seed": 2, "seeds.init": 7}, 900),
        Truth({"seed": 3, "perturb.ulps": 1}, 900),
        Truth({"seed": 4, "seeds.layers": {"head": 9}}, 900),
    ]
    rows = simulate(truths).arithmetic
    assert is_random_seed(rows).tolist() == [True, True, False, False, False]


def test_a_store_is_read_once(tmp_path) -> None:
    from grok.errors import StoreError
    from tests.analysis.simulate import write

    write(census(3, np.random.default_rng(0)), tmp_path / "store")
    found = Observations.read(tmp_path / "store")
    assert len(found.arithmetic) == 3
    assert len(found.curves) == 3 * 31
    with pytest.raises(StoreError):
        Observations.read(tmp_path / "nothing")
