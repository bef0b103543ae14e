"""Split, weights or order? The crossed factorial with replicates (REQUIREMENTS N3, N4)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from analysis.criteria import DIARY, accuracy_at
from analysis.observations import Observations, describe_task
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.multiplicity import benjamini_hochberg
from analysis.statistics.proportions import heterogeneity, ratio, share
from analysis.statistics.resampling import generator
from analysis.statistics.variance_shares import CHAOS, VarianceShares, variance_shares
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.outcomes import Outcome, outcome

STREAMS = ("split", "init", "order")


@dataclass(kw_only=True)
class Crossed(Study):
    """Variance shares and conditional rates of the largest crossed design."""

    rows: pd.DataFrame
    """The runs of the design, with ``y`` (the outcome) added."""
    outcome: Outcome
    varied: tuple[str, ...]
    """The streams that the design crosses."""
    shares: VarianceShares | None = None
    rates: pd.DataFrame | None = None


def crossed_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that belong to a crossed design.

    A run belongs if, for some two streams, its seed of each meets at least two seeds of
    the other. Random seeds and scans of a single stream do not.
    """
    while len(rows):
        keep = pd.Series(False, index=rows.index)
        for a, b in combinations(STREAMS, 2):
            pair = rows[[f"seed_{a}", f"seed_{b}"]]
            distinct = pair.drop_duplicates()
            meets_a = distinct.groupby(f"seed_{a}").size().reindex(pair[f"seed_{a}"]).to_numpy()
            meets_b = distinct.groupby(f"seed_{b}").size().reindex(pair[f"seed_{b}"]).to_numpy()
            keep |= (meets_a >= 2) & (meets_b >= 2)
        if keep.all():
            break
        rows = rows[keep]
    return rows


def design(observations: Observations) -> pd.DataFrame:
    """Return the runs of the condition with the largest crossed design (maybe none)."""
    rows = observations.arithmetic
    rows = rows[rows["layers"] == "{}"]
    if rows.empty:
        return rows
    condition = observations.conditions(rows)
    found = [crossed_rows(rows[condition == c]) for c in sorted(condition.unique())]
    return max(found, key=len)


def analyse(observations: Observations, question: Question) -> Crossed:
    """Answer for the largest crossed design of one condition.

    Raises:
        NotEnoughData: no crossed design, or neither times nor accuracies that differ.
    """
    rows = design(observations)
    if len(rows) < 8:
        raise NotEnoughData("seeds of at least two streams crossed, with two perturbed replicates of each cell")
    result = outcome(observations, rows)
    rows = rows.assign(y=result.values)
    varied = tuple(s for s in STREAMS if rows[f"seed_{s}"].nunique() > 1)
    study = Crossed(
        name=question.name,
        title=question.title,
        question=question.question,
        rows=rows,
        outcome=result,
        varied=varied,
    )
    sizes = " × ".join(f"{rows[f'seed_{s}'].nunique()} {s}" for s in varied)
    study.notes.append(f"{len(rows)} runs of {describe_task(rows.iloc[0])}: {sizes} seeds. Outcome: {result.name}.")
    if result.censored:
        study.notes.append(f"{result.censored:.0%} of the runs had not generalised by then and count with that step.")
    _shares(study)
    _rates(observations, study)
    return study


def _shares(study: Crossed) -> None:
    factors = {s: study.rows[f"seed_{s}"].to_numpy() for s in study.varied}
    try:
        study.shares = variance_shares(study.rows["y"].to_numpy(dtype=float), factors, generator("variance shares"))
    except NotEnoughData as gap:
        study.notes.append(f"Variance shares: not enough data, needs {gap.needs}.")
        return
    found = study.shares
    words = {s: f"the {s} seed alone" for s in STREAMS} | {
        CHAOS: "chaos (equal seeds, weights moved by a unit in the last place)"
    }
    for name, e in found.shares.items():
        study.findings.append(
            Finding(
                f"{name} share",
                e.percent(0),
                f"{e.percent(0)} of the variance belongs to {words.get(name, f'the interaction {name}')}.",
                e,
                headline=name in (*STREAMS, CHAOS),
                listed=name in (*STREAMS, CHAOS),
            )
        )
    records = [
        {
            "component": name,
            "share %": round(100 * e.value, 1),
            "low %": round(100 * e.low, 1),
            "high %": round(100 * e.high, 1),
            "variance": found.components[name],
        }
        for name, e in found.shares.items()
    ]
    method = next(iter(found.shares.values())).method
    study.tables.append(Table("variance", f"Variance components ({method})", pd.DataFrame(records)))


def _rates(observations: Observations, study: Crossed) -> None:
    """Given this order seed, are good init seeds likelier? (and the other way round)"""
    cells = study.rows.drop_duplicates([f"seed_{s}" for s in STREAMS])
    hit, meaning = _good(observations, cells)
    if hit is None:
        study.notes.append("Conditional rates: not enough data, needs good seeds as well as others.")
        return
    frames = []
    for given in study.varied:
        levels = cells[f"seed_{given}"].to_numpy()
        try:
            test = heterogeneity(hit, levels, generator(f"rates {given}"))
        except NotEnoughData:
            continue
        frame = _level_table(levels, hit, given)
        frames.append(frame)
        best = frame.iloc[0]
        others = "/".join(s for s in study.varied if s != given)
        study.findings.append(
            Finding(
                f"rates differ between {given} seeds",
                f"p = {test.p:.3g}",
                f"Does the {given} seed decide how many {others} seeds are good ({meaning})? Permutation test over "
                f"{test.groups} {given} seeds: p = {test.p:.3g}. The best one has "
                f"{best['rate over the others']} times the rate of the others (q = {best['q']:.2g}; "
                "picked for being best).",
            )
        )
        confirmed = _confirmed_ratio(cells, hit, given, others.split("/")[0])
        if confirmed is not None:
            study.findings.append(confirmed)
    if frames:
        study.rates = pd.concat(frames, ignore_index=True)
        caption = f"Share of good seeds ({meaning}) given each seed, one run per cell"
        study.tables.append(Table("conditional_rates", caption, study.rates, open=False))


def _good(observations: Observations, cells: pd.DataFrame) -> tuple[np.ndarray | None, str]:
    horizon = DIARY.horizon_of(cells)
    accuracy = accuracy_at(observations.curves_of(cells.index), cells.index, horizon)
    hit = (accuracy >= DIARY.normal_accuracy).to_numpy()
    if accuracy.notna().mean() > 0.9 and 5 <= hit.sum() <= len(hit) / 2:
        return hit, f"not normal at step {horizon:,}"
    y = cells["y"].to_numpy(dtype=float)
    hit = y < np.quantile(y, 0.25)
    if 5 <= hit.sum() <= len(hit) - 5:
        return hit, "among the fastest quarter"
    return None, ""


def _level_table(levels: np.ndarray, hit: np.ndarray, given: str) -> pd.DataFrame:
    records, p = [], []
    for level in np.unique(levels):
        here = levels == level
        a, n, b, m = int(hit[here].sum()), int(here.sum()), int(hit[~here].sum()), int((~here).sum())
        e = share(a, n)
        r = ratio(a, n, b, m)
        p.append(float(stats.fisher_exact(np.array([[a, n - a], [b, m - b]])).pvalue))
        records.append(
            {
                "given": given,
                "seed": str(level),
                "good": a,
                "of": n,
                "share": e.percent(0),
                "rate over the others": f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f})",
            }
        )
    frame = pd.DataFrame(records)
    frame["q"] = benjamini_hochberg(p)
    return frame.assign(_rate=frame["good"] / frame["of"]).sort_values("_rate", ascending=False).drop(columns="_rate")


def _confirmed_ratio(cells: pd.DataFrame, hit: np.ndarray, given: str, other: str) -> Finding | None:
    """Pick the best seed of ``given`` on half of the other stream's seeds and measure it on the rest, both ways."""
    codes = np.unique(cells[f"seed_{other}"], return_inverse=True)[1]
    levels = cells[f"seed_{given}"].to_numpy()
    half = codes % 2 == 0
    a = n = b = m = 0
    for pick, measure in ((half, ~half), (~half, half)):
        rates = {level: hit[pick & (levels == level)].mean() for level in np.unique(levels[pick])}
        best = max(sorted(rates), key=lambda level: rates[level])
        a += int(hit[measure & (levels == best)].sum())
        n += int((measure & (levels == best)).sum())
        b += int(hit[measure & (levels != best)].sum())
        m += int((measure & (levels != best)).sum())
    if not n or not m or not a + b:
        return None
    e = ratio(a, n, b, m)
    return Finding(
        f"best {given} seed, confirmed",
        f"{e.value:.2f} times ({e.low:.2f} to {e.high:.2f})",
        f"Chosen on half of the {other} seeds and measured on the other half, the best {given} seed makes good "
        f"seeds {e.value:.2f} times as likely ({e.low:.2f} to {e.high:.2f}). The diary says 1.25 for its order seed 8.",
        e,
    )


QUESTION = Question(
    "crossed",
    "Split, weights or order?",
    "Which source of randomness decides how fast a run generalises, and how much is chaos?",
    "python -m grok.run -m sweep=crossed",
    analyse,
    lambda observations: len(design(observations)) >= 8,
)
