"""Spikes: what is one, which settings they follow, and what a store without them says."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.observations import Observations
from analysis.statistics.excursions import RISE, excursions, heights, smoothed
from grok.config import identify, load_config
from grok.records import CurvePoint, RunResult, StepPoint
from grok.store import Row
from tests.analysis.questions import ask
from tests.analysis.simulate import MACHINE
from tests.analysis.test_gpt_study import store_of

STEPS = 60


def test_a_rise_that_lasts_is_an_excursion_with_its_places() -> None:
    losses = np.r_[np.linspace(5, 4, 20), np.full(10, 6.0), np.full(10, 4.1)]
    (found,) = excursions(losses)
    assert (found.low, found.peak) == (found.onset - 2, found.onset) or losses[found.low] == pytest.approx(4, abs=0.1)
    assert found.onset == 20 and found.back == 30
    assert found.rise == pytest.approx(6 - smoothed(losses)[found.low])


def test_one_hard_batch_is_none_and_a_loss_that_is_no_number_never_comes_back() -> None:
    calm = np.full(40, 4.0)
    calm[20] = 9.0
    assert excursions(calm) == [] and heights(calm).argmax() == 20 and heights(calm).max() == 5.0
    (found,) = excursions([4.0] * 20 + [math.nan] * 20)
    assert found.rise == math.inf and found.back is None


@pytest.mark.parametrize(("last", "diverged"), [(9.0, True), (math.nan, False), (math.inf, True)])
def test_the_loss_that_ends_a_run_is_an_excursion_without_an_end(last: float, diverged: bool) -> None:
    (found,) = excursions([*np.linspace(5, 4, 30), last], diverged=diverged)
    assert (found.onset, found.peak, found.back) == (30, 30, None)
    assert found.rise == (pytest.approx(5, abs=0.05) if math.isfinite(last) else math.inf)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60))
def test_excursions_follow_each_other_and_rise_above_all_before(losses: list[float]) -> None:
    level = smoothed(losses)
    found = excursions(losses)
    for one, before in zip(found, [None, *found], strict=False):
        quiet = level[max(one.low, (before and before.back) or 0) : one.onset]
        assert one.low < one.onset <= one.peak and one.rise > RISE
        assert level[one.low] == level[: one.onset].min()
        assert level[one.onset] > level[one.low] + RISE and (quiet <= level[one.low] + RISE).all()
        assert one.back is None or level[one.back] <= level[one.low] + RISE / 2
    for one, after in itertools.pairwise(found):
        assert one.back is not None and one.back <= after.onset
    if not found:
        assert (level <= np.minimum.accumulate(level) + RISE).all()


def run(
    seed: int,
    *,
    hot: bool,
    std: str,
    steps: int = STEPS,
    status: str = "completed",
    final: float | None = None,
    data: str = "d" * 20,
) -> Row:
    """Return a run; ``final``: the training loss of its last step."""
    config = load_config(
        {
            "mode": "gpt",
            "experiment": "gpt/tinystories_sample",
            "seed": seed,
            "train": {"steps": steps},
            "optim": {"lr": 0.03 if hot else 0.003, "warmup_steps": 10},
            "model": {"init": std},
        }
    )
    identity = identify(config, data_hash=data)
    spikes = hot and std != "0.006"

    def step(k: int) -> StepPoint:
        high = spikes and 20 <= k < 30 + seed
        return StepPoint(
            step=k,
            train_loss=5 - k / 100 + (2.0 + 0.1 * seed) * high,
            lr=min(1, k / 10) * config.optim.lr,  # type: ignore[attr-defined]
            grad_norm=8.0 if high else 1.0,
            param_norm=30.0 if high else 10.0,
            event="spike" if high and k == 20 else None,
        )

    curve = [CurvePoint(step=k, val_loss=5 - k / 100 + 0.4 * hot + 0.01 * seed) for k in (0, steps)]
    log = [step(k) for k in range(1, steps + 1)]
    if final is not None:
        log[-1].train_loss = final
    result = RunResult(
        run_id=identity.run_id, status=status, stop_reason="steps", steps=steps, curve=curve, step_log=log
    )
    return Row(result, config, identity, MACHINE, data_hash=data)


def grid(**changes: Any) -> Observations:
    cells = itertools.product(range(4), (False, True), ("0.02", "0.006", "small"))
    return store_of([run(seed, hot=hot, std=std, **changes) for seed, hot, std in cells])


def test_who_spiked_when_and_why() -> None:
    study = ask("spikes", grid())
    assert study.factors == ["model.init", "optim.lr"]
    runs = study.runs
    assert set(runs[runs["spiked"]]["optim.lr"]) == {"0.03"} and int(runs["spiked"].sum()) == 8
    assert set(runs[runs["spiked"]]["step"]) == {20} and (runs["weights"].dropna() == 3).all()
    assert (runs["gradient norm"].dropna() == 8).all() and not runs["rising"].dropna().any()
    assert sorted(runs["back_after"].dropna()) == [10, 10, 11, 11, 12, 12, 13, 13]
    said = {f.label: f for f in study.findings}
    assert said["runs that spiked"].shown == "8 of 24"
    assert said["spikes by optim.lr"].shown == "0.003: 0 of 12; 0.03: 8 of 12" and said["spikes by optim.lr"].headline
    assert said["runs with a jump"].shown == "6 of 24" and "all of them spiked" in said["runs with a jump"].text
    assert said["seeds agree"].shown == "6 of 6"
    table = next(t for t in study.tables if t.name == "spikes_by_setting").frame
    hot = table[(table["setting"] == "optim.lr") & (table["value"] == "0.03")].iloc[0]
    assert hot["difference to the first value"] == ""  # differences that do not differ have no interval
    assert {t.name for t in study.tables} == {"spikes_by_setting", "spikes_by_cell", "spikes", "spike_events"}


def calm(seed: int, **changes: Any) -> Row:
    return run(seed, hot=False, std="0.02", **changes)
