"""Slow and fast generalisation, classified from the curves."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.cluster.vq import kmeans2

from analysis.criteria import REGIMES, usual_length
from analysis.observations import Observations, floats
from analysis.populations import Population
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.prediction import spearman
from analysis.statistics.proportions import share, wilson
from analysis.statistics.resampling import generator
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.by_population import by_population, has_populations
from analysis.studies.side_by_side import Beside

FEWEST = 10
"""Smallest number of generalised runs for a clustering."""
EVENTS = {
    "memorised": "memorised",
    "loss_peak": "loss peak",
    "norm_peak": "norm peak",
    "fall": "norm falls",
    "grokked": "generalised",
}
"""Names of events in words, by their column."""
FEWEST_LABELLED = 5
"""Smallest number of generalised runs for headlines."""
MOST_ORDERS = 3
KINDS = ("fast", "slow", "mixed")


@dataclass(kw_only=True)
class Regimes(Study):
    """A label for each run of one population."""

    population: Population
    events: pd.DataFrame
    """Per run: memorised, loss_peak, norm_peak, grokked, climb, fall, lag, regime, cluster, order."""
    curves: pd.DataFrame
    """The evaluations of the labelled runs."""


def events_of(observations: Observations, rows: pd.DataFrame) -> pd.DataFrame:
    """Return, per run: ``grokked`` (step), ``climb`` (ratio), ``fall`` (step of the norm's fall), ``lag``, ``regime``.

    ``lag`` is ln(grokked / fall): positive if the norm falls first. All steps are those of
    evaluations. Further columns: the steps ``memorised``, ``loss_peak`` and ``norm_peak`` (NaN: did
    not happen), and ``order``, the names of the events in their order.
    """
    curves = observations.curves_of(rows.index)
    curves = curves[curves["step"] > 0]
    grokked = pd.Series(floats(rows["grokked_step"]), index=rows.index)
    until = curves[curves["step"] <= curves["run_id"].map(grokked).fillna(np.inf)]
    lowest = until.groupby("run_id")["val_loss"].cummin()
    climb = (until["val_loss"] / lowest).groupby(until["run_id"]).max().reindex(rows.index)
    fall = floats(rows["weight_norm_fall_step"])
    fall = np.where(np.isfinite(fall), fall, np.inf)
    g, c = floats(grokked), floats(climb)
    with np.errstate(divide="ignore", invalid="ignore"):
        lag = np.log(g) - np.log(fall)
    events = pd.DataFrame(
        {
            "memorised": floats(rows["memorised_step"]),
            "loss_peak": floats(rows["val_loss_peak_step"]),
            "norm_peak": floats(rows["weight_norm_peak_step"]),
            "grokked": g,
            "climb": c,
            "fall": fall,
            "lag": lag,
            "regime": REGIMES.classify(c, fall, g),
        },
        index=rows.index,
    )
    return events.assign(order=[_order(row) for row in events[list(EVENTS)].to_numpy(dtype=float).tolist()])


def _order(steps: list[float]) -> str:
    """Return the names of the events in their order, joined by an arrow, or by = if at the same evaluation."""
    at: dict[float, list[str]] = {}
    for name, step in zip(EVENTS.values(), steps, strict=True):
        if np.isfinite(step):
            at.setdefault(step, []).append(name)
    return " → ".join(" = ".join(at[step]) for step in sorted(at))


def clusters(events: pd.DataFrame) -> NDArray[np.int64]:
    """Return the k-means cluster on log climb and lag of each generalised run (n,); cluster 1 climbs more."""
    lag = np.clip(events["lag"].to_numpy(dtype=float), -1.5, 1.5)
    x = np.column_stack([np.log(events["climb"].to_numpy(dtype=float)), lag])
    sd = x.std(0)
    x = (x - x.mean(0)) / np.where(sd > 0, sd, 1.0)
    start = np.stack([x[np.argmin(x.sum(1))], x[np.argmax(x.sum(1))]])
    _, label = kmeans2(x, start, iter=50, minit="matrix", rng=generator("k-means"), missing="warn")
    label = np.asarray(label, dtype=np.int64)
    means = [x[label == k, 0].mean() if (label == k).any() else 0.0 for k in (0, 1)]
    return label if means[1] >= means[0] else 1 - label


def analyse(observations: Observations, question: Question) -> Study:
    """Return the answer for every population of the store.

    Raises:
        NotEnoughData: no run of any population generalised.
    """
    meaning = "as many of the generalised seeds are of the fast regime (Fisher's exact test)"
    return by_population(observations, question, one, Beside(beside, compare, meaning))


def beside(study: Regimes) -> dict[str, object]:
    """Return the row of one population in the table of populations."""
    done = study.events[study.events["regime"] != "not yet"]
    counts = {name: int((done["regime"] == name).sum()) for name in KINDS}
    return {"labelled": len(done), **{name: share(n, len(done)).percent() for name, n in counts.items()}}


def compare(reference: Regimes, other: Regimes) -> float | None:
    """Return Fisher's p-value that the fast regime is equally frequent in both; None where their budgets differ."""
    budgets = [set(study.population.rows["config.train.steps"]) for study in (reference, other)]
    if budgets[0] != budgets[1] or len(budgets[0]) > 1:
        return None  # a longer budget adds late seeds to those that generalised
    table = []
    for study in (reference, other):
        done = study.events.loc[study.events["regime"] != "not yet", "regime"]
        fast = int((done == "fast").sum())
        table.append([fast, len(done) - fast])
    return float(stats.fisher_exact(np.array(table)).pvalue)


def one(observations: Observations, population: Population, question: Question) -> Regimes:
    """Return the answer for one population.

    Raises:
        NotEnoughData: no run of it generalised.
    """
    rows = population.rows
    events = events_of(observations, rows)
    done = events[events["regime"] != "not yet"]
    if done.empty:
        raise NotEnoughData(f"at least one run that generalised (none of {len(rows)} did within its budget)")
    budgets = rows["config.train.steps"].to_numpy(dtype=np.int64)
    usual = usual_length(budgets)
    early = done[done["grokked"] <= usual]
    followed = events[budgets > usual] if len(early) else events[:0]
    done = early if len(early) else done
    events["cluster"] = -1
    study = Regimes(
        name=question.name,
        title=question.title,
        question=question.question,
        population=population,
        events=events,
        curves=observations.curves_of(rows.index),
    )
    n, task = len(done), population.task
    whose = f"seeds that had generalised by step {usual:,}" if len(followed) else "generalised seeds"
    for regime in KINDS:
        hits = int((done["regime"] == regime).sum())
        e = share(hits, n)
        words = {
            "fast": "generalised before their weight norm fell, without a climb of the validation loss",
            "slow": "climbed in validation loss and lost weight norm before they generalised",
            "mixed": "showed one sign of each regime, or lost weight norm at the evaluation that shows generalisation",
        }[regime]
        study.findings.append(
            Finding(
                f"{regime} regime, of generalised seeds",
                e.percent(),
                f"{hits} of {n} {whose} ({task}) {words}: {e.percent()}.",
                e,
                headline=n >= FEWEST_LABELLED,
            )
        )
    study.findings.append(_norm_after(done, task))
    if len(followed):
        study.findings.append(_followed(followed, usual, int(budgets.max())))
    waiting = int((events["regime"] == "not yet").sum())
    if waiting:
        study.notes.append(
            f"{waiting:,} of {len(events):,} seeds had not generalised when they ended and have no label, "
            "so the shares are biased towards early seeds."
        )
    _check_by_clustering(study, done)
    _timing(study, done)
    study.tables += [_table(done), _orders(done)]
    blocks = _block_norms(study.curves, done)
    if blocks is not None:
        study.tables.append(blocks)
    return study


def _followed(events: pd.DataFrame, usual: int, last: int) -> Finding:
    """Return the regimes of the few seeds that were trained on; together with the others they are no sample."""
    done = events[events["regime"] != "not yet"]
    counts = {kind: int((done["regime"] == kind).sum()) for kind in KINDS}
    e = share(counts["fast"], max(1, len(done)))
    text = f"{len(events)} seeds were trained beyond step {usual:,}, up to {last:,}: {len(done)} of them generalised"
    if len(done):
        text += f", {', '.join(f'{n} {kind}' for kind, n in counts.items() if n)} (fast: {e.percent()})"
    return Finding("regimes of longer runs", f"{counts['fast']} of {len(done)} fast", f"{text}.", headline=True)


def _norm_after(done: pd.DataFrame, task: str) -> Finding:
    """Return the share of seeds whose norm fell after they generalised: the sign of the fast regime."""
    n = len(done)
    ties = int((done["fall"] == done["grokked"]).sum())
    after = int((np.isfinite(done["fall"]) & (done["fall"] > done["grokked"])).sum())
    never = int(np.isinf(done["fall"]).sum())
    e = share(after, n)
    text = f"In {after} of {n} generalised seeds ({task}) the weight norm fell after they generalised: {e.percent()}"
    if never:
        text += f"; in {never} more it had not fallen when they ended"
    if ties:
        text += f"; in {ties} more it fell at the evaluation that shows generalisation"
    if not after and not never and not ties:
        text += ". No second regime is seen: if there is one, it has at most "
        text += f"{100 * e.high:.0f}% of the seeds that generalise within such a budget (95%)"
    return Finding("norm falls after generalising", e.percent(), f"{text}.", e)


def _check_by_clustering(study: Regimes, done: pd.DataFrame) -> None:
    if len(done) < FEWEST:
        study.notes.append(
            f"Clustering: not enough data, needs at least {FEWEST} generalised runs (seen: {len(done)})."
        )
        return
    clear = done["regime"].isin(["slow", "fast"]).to_numpy()
    if min((done["regime"] == kind).sum() for kind in ("slow", "fast")) < FEWEST / 2:
        study.notes.append(
            "Clustering: the rule gives (nearly) all seeds the same label, so there are no two groups to compare."
        )
        return
    label = clusters(done)
    study.events.loc[done.index, "cluster"] = label
    agree = int(((done["regime"] == "slow").to_numpy() == (label == 1))[clear].sum())
    e = wilson(agree, int(clear.sum()))
    study.findings.append(
        Finding(
            "rule and clustering agree",
            e.percent(),
            f"A clustering without the rule (k-means on climb and lag) puts {e.percent()} of the {e.n} clearly "
            "labelled seeds into the same group as the rule.",
            e,
        )
    )


def _timing(study: Regimes, done: pd.DataFrame) -> None:
    try:
        e = spearman(done["climb"].to_numpy(dtype=float), done["grokked"].to_numpy(dtype=float))
    except NotEnoughData:
        return
    study.findings.append(
        Finding(
            "climb and time",
            f"{e.value:.2f} ({e.low:.2f} to {e.high:.2f})",
            f"Rank correlation between the climb of the validation loss and the step of generalisation: "
            f"{e.value:.2f} ({e.low:.2f} to {e.high:.2f}), n = {e.n}.",
            e,
        )
    )


def _table(done: pd.DataFrame) -> Table:
    records = []
    for regime, group in done.groupby("regime", sort=True):
        steps = group[list(EVENTS)].replace(np.inf, np.nan)
        records.append(
            {
                "regime": regime,
                "seeds": len(group),
                **{name: steps[column].median() for column, name in EVENTS.items()},
                "norm never fell": int(steps["fall"].isna().sum()),
                "generalised / loss peak": _middle(steps["grokked"] / steps["loss_peak"]),
                "climb of val loss": _middle(group["climb"]),
            }
        )
    return Table("events", "Events by regime: median steps", pd.DataFrame(records))


def _middle(ratios: pd.Series) -> float:
    """Return the median of the finite ratios; a loss of 0 or a peak at step 0 gives an infinite one."""
    return round(float(ratios.replace(np.inf, np.nan).median()), 2)


def _orders(done: pd.DataFrame) -> Table:
    records = []
    for regime, group in done.groupby("regime", sort=True):
        for order, runs in group["order"].value_counts(sort=True).head(MOST_ORDERS).items():
            e = share(int(runs), len(group))
            records.append({"regime": regime, "order": str(order), "seeds": int(runs), "share": e.percent(0)})
    caption = f"Order of the events (the {MOST_ORDERS} most frequent of each regime; =: at the same evaluation)"
    return Table("orders", caption, pd.DataFrame(records))


def _block_norms(curves: pd.DataFrame, done: pd.DataFrame) -> Table | None:
    if "block_norms" not in curves:
        return None
    at = curves[curves["step"] == curves["run_id"].map(done["grokked"])].dropna(subset=["block_norms"])
    start = curves.dropna(subset=["block_norms"]).drop_duplicates("run_id")
    if at.empty:
        return None

    def parts(evaluations: pd.DataFrame) -> pd.DataFrame:
        norms = pd.DataFrame([json.loads(text) for text in evaluations["block_norms"]])
        return norms.groupby(evaluations["run_id"].map(done["regime"]).to_numpy()).median()

    grown = (parts(at) / parts(start[start["run_id"].isin(at["run_id"])])).T
    grown = grown.replace(np.inf, np.nan)  # a norm that starts at 0 has no growth
    frame = grown.round(2).rename_axis("component").reset_index()
    frame.columns = [str(c) if c == "component" else f"{c}: growth" for c in frame.columns]
    caption = "Weight norm of each component at generalisation, divided by that at the first evaluation (medians)"
    return Table("block_norms", caption, frame, open=False)


QUESTION = Question(
    "regimes",
    "Slow and fast regimes",
    "Do fast seeds generalise in a different way, or in the same way but sooner?",
    "grok sweep sweep=long_census",
    analyse,
    has_populations,
    reads_designs=True,
)
