"""Time to generalise as survival data (REQUIREMENTS N5, N6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.observations import Observations, floats
from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.mixture import FEWEST, Mixture, dip, log_mixture
from analysis.statistics.resampling import generator
from analysis.statistics.survival import (
    SurvivalCurve,
    Times,
    kaplan_meier,
    quantile,
    restricted_mean,
    watched_until,
)
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.census import QUESTION as CENSUS
from analysis.studies.census import groups


@dataclass(kw_only=True)
class Survival(Study):
    """Times of the condition with most random seeds."""

    times: Times
    curve: SurvivalCurve
    memorised: Times
    memorised_curve: SurvivalCurve
    end: float
    """Step up to which enough seeds were watched."""
    mixture: Mixture | None = None


def analyse(observations: Observations, question: Question) -> Survival:
    """Answer for the condition with most random seeds.

    Raises:
        NotEnoughData: fewer than five seeds, or none that generalised.
    """
    conditions = observations.once(groups)
    rows = conditions[0] if conditions else observations.arithmetic
    if len(rows) < 5:
        raise NotEnoughData(f"at least five random seeds of one condition (seen: {len(rows)})")
    times, memorised = observations.times(rows), observations.times(rows, "memorised_step")
    if not times.seen.any():
        raise NotEnoughData(f"at least one seed that generalised (none of {len(rows)} did within its budget)")
    study = Survival(
        name=question.name,
        title=question.title,
        question=question.question,
        times=times,
        curve=kaplan_meier(times),
        memorised=memorised,
        memorised_curve=kaplan_meier(memorised),
        end=watched_until(times),
    )
    longest = float(floats(rows["config.train.steps"]).max())
    if study.end < longest:
        beyond = int((times.points > study.end).sum())
        if beyond:
            study.notes.append(
                f"Only {beyond} of {len(rows)} seeds were watched beyond step {study.end:,.0f}, too few for a curve: "
                "the figure, the shares and the mean end there."
            )
    _quantiles(study, min(longest, study.end))
    _gap(study, rows)
    _modes(study, floats(rows["config.train.steps"]))
    return study


def _quantiles(study: Survival, budget: float) -> None:
    records = []

    def add(label: str, estimate: Estimate, text: str, headline: bool = False) -> None:
        study.findings.append(Finding(label, estimate.plain(), text, estimate, headline))

    for q in (0.1, 0.25, 0.5, 0.75, 0.9):
        try:
            e = quantile(study.times, q)
        except NotEnoughData:
            continue
        high = e.high if np.isfinite(e.high) else None
        records.append({"share of seeds": f"{q:.0%}", "by step": e.value, "low": e.low, "high": high})
        if q == 0.5:
            text = f"Half of the seeds have generalised by step {e.plain()} (censored runs respected, n = {e.n})."
            add("median step of generalisation", e, text, headline=True)
    if not any(f.headline for f in study.findings):
        seen = int(study.times.seen.sum())
        study.notes.append(
            f"No median: {seen} of {len(study.times)} seeds generalised within their budget. A long census of at "
            "least 40 seeds gives one: python -m grok.run -m sweep=long_census"
        )
    try:
        e = restricted_mean(study.times, budget)
        add("restricted mean", e, f"Up to step {budget:,.0f} a seed takes {e.plain()} steps on average.")
    except NotEnoughData:
        pass
    study.tables.append(Table("quantiles", "By which step a share of the seeds has generalised", pd.DataFrame(records)))


def _gap(study: Survival, rows: pd.DataFrame) -> None:
    try:
        e = quantile(study.memorised, 0.5)
    except NotEnoughData:
        return
    study.findings.append(
        Finding("median step of memorising", e.plain(), f"Half of the seeds have memorised by step {e.plain()}.", e)
    )
    grokked, memorised = floats(rows["grokked_step"]), floats(rows["memorised_step"])
    both = np.isfinite(grokked) & np.isfinite(memorised) & (memorised > 0)
    if both.sum() >= 5 and both.mean() > 0.5:
        ratio = grokked[both] / memorised[both]
        middle = f"{np.quantile(ratio, 0.25):.1f} to {np.quantile(ratio, 0.75):.1f}"
        study.findings.append(
            Finding(
                "gap",
                f"{np.median(ratio):.1f} times",
                f"Among the {int(both.sum())} seeds that did both, generalising came "
                f"{np.median(ratio):.1f} times as late as memorising (middle half {middle}).",
            )
        )


def _modes(study: Survival, budgets: np.ndarray) -> None:
    # The dip test drops censored runs, which is fair only among runs of one budget: the longest with enough events.
    for budget in np.unique(budgets)[::-1]:
        same = (budgets >= budget) & (study.times.right <= budget)
        if same.sum() >= FEWEST:
            found = dip(study.times.take(same), generator("dip"))
            verdict = "more than one group of seeds" if found.p < 0.05 else "no sign of more than one group"
            study.findings.append(
                Finding(
                    "one mode or two",
                    f"p = {found.p:.3g}",
                    f"Dip test on log time, n = {found.n}: p = {found.p:.3g}, {verdict}.",
                )
            )
            break
    try:
        mixture = log_mixture(study.times)
    except NotEnoughData as gap:
        study.notes.append(f"Two groups or one: not enough data, needs {gap.needs}.")
        return
    if mixture.bic_gain > 10:
        study.mixture = mixture
        e = mixture.share
        study.findings.append(
            Finding(
                "share of the fast group",
                e.percent(),
                f"Two log-normal groups describe the times better than one (BIC gain {mixture.bic_gain:.0f}): "
                f"{e.percent()} of the seeds around step {mixture.fast.median:,.0f}, the others around step "
                f"{mixture.slow.median:,.0f}.",
                e,
                headline=True,
            )
        )
    else:
        study.findings.append(
            Finding(
                "share of the fast group",
                "one group",
                f"One log-normal group describes the times as well as two (BIC gain {mixture.bic_gain:.1f}, "
                "10 would be strong).",
            )
        )


QUESTION = Question(
    "survival",
    "Time to generalise",
    "How long does a seed take, and are there two kinds of seeds?",
    "python -m grok.run -m sweep=long_census",
    analyse,
    CENSUS.applies,
)
