"""Time to generalise, by survival analysis."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from grok.analysis.criteria import share_by, usual_length
from grok.analysis.observations import Observations, floats, how_many
from grok.analysis.populations import Population
from grok.analysis.statistics import survival
from grok.analysis.statistics.estimate import Estimate, NotEnoughData
from grok.analysis.statistics.proportions import share
from grok.analysis.studies.base import Beside, Finding, Question, Study, by_population, has_populations
from grok.arithmetic.outcome import GENERALISED_VAL_ACC


@dataclass(kw_only=True)
class Survival(Study):
    """Times of one population."""

    population: Population
    times: survival.Times
    curve: survival.SurvivalCurve
    memorised: survival.Times
    memorised_curve: survival.SurvivalCurve
    end: float
    """Last step with enough runs at risk."""
    last: float
    """Largest event time or time of censoring."""
    events: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Median step of each event."""


def one(observations: Observations, population: Population) -> Survival:
    """Return the answer for one population.

    Raises:
        NotEnoughData: it has fewer than five seeds, or none generalised.
    """
    rows = population.rows
    if len(rows) < 5:
        raise NotEnoughData(f"at least five seeds (seen: {len(rows)})")
    times, memorised = observations.times(rows), observations.times(rows, "memorised_step")
    if not times.seen.any():
        raise NotEnoughData(f"at least one seed that generalised (none of {len(rows)} did within its budget)")
    study = Survival(
        population=population,
        times=times,
        curve=survival.kaplan_meier(times),
        memorised=memorised,
        memorised_curve=survival.kaplan_meier(memorised),
        end=survival.watched_until(times),
        last=float(np.max(np.where(times.seen, times.right, times.left))),
    )
    if lost := int((rows["status"] == "diverged").sum()):
        text = "seeds diverged: they count as not generalised up to the end of their budget."
        study.notes.append(f"{lost:,} of {len(rows):,} {text}")
    if beyond := int((times.points > study.end).sum()):
        study.notes.append(
            f"Only {beyond} of {len(rows)} seeds were still at risk after step {study.end:,.0f}, too few for a curve: "
            "the figure and the shares end there."
        )
    _quantiles(study)
    _events(study, observations)
    _gap(study, rows)
    return study


def beside(study: Survival) -> dict[str, object]:
    """Return the row of one population in the table of populations."""
    events = study.events.set_index("event")
    rows = study.population.rows
    trained = usual_length(rows["config.train.steps"])
    return {
        "trained for": f"{trained:,}",
        "generalised": share_by(rows, study.times.right, trained).percent(),
        **{f"{name}: median step": events.loc[name, "median step"] for name in events.index},
    }


def compare(reference: Survival, other: Survival) -> float | None:
    """Return the log-rank p-value that the times of both populations have one distribution; None if undefined."""
    try:
        return survival.logrank(reference.times, other.times)
    except NotEnoughData:
        return None


EVENTS = {
    "memorised_step": "memorised by accuracy",
    "memorised_loss_step": "memorised by loss",
    "weight_norm_fall_step": "norm falls from its peak",
    "grokked_step": "generalised",
    "grokked_for_good_step": "generalised for good",
}


def _events(study: Survival, observations: Observations) -> None:
    """Add the median step of every event, with censoring, and the numbers of seeds that generalised for good."""
    rows = study.population.rows
    records = []
    for column, name in EVENTS.items():
        times = observations.times(rows, column)
        try:
            middle = survival.quantile(times, 0.5).plain()
        except NotEnoughData:
            first = np.sort(times.right)[(len(times) - 1) // 2]  # half have it then, often at the first evaluation
            last = min(float(times.left[~times.seen].max(initial=0)), survival.watched_until(times))
            middle = f"by {first:,.0f}" if first <= last or times.seen.all() else f"not by {last:,.0f}"
        records.append({"event": name, "seen in": int(times.seen.sum()), "of": len(times), "median step": middle})
    study.events = pd.DataFrame(records)
    study.tabulate("events", "Median step of each event (with censoring)", study.events)
    reached, fell = int(study.times.seen.sum()), int((floats(rows["val_acc_dips"]) > 0).sum())
    good = int(rows["grokked_for_good_step"].notna().sum())
    e = share(good, reached)
    study.tell(
        "generalised for good",
        f"{good} of {reached}",
        f"Of {how_many(reached, 'seed')} that generalised, {fell} fell below {GENERALISED_VAL_ACC:.0%} again "
        f"at a later evaluation, and {reached - good} ended below it; {good} generalised for good, {e.percent()}. All "
        "times here are those of the first event. More frequent evaluations, and runs that do not stop early, would "
        "show more falls.",
        e,
    )


def _quantiles(study: Survival) -> None:
    records = []
    for q in (0.1, 0.25, 0.5, 0.75, 0.9):
        try:
            e = survival.quantile(study.times, q)
        except NotEnoughData:
            continue
        high = round(e.high) if np.isfinite(e.high) else None
        records.append({"share of seeds": f"{q:.0%}", "by step": round(e.value), "low": round(e.low), "high": high})
        if q == 0.5:
            text = f"Half of the seeds have generalised by step {e.plain()} (with censoring, n = {e.n})."
            study.tell("median step of generalisation", e.plain(), text, e, headline=True)
    if not study.findings:
        end = min(study.end, study.last)
        seen = f"{int((study.times.right <= end).sum())} of {len(study.times)}"
        curve, known = study.curve.until(end), study.times.left[~study.times.seen].min(initial=np.inf) >= end
        e = share(int((study.times.right <= end).sum()), len(study.times))  # as in the census
        if len(curve.times) and not known:
            done, *ends = (float(1 - side[-1]) for side in (curve.survival, curve.high, curve.low))
            e = Estimate(done, ends[0], ends[1], curve.n, "Kaplan-Meier, beta-product bands")
        text = (
            f"By step {end:,.0f} {e.percent()} of the seeds have generalised ({seen}, with censoring): fewer than "
            "half, so their median takes longer runs of all seeds (sweep=long_census)."
        )
        study.tell("generalised within the budget", f"{seen} by step {end:,.0f}", text, e, headline=True)
    study.tabulate("quantiles", "Step by which a share of the seeds has generalised", records)


def _gap(study: Survival, rows: pd.DataFrame) -> None:
    try:
        e = survival.quantile(study.memorised, 0.5)
    except NotEnoughData:
        return
    study.tell("median step of memorising", e.plain(), f"Half of the seeds have memorised by step {e.plain()}.", e)
    memorised = floats(rows["memorised_step"])
    known = np.isfinite(memorised) & (study.memorised.left > 0)
    if known.sum() < 5 or known.mean() <= 0.5:
        return
    # multiples of the step of memorising, out to the next twentieth: few intervals then differ, which is quick
    times, cells = study.times.take(known), 20 / memorised[known]
    first, last = np.floor((times.left * cells).round(6)) / 20, np.ceil((times.right * cells).round(6)) / 20
    try:
        e = survival.quantile(survival.Times(first, last))
    except NotEnoughData:
        return
    text = (
        f"The step of generalisation is {e.plain(1)} times the step of memorisation (median of the {e.n} seeds "
        "that memorised, with censoring)."
    )
    study.findings.insert(0, Finding("gap", f"{e.plain(1)} times", text, e))


QUESTION = Question(
    "survival",
    "Time to generalise",
    "How long does a seed take?",
    "grok sweep sweep=long_census",
    by_population(
        one, Beside(beside, compare, "seeds generalise as fast (log-rank test, which curves that cross escape)")
    ),
    has_populations,
    reads_designs=True,
    of_seeds=True,
)
