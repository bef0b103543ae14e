"""Is it the seed? Exact at one candidate and at rates of one in a thousand, and silent where luck chose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.estimate import generator
from analysis.statistics.repeatability import Counts, Replication, Verdict, mean_share, more_often, replication

STRONG, WEAK, NONE = 0.95, 0.2, 0.0


def seeds_rates(n: int, rate: float, effect: float, rng: np.random.Generator) -> np.ndarray:
    """Hit rates of ``n`` seeds: their mean is ``rate``, and ``effect`` the correlation between runs of one seed."""
    if effect == 0:
        return np.full(n, rate)
    spread = (1 - effect) / effect
    return rng.beta(rate * spread, (1 - rate) * spread, n)


def study(
    candidates: int, rate: float, effect: float, rng: np.random.Generator, repeats: int = 8, census: int = 2000
) -> tuple[Replication, np.ndarray] | None:
    """Run a census, repeat the first seeds that hit; None where none did. Returns the candidates' true rates, too."""
    rates = seeds_rates(census, rate, effect, rng)
    hit = rng.random(census) < rates
    chosen = rates[hit][:candidates]
    if not len(chosen):
        return None
    base = (int(hit.sum()), census)
    counts = [(int(k), repeats) for k in rng.binomial(repeats, chosen)]
    return replication(counts, [base] * len(counts)), chosen


def test_six_super_seeds_that_always_come_back_are_a_property_of_the_seed() -> None:
    found = replication([(8, 8)] * 6, [(18, 2073)] * 6)
    assert found.verdict is Verdict.MOST
    assert found.count(Verdict.MOST) == 6
    assert found.pooled.low > 0.9
    assert found.mean is not None and found.mean.low > 0.5
    assert replication([(48, 48)], [(18, 2073)]).verdict is Verdict.MOST
    assert replication([(8, 8)] * 6, [None] * 6).verdict is Verdict.MOST


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([(0, 8)], Verdict.NO_SIGN),
        ([(8, 8)], Verdict.MOST),
        ([(3, 8)], Verdict.MORE),
        ([(0, 1)], Verdict.UNKNOWN),
        ([(1, 1)], Verdict.MORE),
        ([(0, 8)] * 6, Verdict.NO_SIGN),
        ([(4, 20)], Verdict.MORE),
        ([(0, 2), (0, 1)], Verdict.UNKNOWN),
        ([(1, 4)] * 4 + [(0, 4)] * 6, Verdict.MORE),  # none of them alone: 4 of 40 together
        ([(1, 4)] + [(0, 4)] * 9, Verdict.NO_SIGN),
    ],
)
def test_verdicts_at_the_diarys_rate(counts: list[Counts], said: Verdict) -> None:
    assert replication(counts, [(18, 2073)] * len(counts)).verdict is said


def test_the_p_value_is_valid_for_one_candidate_and_any_rate() -> None:
    """Over both counts at one rate, exactly: the chance of p below a level is never above it."""
    for rate, repeats, others in itertools.product((0.001, 0.01, 0.1, 0.5), (1, 8), (20, 200)):
        weight = np.outer(stats.binom.pmf(range(repeats + 1), repeats, rate), stats.binom.pmf(range(21), others, rate))
        p = np.array([[more_often((k, repeats), (a, others)) for a in range(21)] for k in range(repeats + 1)])
        for level in (0.01, 0.05):
            assert weight[p <= level].sum() <= level


def test_the_p_value_is_fishers() -> None:
    for count, base in (((3, 8), (18, 2073)), ((0, 8), (5, 40)), ((8, 8), (0, 12))):
        table = np.array([[k, n - k] for k, n in (count, base)])
        assert more_often(count, base) == pytest.approx(stats.fisher_exact(table, alternative="greater").pvalue)


def test_the_mean_over_seeds_is_about_seeds_and_not_about_runs() -> None:
    """Two seeds, one always and one never hits: any number of repeats of them says nothing narrower."""
    assert mean_share([(8, 8), (0, 8)]) == mean_share([(800, 800), (0, 800)])
    assert mean_share([(8, 8)] * 6).low == pytest.approx(0.025 ** (1 / 6))


@pytest.mark.parametrize("lines", [13, 19, 51])
@pytest.mark.parametrize(
    ("handing", "high", "low"), [(0.1, 0.9, 0.01), (0.1, 0.7, 0.02), (0.5, 0.8, 0.05), (1.0, 0.1, 0)]
)
def test_the_mean_over_families_covers_where_few_hand_on(lines: int, handing: float, high: float, low: float) -> None:
    """A tenth of the families hands on: with the likeness of siblings as a number the interval held in 84 to 88%."""
    rng = generator(f"few hand on {lines} {handing} {high}")
    truth, inside = handing * high + (1 - handing) * low, 0
    for _ in range(200):
        hits = rng.binomial(4, np.where(rng.random(lines) < handing, high, low))
        e = mean_share([(int(k), 4) for k in hits])
        inside += e.low <= truth <= e.high
    assert inside >= 181  # 190 expected; three standard deviations


def test_units_that_differ_by_chance_alone_count_by_their_runs() -> None:
    alike = mean_share([(4, 8)] * 10)
    assert alike.high - alike.low < 0.6 * (mean_share([(8, 8), (0, 8)] * 5).high - mean_share([(8, 8), (0, 8)] * 5).low)
    for runs in (4, 400):  # without a hit nothing is known of the scatter
        assert mean_share([(0, runs)] * 19).high == pytest.approx(1 - 0.025 ** (1 / 19))


@pytest.mark.slow
def test_every_interval_and_verdict_covers_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the table: 1 to 20 candidates, rates of 0.1 to 10%, no, a weak and a strong effect of the seed."""
    rng = generator("replication coverage")
    draws, three_sd = 200, 3 * np.sqrt(0.05 * 0.95 / 150)
    lines = [
        "candidates  rate  effect  own rate  pooled  mean  others  wrongly called  verdicts (most/more/no/unknown)"
    ]
    for n, rate, effect in itertools.product((1, 2, 6, 20), (0.001, 0.01, 0.1), (NONE, WEAK, STRONG)):
        found = [s for _ in range(draws) if (s := study(n, rate, effect, rng))]
        own = [c.again.low <= r <= c.again.high for s, rates in found for c, r in zip(s.candidates, rates, strict=True)]
        pooled = [s.pooled.low <= rates.mean() <= s.pooled.high for s, rates in found]
        expected = rate + effect * (1 - rate)
        mean = [s.mean.low <= expected <= s.mean.high for s, _ in found if s.mean is not None] or [True]
        others = [s.candidates[0].base.low <= rate <= s.candidates[0].base.high for s, _ in found]  # type: ignore[union-attr]
        if effect == NONE:
            said = (Verdict.MOST, Verdict.MORE)
            wrong = [s.count(*said) > 0 or s.verdict in said for s, _ in found]
        else:
            wrong = [s.verdict is Verdict.MOST and rates.mean() <= 0.5 for s, rates in found]
        verdicts = "/".join(f"{np.mean([s.verdict is v for s, _ in found]):.2f}" for v in Verdict)
        cells = [np.mean(own), np.mean(pooled), np.mean(mean), np.mean(others), np.mean(wrong)]
        lines.append(f"{n:>10}  {rate:<5} {effect:<6} " + "  ".join(f"{c:.3f}" for c in cells) + f"  {verdicts}")
        # A rate is known from a count that is at least 1 here: a census without a hit has no candidate.
        assert min(cells[:3]) > 0.95 - three_sd, lines[-1]
        assert cells[3] > 0.9, lines[-1]
        assert cells[4] <= 0.05 + three_sd, lines[-1]
        if effect == STRONG:
            assert np.mean([s.verdict is Verdict.MOST for s, _ in found]) > 0.75, lines[-1]
    with capsys.disabled():
        print("\n" + "\n".join(lines))
