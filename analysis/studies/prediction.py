"""Prediction of super seeds from the first steps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd

from grok.analysis.criteria import DIARY, UNJUDGED, called, restricted_log_time
from grok.analysis.observations import Observations, floats
from grok.analysis.populations import Population
from grok.analysis.statistics import prediction
from grok.analysis.statistics.estimate import Estimate, NotEnoughData, generator
from grok.analysis.statistics.proportions import share
from grok.analysis.studies.base import Beside, Question, Study, by_population, has_populations
from grok.analysis.studies.census import judged

MOST_POPULATIONS = 6
"""Largest number of populations with an answer."""
FEW = (0.05, 0.1, 0.2)
"""Shares of seeds that a screen by the validation loss alone continues."""
MOST_STEPS = 12
"""Largest number of steps at which one measure alone is judged."""


@dataclass(kw_only=True)
class Prediction(Study):
    """AUROC of the validation loss by step, of one population."""

    population: Population
    looks: pd.DataFrame
    """Per step: auroc of the validation loss, low, high, lead, already there (share of the hits)."""
    meaning: str


def labels(observations: Observations, population: Population) -> tuple[np.ndarray, pd.DataFrame, str, pd.Series]:
    """Return the labels to predict (n,), their runs, their meaning in words, and how each run ends (more is better).

    Hits are super seeds; if there are too few, super and fast seeds; if there are too few, the fastest quarter.

    Off the diary's task the classes are called by their thresholds, which were made for it.

    Raises:
        NotEnoughData: none of them gives ``FEWEST`` hits and misses.
    """
    rows = population.rows
    labelled, horizon = judged(observations, rows)
    known = labelled[labelled["label"] != UNJUDGED]
    for classes in (("super",), ("super", "fast")):
        hit = known["label"].isin(classes).to_numpy()
        if min(hit.sum(), len(hit) - hit.sum()) >= prediction.FEWEST and hit.mean() <= 0.5:
            return (
                hit,
                known,
                f"{called(rows.iloc[0], *classes)} at step {horizon:,}",
                known["accuracy"].fillna(-1).rename("the last accuracy"),
            )
    y = restricted_log_time(observations, rows).values
    hit = y <= np.quantile(y, 0.25)
    few, seen = prediction.FEWEST, (int(hit.sum()), int((~hit).sum()))
    if min(seen) < few:
        raise NotEnoughData(f"at least {few} seeds of either kind (seen: {seen[0]} and {seen[1]})")
    meaning = "among the fastest " + ("quarter" if hit.mean() < 0.3 else f"{hit.mean():.0%}")  # ties count
    return hit, rows, meaning, pd.Series(-y, rows.index, name="the speed")


def one(observations: Observations, population: Population) -> Prediction:
    """Return the answer for one population.

    Raises:
        NotEnoughData: too few hits or misses, or too few evaluations before the first seeds generalise.
    """
    rows = population.rows
    if len(rows) < 2 * prediction.FEWEST:
        raise NotEnoughData(f"at least {2 * prediction.FEWEST} seeds (seen: {len(rows)})")
    hit, rows, meaning, ends = labels(observations, population)
    curves = observations.curves_of(rows.index)
    grokked = floats(rows["grokked_step"])
    kept = rows[rows["status"] != "diverged"]  # one that broke early would leave no step that all have
    shortest = float((kept if len(kept) else rows)["steps"].min())
    first = float(np.nanmin(grokked)) if np.isfinite(grokked).any() else shortest
    common = curves[curves["step"] > 0].groupby("step")["run_id"].nunique()
    steps = [int(s) for s in common.index[common >= 0.95 * len(rows)] if s < max(first, 1) * 2 and s < shortest]
    if len(steps) < 2:
        raise NotEnoughData("at least two common evaluations before the seeds part (a smaller eval.every)")
    decided = DIARY.horizon_of(rows) if meaning.startswith("super at") else np.inf  # nobody has to train longer
    early = [s for s in steps if s < decided]
    if not early:
        raise NotEnoughData("an evaluation before the step of judgement (a smaller eval.every)")
    picks = early[:: -(-len(early) // MOST_STEPS)]
    wide = curves.pivot(index="run_id", columns="step", values=["val_loss", "val_acc"]).reindex(rows.index)
    scores = {step: np.nan_to_num(-floats(wide["val_loss", step]), nan=-np.inf) for step in picks}
    # A seed that has not generalised yet does so later than any step: half of the seeds may not have arrived.
    arrival = float(np.sort(np.nan_to_num(grokked[hit], nan=np.inf))[(int(hit.sum()) - 1) // 2])
    arrival = arrival if np.isfinite(arrival) else float("nan")
    looks, records = [], []
    for step, score in scores.items():
        e = prediction.auroc(score, hit)
        here = {"step": step, "auroc": e.value, "low": e.low, "high": e.high, "lead": np.round(arrival - step)}
        looks.append({**here, "already there": float((grokked[hit] <= step).mean())})
        by_accuracy = prediction.auroc(floats(wide["val_acc", step].fillna(-1)), hit)
        record = {
            "step": step,
            "AUROC of the validation loss": e.plain(2),
            "AUROC of the accuracy": by_accuracy.plain(2),
        }
        with suppress(NotEnoughData):
            record[f"rank correlation of the loss with {ends.name}"] = prediction.spearman(score, floats(ends)).plain(2)
        records.append(record)
    study = Prediction(population=population, looks=pd.DataFrame(looks), meaning=meaning)
    _findings(study, hit, arrival)
    caption = f"Seeds {meaning} ({int(hit.sum())} of {len(hit)}) by one measure alone, with 95% intervals"
    study.tabulate("recognised", caption, records, open=False)
    if np.isfinite(decided):
        _screen(study, scores, hit, np.minimum(floats(rows["steps"]), decided))
    return study


def _screen(study: Prediction, scores: dict[int, np.ndarray], hit: np.ndarray, lengths: np.ndarray) -> None:
    """Add what a screen by the loss (``scores`` by step, a lower loss first) costs for each super seed.

    Step and share of the screen are chosen on half of the seeds and measured on the other.
    """

    def steps_and_hits(option: tuple[int, float], among: np.ndarray) -> tuple[float, int]:
        step, kept = option
        missed, cost = prediction.screened(scores[step][among], hit[among], kept, step, lengths[among])
        return cost * float(lengths[among].sum()), int(hit[among].sum()) - missed

    def a_hit(option: tuple[int, float], among: np.ndarray) -> float:
        trained, hits = steps_and_hits(option, among)
        return trained / hits if hits else np.inf

    half = prediction.half_of(hit, generator("screen by loss halves"))
    options = [(step, kept) for step in scores for kept in FEW]
    measured = [
        (*(choice := min(options, key=lambda option: a_hit(option, pick))), *steps_and_hits(choice, ~pick))
        for pick in (half, ~half)
    ]
    trained, hits = (sum(numbers) for numbers in list(zip(*measured, strict=True))[2:])
    blind = price(float(lengths.sum()), int(hit.sum()), len(hit))
    screened_by_loss = price(float(trained), int(hits), len(hit))
    chosen = " and ".join(f"{kept:.0%} at step {step:,}" for step, kept, *_ in measured)
    text = (
        f"A blind search trains {blind} steps for each super seed. If only a share with the lowest validation loss "
        f"goes on, it is {screened_by_loss} (chosen on one half of the seeds, measured on the other: {chosen})."
    )
    study.tell("steps for each super seed, screened by loss", screened_by_loss, text)
    study.tell("steps for each super seed, blind", blind, text, listed=False)


def price(trained: float, hits: int, n: int) -> str:
    """Return the steps trained for each hit, with its interval from that of the share of hits among ``n`` seeds."""
    rate = share(hits, n)
    price = [trained / n / x if x else np.inf for x in (rate.value, rate.high, rate.low)]
    return Estimate(price[0], price[1], price[2], n, rate.method).short()


def _findings(study: Prediction, hit: np.ndarray, arrival: float) -> None:
    looks = study.looks
    early = looks[(looks["already there"] < 0.05) & (np.isfinite(arrival) | (looks["step"] <= looks["step"].max() / 2))]
    row = (early if len(early) else looks).iloc[-1]
    value, low, high = row[["auroc", "low", "high"]].astype(float)
    e = Estimate(value, low, high, len(hit), "Newcombe's fifth")
    differs = "lower" if e.low > 0.5 else "higher" if e.high < 0.5 else "not seen to differ"
    text = (
        f"At step {row['step']:,.0f} the validation loss of seeds {study.meaning} is {differs}: AUROC {e.plain(2)} (1: "
        f"theirs is lower in every pair, 0.5: chance; {int(hit.sum())} of {len(hit)})"
    )
    lead = f", {row['lead']:,.0f} steps before half of these seeds generalise." if np.isfinite(arrival) else "."
    study.tell("prediction (AUROC)", e.plain(2), text + lead, e, headline=True)


QUESTION = Question(
    "prediction",
    "Prediction",
    "Do the first steps tell which seeds will generalise first?",
    "grok sweep sweep=census",
    by_population(one, Beside(), most=MOST_POPULATIONS),
    has_populations,
    reads_designs=True,
    of_seeds=True,
)
