"""Times of events: censoring and spacing do not bias, intervals cover, and runs are judged as defined."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from grok.analysis.criteria import DIARY, FEW_CUT_OFF, accuracy_at, judge_by_time, outcome, usual_length, wrong_log_odds
from grok.analysis.statistics import survival
from grok.analysis.statistics.estimate import NotEnoughData, generator
from grok.analysis.statistics.variance_shares import Cells
from tests.analysis.simulate import Truth, ask, simulate


def observe(t: np.ndarray, budget: float, every: float) -> survival.Times:
    """Return what a run evaluated every ``every`` steps up to ``budget`` shows of true times ``t``."""
    right = np.ceil(t / every) * every
    seen = right <= budget
    return survival.Times(np.where(seen, right - every, budget), np.where(seen, right, np.inf))


def lognormal(rng: np.random.Generator, n: int, median: float = 10_000, sd: float = 0.4) -> np.ndarray:
    return np.exp(rng.normal(np.log(median), sd, n))


def test_kaplan_meier_equals_scipys() -> None:
    rng = generator("km")
    t, c = lognormal(rng, 80), rng.uniform(5_000, 20_000, 80)
    seen = t <= c
    points = np.where(seen, t, c)
    ours = survival.kaplan_meier(
        survival.Times(np.where(seen, points - 1e-9, points), np.where(seen, points + 1e-9, np.inf))
    )
    theirs = stats.ecdf(stats.CensoredData.right_censored(points, ~seen)).sf
    assert ours.survival == pytest.approx(theirs.evaluate(ours.times), abs=1e-12)


def test_bands_without_censoring_are_clopper_and_pearsons() -> None:
    t = np.array([100.0, 200, 200, 300, 400, 500, 600, 700])
    curve = survival.kaplan_meier(survival.Times(t - 1, t + 1))
    for done, low, high in zip((1, 3, 4, 5, 6, 7, 8), curve.low, curve.high, strict=True):
        exact = stats.binomtest(8 - done, 8).proportion_ci(0.95)
        assert (low, high) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize(("n", "share"), [(8, 0.9), (8, 0.5), (12, 0.2), (25, 0.9)])
def test_bands_hold_their_level_at_small_n(n: int, share: float) -> None:
    rng = generator(f"small bands {n} {share}")
    at = np.exp(stats.norm.isf(share, np.log(10_000), 0.4))
    inside = 0
    for _ in range(300):
        t, c = lognormal(rng, n), rng.uniform(4_000, 40_000, n)
        seen, points = t <= c, np.minimum(t, c)
        curve = survival.kaplan_meier(
            survival.Times(np.where(seen, points - 1e-3, points), np.where(seen, points + 1e-3, np.inf))
        )
        k = int(np.searchsorted(curve.times, at, side="right")) - 1
        # Before the first event nothing is known but that all survive: the upper end is 1, the lower the exact one.
        watched = max(1, int((points > at).sum()))
        low, high = (curve.low[k], curve.high[k]) if k >= 0 else (0.025 ** (1 / watched), 1.0)
        inside += low <= share <= high
    assert inside >= 276  # 285 expected at the least


@pytest.mark.parametrize("every", [100, 2_000])
@pytest.mark.parametrize("budget", [12_000, 40_000])
def test_neither_censoring_nor_spacing_biases_the_median(every: int, budget: int) -> None:
    rng = generator("median bias")
    found = [survival.quantile(observe(lognormal(rng, 400), budget, every)).value for _ in range(60)]
    error = np.std(found) / np.sqrt(len(found))
    # Inside one evaluation interval the density is not quite even: allow 1% of the median for 2,000-step spacing.
    assert abs(np.mean(found) - 10_000) < 3 * error + (100 if every > 1000 else 20)


@pytest.mark.parametrize(("n", "every"), [(40, 2_000), (200, 4_000)])
def test_intervals_of_quantiles_respect_the_spacing_of_evaluations(n: int, every: int) -> None:
    rng = generator(f"spacing {every}")
    truth = {q: np.exp(stats.norm.ppf(q, np.log(10_000), 0.4)) for q in (0.25, 0.5, 0.75)}
    inside = dict.fromkeys(truth, 0)
    for _ in range(80):
        times = observe(lognormal(rng, n), 20_000, every)
        for q, t in truth.items():
            e = survival.quantile(times, q)
            inside[q] += e.low <= t <= e.high
            assert e.low % every == e.high % every == 0 or not np.isfinite(e.high)
    assert min(inside.values()) >= 71, inside  # 76 expected
    few = (survival.Times(np.full(k, 650.0), np.full(k, 700.0)) for k in range(1, 6))
    assert not any(survival.quantile(times).low for times in few)
    with pytest.raises(NotEnoughData, match="evaluations before step 700"):
        survival.quantile(survival.Times(np.zeros(9), np.full(9, 700.0)))


def test_a_few_longer_runs_do_not_make_a_tail() -> None:
    """About two of the 16 are still going: intervals from those held the truth in 83% of cases."""
    rng = generator("tail")
    budget = np.where(np.arange(200) < 16, 20_000, 10_000)
    for _ in range(150):
        t = lognormal(rng, 200, 6_000)
        right = np.ceil(t / 250) * 250
        seen = right <= budget
        times = survival.Times(np.where(seen, right - 250, budget), np.where(seen, right, np.inf))
        try:
            assert survival.quantile(times, 0.9).value <= 10_000
        except NotEnoughData:
            assert survival.watched_until(times) == 10_000


def test_turnbull_is_the_histogram_when_all_share_one_grid() -> None:
    times = observe(np.array([120.0, 180, 220, 950]), 900, 100)
    found = survival.turnbull(times)
    assert found.left.tolist() == [100, 200, 900]
    assert found.mass == pytest.approx([0.5, 0.25, 0.25])


def test_logrank_is_scipys_and_of_few_events_exact() -> None:
    a, b = (lognormal(generator("log-rank"), n, median=median) for n, median in ((50, 11_000), (60, 13_000)))
    ours = survival.logrank(survival.Times(a - 1e-6, a + 1e-6), survival.Times(b - 1e-6, b + 1e-6))
    assert ours == pytest.approx(stats.logrank(a, b).pvalue, rel=1e-6)

    def of(seen: int, n: int) -> survival.Times:
        return survival.Times(400.0 - (np.arange(n) < seen), np.where(np.arange(n) < seen, 400.0, np.inf))

    for i, m, j, n in ((4, 8, 0, 8), (7, 30, 0, 30), (3, 5, 5, 2000), (300, 300, 290, 300)):
        table = [[i, m - i], [j, n - j]]
        null = stats.hypergeom(m + n, i + j, m)
        k = np.arange(max(0, i + j - n), min(m, i + j) + 1)
        far = abs(k - (i + j) * m / (m + n)) >= abs(i - (i + j) * m / (m + n)) - 1e-9
        assert survival.logrank(of(i, m), of(j, n)) == pytest.approx(null.pmf(k)[far].sum(), rel=1e-6), table
    at = np.linspace(100, 390, 23)
    most = survival.Times(np.append(at - 1, [400] * 1961), np.append(at, [np.inf] * 1961))
    assert 0.05 < survival.logrank(of(1, 8), most) < 0.12, "0.003 by the chi-squared distribution"
    with pytest.raises(NotEnoughData, match="had not ended"):
        survival.logrank(of(4, 8), survival.Times(of(0, 8).left - 100, of(0, 8).right))


@given(st.data())
def test_logrank_is_the_share_of_divisions_as_far_apart(data: st.DataObject) -> None:
    """By counting them; ties, two lengths and unequal groups included."""
    groups = []
    for length in data.draw(st.permutations([300, 500])):
        times = np.array(data.draw(st.lists(st.sampled_from([100, 200, 300, 400, 500]), min_size=2, max_size=6)), float)
        seen = times <= length
        groups.append(survival.Times(np.where(seen, times - 50, length), np.where(seen, times, np.inf)))
    end = min(max(np.where(g.seen, g.points, g.left)) for g in groups)
    points = np.minimum(np.concatenate([g.points for g in groups]), end)
    seen = np.concatenate([g.seen & (g.points <= end) for g in groups])
    if not seen.any():
        return
    hazards = {t: (seen & (points == t)).sum() / (points >= t).sum() for t in set(points[seen])}
    scores = [s - sum(h for t, h in hazards.items() if t <= point) for s, point in zip(seen, points, strict=True)]
    own = abs(sum(scores[: len(groups[0])])) - 1e-7
    far = [abs(sum(of)) >= own for of in itertools.combinations(scores, len(groups[0]))]
    assert survival.logrank(*groups) == pytest.approx(np.mean(far), abs=1e-6)


def at(*steps: float) -> survival.Times:
    right = np.array(steps, dtype=float)
    return survival.Times(right - 1e-6, right)


def cut(*steps: float) -> survival.Times:
    left = np.array(steps, dtype=float)
    return survival.Times(left, np.full(len(left), np.inf))


def test_the_interval_of_one_more_run_holds_it_as_often_as_it_says() -> None:
    rng, hits = np.random.default_rng(4), 0
    for _ in range(1000):
        *four, fifth = np.exp(rng.normal(7.0, 0.4, 5))
        e = survival.geometric_mean(at(*four), one_more=True)
        hits += e.low <= fifth <= e.high
    assert 925 <= hits <= 975


def test_a_ratio_of_times_and_its_bound() -> None:
    fast = at(900, 1000, 1100)
    e = survival.ratio_of_times(at(9_000, 10_000, 11_000), fast)
    assert e.value == pytest.approx(10) and 7 < e.low < 10 < e.high < 14
    high = survival.geometric_mean(fast).high
    assert survival.least_ratio(cut(5_000, 6_000), fast) == pytest.approx(math.sqrt(5_000 * 6_000) / high)
    partly = survival.Times(np.array([9e3, 5e3]), np.array([9e3 + 1, math.inf]))
    assert survival.least_ratio(partly, fast) == pytest.approx(math.sqrt(9e3 * 5e3) / high)
    with pytest.raises(NotEnoughData):
        survival.ratio_of_times(partly, fast)


@pytest.mark.parametrize("spread", [0.02, 2.0])
def test_the_bound_of_cut_runs_is_one(spread: float) -> None:
    """Truth: the times of the slow runs without the cut, and the mean from which the fast ones are drawn."""
    rng = np.random.default_rng(5)
    misses = partly = 0
    for _ in range(1000):
        times, fast = np.exp(rng.normal(8.0, spread, 3)), np.exp(rng.normal(7.0, 0.2, 3))
        seen = times <= math.exp(8.0 + spread)
        slow = survival.Times(np.where(seen, times - 1e-6, math.exp(8.0 + spread)), np.where(seen, times, math.inf))
        misses += survival.least_ratio(slow, at(*fast)) > math.exp(np.log(times).mean() - 7.0)
        partly += 0 < seen.sum() < 3
    assert partly > 300
    assert misses <= 38, "2.5% of 1,000 and 2.6 standard errors"


INIT, ORDER, CHAOS = 0.7, 0.2, 0.1


def additive(rng: np.random.Generator, levels: int = 10) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Log times of a cross in which weights and order add up."""
    init, order = np.repeat(np.arange(levels), 2 * levels), np.tile(np.repeat(np.arange(levels), 2), levels)
    y = rng.normal(0, np.sqrt(INIT), levels)[init] + rng.normal(0, np.sqrt(ORDER), levels)[order]
    return y + rng.normal(0, np.sqrt(CHAOS), len(y)), {"init": init, "order": order}


@pytest.mark.parametrize("cut_off", [0.1, FEW_CUT_OFF])
def test_a_few_times_at_the_horizon_do_little_harm(cut_off: float) -> None:
    rng = generator(f"cut off {cut_off}")
    cells = Cells(additive(rng)[1], rng)
    found = []
    for _ in range(100):
        y = additive(rng)[0]
        parts = cells.components(np.minimum(y, np.quantile(y, 1 - cut_off))).clip(0)
        found.append(parts[cells.labels.index("init × order")] / parts.sum())
    assert np.mean(found) < 0.03


def runs(times: np.ndarray, steps: int) -> list[Truth]:
    return [Truth({"seed": i, "train.steps": steps, "eval.every": 50}, float(t)) for i, t in enumerate(times)]


def test_which_scale_is_taken() -> None:
    times = np.exp(generator("scale").normal(np.log(2500), 0.25, 60))
    ended, cut = simulate(runs(times, 20_000)), simulate(runs(times, 2500))
    assert outcome(ended, ended.arithmetic).is_time
    seen = outcome(cut, cut.arithmetic)
    assert not seen.is_time and seen.name == "log odds of a wrong answer at step 2,500"
    assert seen.censored <= FEW_CUT_OFF
    order = np.argsort(times[cut.arithmetic["seed"].to_numpy(dtype=int)])
    assert (np.diff(seen.values[order]) >= 0).all()  # later is worse
    assert np.corrcoef(seen.values[order], np.log(np.sort(times)))[0, 1] > 0.97


def test_accuracy_is_read_at_the_step_of_the_classes_also_in_longer_runs() -> None:
    truths = [Truth({"seed": s, "train.steps": 20_000, "eval.every": 500}, 2500.0 + 200 * s) for s in range(10)]
    observations = simulate(truths)
    assert wrong_log_odds(observations, observations.arithmetic).horizon == DIARY.horizon == 3000


def test_a_share_is_of_seeds_that_were_trained_so_long() -> None:
    steps = {"train.steps": 20_000, "eval.every": 500}, {"train.steps": 1_000, "eval.every": 500}
    truths = [Truth({"seed": s, **steps[s < 14]}, 900.0 if s < 3 else 9_000.0) for s in range(18)]
    for kept, seen in ((truths, (3, 18)), (truths[10:], (4, 4))):
        (done,) = [f.estimate for f in ask("census", simulate(kept)).findings if f.label == "generalised"]
        assert (done.value * done.n, done.n) == seen


def test_the_diarys_thresholds() -> None:
    assert (DIARY.horizon, DIARY.super_accuracy, DIARY.normal_accuracy, DIARY.speedup) == (3000, 0.98, 0.25, 3)
    accuracy = pd.Series([0.981, 0.98, 0.25, 0.249, np.nan, 0.5])
    diverged = pd.Series([False] * 5 + [True])
    assert DIARY.classify(accuracy, diverged).tolist() == ["super", "fast", "fast", "normal", "not judged", "diverged"]


def test_the_usual_length_is_one_that_half_of_the_runs_have() -> None:
    assert usual_length(np.array([3000, 3000, 20_000])) == 3000
    assert usual_length(np.array([10, 20_000, 3000])) == 3000
    assert usual_length(np.array([1000] * 60 + [3000] * 4)) == 1000
    assert usual_length(np.array([500])) == 500


def curves(**runs: list[tuple[int, float]]) -> pd.DataFrame:
    return pd.DataFrame([{"run_id": r, "step": s, "val_acc": a} for r, points in runs.items() for s, a in points])


def test_accuracy_at_the_horizon_is_seen_or_implied_or_unknown() -> None:
    frame = curves(
        exact=[(2900, 0.1), (3000, 0.3), (3100, 0.99)],
        implied=[(2500, 0.05), (3500, 0.2)],
        unclear=[(2500, 0.05), (3500, 0.99)],
        early=[(2500, 0.99)],
        late=[(4000, 0.01)],
    )
    found = accuracy_at(frame, pd.Index(["exact", "implied", "unclear", "early", "late", "absent"]), 3000)
    assert found.iloc[:2].tolist() == [0.3, 0.05]
    assert found.iloc[2:].isna().all()


def test_super_by_time_counts_only_runs_that_were_long_enough() -> None:
    # 12 long runs with a median near 9,000, and 100 short ones of which two were super: those two may not be
    # counted without the 98 that could not show it.
    long = np.array([2000.0] + [9000.0] * 11)
    left = np.concatenate([long - 100, np.full(98, 2500.0), [1900.0, 1900.0]])
    right = np.concatenate([long, np.full(98, np.inf), [2000.0, 2000.0]])
    budgets = np.concatenate([np.full(12, 20_000.0), np.full(100, 2500.0)])
    verdict = judge_by_time(survival.Times(left, right), budgets)
    assert verdict.median.value == pytest.approx(8950, abs=60)
    assert verdict.judged.sum() == 12
    assert verdict.is_early.sum() == 1
    with pytest.raises(NotEnoughData):
        judge_by_time(survival.Times(np.full(10, 2500.0), np.full(10, np.inf)), np.full(10, 2500.0))


def test_early_stopped_runs_are_judged_where_stopping_began() -> None:
    rows = pd.DataFrame(
        {
            "steps": [1000] * 3 + [5000] * 7,
            "status": "completed",
            "stop_reason": ["generalised"] * 3 + ["steps"] * 7,
            "config.train.stop_horizon": 1000,
        },
        index=pd.Index([f"r{i}" for i in range(10)], name="run_id"),
    )
    assert DIARY.horizon_of(rows) == 1000
    diverged = rows.assign(status=["completed"] * 9 + ["diverged"])
    assert DIARY.horizon_of(diverged) == 1000
    assert DIARY.horizon_of(rows.assign(stop_reason="steps", steps=5000)) == 3000
