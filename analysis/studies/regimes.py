"""How a seed generalises: the times of its loss peak, of the fall of its weight norm, and of generalisation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from grok.analysis.criteria import usual_length
from grok.analysis.observations import Observations, floats
from grok.analysis.populations import Population
from grok.analysis.statistics.estimate import NotEnoughData, generator, holm
from grok.analysis.statistics.modes import p_of_one_mode
from grok.analysis.statistics.proportions import alike, share
from grok.analysis.studies.base import ALARM, Beside, Question, Study, Table, by_population, has_populations
from grok.arithmetic.outcome import NORM_FALL

WATCHED = 2
"""The times of a run are compared if it was trained to this many times its step of generalisation."""
FEWEST = 10
"""Smallest number of runs for a test of two groups."""
EVENTS = {"loss_peak": "loss peak", "fall": "norm first falls", "grokked": "generalised"}
"""Names of events in words, by their column."""
BEFORE, AFTER, TOGETHER = "norm falls first", "generalises first", "at one evaluation"
UNSEEN = "not seen"
"""No evaluation lies between those that show memorising and generalising: it could not have shown a fall before."""
ORDERS = (BEFORE, AFTER, TOGETHER)
"""Which comes first."""
MOST_ORDERS = 5


@dataclass(kw_only=True)
class Regimes(Study):
    """The times of the runs of one population."""

    population: Population
    events: pd.DataFrame
    """Per run: loss_peak, fall, grokked, climb, first, order; see `events_of`."""
    curves: pd.DataFrame
    """The evaluations of these runs."""


def events_of(observations: Observations, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the times of each run, in steps of its evaluations.

    The columns are ``loss_peak``; ``fall``, when the weight norm is first below its highest value since the run
    memorised (decay shrinks initial weights, too) by the share ``NORM_FALL``, which no later evaluation changes (both
    infinite if not seen); ``grokked`` (NaN: not yet); ``climb``, the largest ratio of the validation loss to its lowest
    value before, until the run generalised; ``first``, which of fall and generalisation came first, also known without
    later evaluations; and ``order``, the names of the events.
    """
    curves = observations.curves_of(rows.index)
    curves = curves[curves["step"] > 0]
    grokked = floats(rows["grokked_step"])
    until = curves[curves["step"] <= curves["run_id"].map(pd.Series(grokked, index=rows.index)).fillna(np.inf)]
    lowest = until.groupby("run_id")["val_loss"].cummin()
    climb = (until["val_loss"] / lowest).groupby(until["run_id"]).max().reindex(rows.index)
    since = curves[curves["step"] >= curves["run_id"].map(rows["memorised_step"].astype("float64"))]
    fell = since[since["weight_norm"] <= (1 - NORM_FALL) * since.groupby("run_id")["weight_norm"].cummax()]
    fall = fell.groupby("run_id")["step"].min().reindex(rows.index).fillna(np.inf).to_numpy(dtype=float)
    peak = np.nan_to_num(floats(rows["val_loss_peak_step"]), nan=np.inf)
    between = since.groupby("run_id")["step"].nth(1).groupby(since["run_id"]).first().reindex(rows.index)
    cases = [~np.isfinite(grokked), ~(between.to_numpy(dtype=float) < grokked), fall < grokked, fall > grokked]
    first = np.select(cases, ["not yet", UNSEEN, BEFORE, AFTER], TOGETHER)
    columns = {"loss_peak": peak, "fall": fall, "grokked": grokked, "climb": climb, "first": first}
    events = pd.DataFrame(columns, index=rows.index)
    return events.assign(order=[_order(row) for row in events[list(EVENTS)].to_numpy(dtype=float).tolist()])


def _order(steps: list[float]) -> str:
    """Return the names of the events in their order, joined by an arrow, or by = if at the same evaluation."""
    at: dict[float, list[str]] = {}
    for name, step in zip(EVENTS.values(), steps, strict=True):
        if np.isfinite(step):
            at.setdefault(step, []).append(name)
    return " → ".join(" = ".join(at[step]) for step in sorted(at))


def early(study: Regimes) -> pd.DataFrame:
    """Return the events of the runs that generalised within the usual length: few that were trained on do not count."""
    usual = usual_length(study.population.rows["config.train.steps"])
    return study.events[(study.events["grokked"] <= usual) & (study.events["first"] != UNSEEN)]


def beside(study: Regimes) -> dict[str, object]:
    """Return the row of one population in the table of populations."""
    done = early(study)["first"]
    return {"generalised": len(done)} | {
        name: share(int((done == name).sum()), max(1, len(done))).percent() for name in ORDERS
    }


def compare(reference: Regimes, other: Regimes) -> float | None:
    """Return Fisher's p-value that the norm falls first equally often in both; None where their budgets differ."""
    rows = pd.concat([reference.population.rows, other.population.rows])
    if rows["config.train.steps"].nunique() > 1:
        return None  # a longer budget adds late seeds to those that generalised
    return alike(*((int((done["first"] == BEFORE).sum()), len(done)) for done in map(early, (reference, other))))


def one(observations: Observations, population: Population) -> Regimes:
    """Return the answer for one population.

    Raises:
        NotEnoughData: no run of it generalised.
    """
    rows = population.rows
    study = Regimes(
        population=population,
        events=events_of(observations, rows),
        curves=observations.curves_of(rows.index),
    )
    done = early(study)
    n = len(done)
    if not n:
        needs = f"at least one run that generalised (none of {len(rows)} did within its budget)"
        seen = "runs with an evaluation between those that show memorising and generalising"
        raise NotEnoughData(seen if study.events["first"].eq(UNSEEN).any() else needs)
    for name, words in (
        (BEFORE, "was seen to have fallen by 1% before they were seen to generalise"),
        (AFTER, "was not yet seen to have fallen by 1% when they were seen to generalise"),
        (TOGETHER, "first fell by 1% at the evaluation that shows generalisation"),
    ):
        hits = int((done["first"] == name).sum())
        e = share(hits, n)
        text = f"In {hits} of {n} generalised seeds ({population.task}) the weight norm {words}: {e.percent()}."
        study.tell(name, e.percent(), text, e, headline=n >= FEWEST and name != TOGETHER)
    watched = done[floats(rows["steps"].loc[done.index]) >= WATCHED * done["grokked"]]
    study.notes.append(_about(study, done, watched))
    study.tables.append(_orders(done))
    if len(watched) >= FEWEST:
        study.tables.append(_times(watched))
    if len(watched):
        _groups(study, watched)
    return study


def _about(study: Regimes, done: pd.DataFrame, watched: pd.DataFrame) -> str:
    """Return which seeds the section is about, and of which the times are compared."""
    rows, not_yet = study.population.rows, study.events["grokked"].isna()
    diverged = int((not_yet & (rows["status"] == "diverged")).sum())
    slow, n, unseen = int(not_yet.sum()) - diverged, len(done), int(study.events["first"].eq(UNSEEN).sum())
    later = len(rows) - slow - diverged - n - unseen
    words = [
        "The norm falls at its first evaluation 1% below its highest since the seed memorised; it may rise later. "
        "Events are known at evaluations only: more frequent ones can show another order."
    ]
    of = f"of {len(rows):,} seeds"
    words += [f"{slow:,} {of} had not generalised when they ended, so this is about those that had."] * bool(slow)
    words += [f"{diverged:,} {of} diverged and do not count."] * bool(diverged)
    words += [f"{unseen:,} do not count, as no evaluation lies between memorising and generalising."] * bool(unseen)
    words += [f"{later:,} generalised after the usual length and do not count."] * bool(later)
    words.append(
        f"Trained to {WATCHED} times their step: {len(watched):,} of {n:,}. A fall of the norm afterwards needs that "
        "time, and only such times are compared."
    )
    return " ".join(words)


def _groups(study: Regimes, done: pd.DataFrame) -> None:
    """Add whether the ratios of the times fall into two groups. A time lies anywhere between two evaluations."""
    known = np.unique(study.curves["step"].to_numpy(dtype=float))
    rng, names, tests = generator("between evaluations"), [], []
    for column in ("loss_peak", "fall"):
        pair = done.loc[np.isfinite(done[column]), [column, "grokked"]].to_numpy(dtype=float)
        before = known[np.maximum(0, np.searchsorted(known, pair) - 1)]
        times = np.log(np.maximum(1.0, before + (pair - before) * rng.random(pair.shape)))
        if len(pair) >= FEWEST:
            names.append(f"{EVENTS[column]} / generalised (n = {len(pair)})")
            tests.append(p_of_one_mode(times[:, 0] - times[:, 1]))
    if not tests:
        needs = f"{FEWEST} seeds with both times that were trained so long (seen: {len(done)})"
        study.notes.append(f"One group or two: not enough data, needs {needs}.")
        return
    p = dict(zip(names, holm(tests).tolist(), strict=True))
    two = " and ".join(name for name in names if p[name] <= ALARM)
    verdict = (
        f"two groups, by {two}"
        if two
        else "not seen to be of two groups, and a small second group would not be, however far apart"
    )
    shown = ", ".join(f"{name}: p = {value:.2g}" for name, value in p.items())
    text = f"The ratios of the times are {verdict} (dip test of a single mode, Holm; {shown})."
    study.tell(
        "one group or two, by ratios of times", "two groups" if two else "no second one seen", text, headline=True
    )


def _times(done: pd.DataFrame) -> Table:
    records = []
    for column, name in EVENTS.items():
        for unit, values in (
            ("steps", done[column]),
            ("times the step of generalisation", done[column] / done["grokked"]),
        ):
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], method="lower")  # infinite: not seen
            quarters = {"quarter": low, "half": middle, "three quarters": high}
            form = ",.0f" if unit == "steps" else ".2g"
            shown = {k: "not seen" if np.isinf(v) else f"{v:{form}}" for k, v in quarters.items()}
            records.append({"event": name, "in": unit, "not seen": int(np.isinf(values).sum())} | shown)
    caption = f"The three times: by when a quarter, half and three quarters of {len(done)} seeds had each event"
    return Table("times", caption, pd.DataFrame(records[:-1]))


def _orders(done: pd.DataFrame) -> Table:
    counts = done["order"].value_counts().head(MOST_ORDERS)
    rows = [{"order": o, "seeds": int(k), "share": share(int(k), len(done)).percent(0)} for o, k in counts.items()]
    caption = f"Order of the events until the runs ended (the {MOST_ORDERS} most frequent; =: at the same evaluation)"
    return Table("orders", caption, pd.DataFrame(rows))


QUESTION = Question(
    "regimes",
    "Order of events",
    "Does the weight norm fall before a seed generalises, or after?",
    "grok sweep sweep=long_census",
    by_population(
        one, Beside(beside, compare, "as often the weight norm falls before a seed generalises (Fisher's exact test)")
    ),
    has_populations,
    reads_designs=True,
    of_seeds=True,
)
