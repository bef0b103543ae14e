"""One setting at a time: weight decay, and every other intervention (REQUIREMENTS N5).

A family is all runs that differ in one setting only (seeds aside). Each value of the
setting is compared with the reference: the default where it was run, otherwise the value
with most runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.criteria import DIARY, UNJUDGED
from analysis.observations import CONDITION_SETTINGS, Observations, default_settings, floats, varying_columns
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.multiplicity import holm
from analysis.statistics.proportions import ratio, share
from analysis.statistics.survival import SurvivalCurve, Times, kaplan_meier, logrank, quantile
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.census import judged

FEWEST = 5
"""Runs of a value below which it is not compared."""
WEIGHT_DECAY = "optim.weight_decay"


@dataclass(frozen=True)
class Family:
    """Runs that differ in ``setting`` alone, by its value (as text); the reference first."""

    setting: str
    groups: dict[str, pd.DataFrame]


@dataclass(kw_only=True)
class Comparison(Study):
    """Families and their curves, for the figures."""

    families: list[tuple[Family, dict[str, SurvivalCurve], float]]


def families(observations: Observations, settings: tuple[str, ...]) -> list[Family]:
    """Return, for each setting, the largest family in which it takes at least two values."""
    rows = observations.arithmetic
    rows = rows[(rows["layers"] == "{}") & (rows["config.perturb.ulps"].fillna(0) == 0)] if len(rows) else rows
    columns = varying_columns(rows) if len(rows) else []
    found = []
    for setting in settings:
        column = f"config.{setting}"
        if column not in columns:
            continue
        others = [c for c in columns if c != column]
        base = rows.groupby(others, dropna=False, sort=True).ngroup() if others else pd.Series(0, index=rows.index)
        best: dict[str, pd.DataFrame] = {}
        for _, family in rows.groupby(base, sort=True):
            groups = {_text(v): g for v, g in family.groupby(column, dropna=False, sort=True) if len(g) >= FEWEST}
            if len(groups) >= 2 and sum(map(len, groups.values())) > sum(map(len, best.values())):
                best = groups
        if best:
            default = _text(default_settings()[setting])
            reference = default if default in best else max(best, key=lambda v: len(best[v]))
            found.append(Family(setting, {reference: best[reference], **best}))
    return found


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def analyse_settings(observations: Observations, question: Question, settings: tuple[str, ...]) -> Comparison:
    """Compare the values of each of ``settings``.

    Raises:
        NotEnoughData: none of them has two values with at least ``FEWEST`` runs.
    """
    found = families(observations, settings)
    if not found:
        raise NotEnoughData(f"at least {FEWEST} runs of two values of one setting, all other settings equal")
    study = Comparison(name=question.name, title=question.title, question=question.question, families=[])
    for family in found:
        _family(observations, study, family)
    return study


def _family(observations: Observations, study: Comparison, family: Family) -> None:
    times = {value: observations.times(rows) for value, rows in family.groups.items()}
    budget = max(float(floats(rows["config.train.steps"]).max()) for rows in family.groups.values())
    study.families.append((family, {v: kaplan_meier(t) for v, t in times.items()}, budget))
    (reference, base), *others = times.items()
    tests = {}
    for value, t in others:
        try:
            tests[value] = logrank([base, t])
        except NotEnoughData:
            continue
    adjusted = dict(zip(tests, holm([t.p for t in tests.values()]), strict=True)) if tests else {}
    supers = {value: _supers(observations, rows) for value, rows in family.groups.items()}
    records = []
    for value, t in times.items():
        hits, n, horizon = supers[value]
        records.append(
            {
                family.setting: value + (" (reference)" if value == reference else ""),
                "runs": len(t),
                "generalised": int(t.seen.sum()),
                "median step": _median(t),
                f"super at step {DIARY.horizon:,}" if horizon == DIARY.horizon else "super at their last step": share(
                    hits, n
                ).percent()
                if n
                else "",
                "log-rank p (Holm)": f"{adjusted[value]:.2g}" if value in adjusted else "",
            }
        )
    name = family.setting.replace(".", "_")
    study.tables.append(Table(name, f"{family.setting}: each value against {reference}", pd.DataFrame(records)))
    for value, t in others:
        if value in adjusted:
            verdict = "another pace" if adjusted[value] < 0.05 else "no difference in pace that chance would not give"
            study.findings.append(
                Finding(
                    f"{family.setting}={value}",
                    _median(t),
                    f"{family.setting}={value} against {reference}: median step {_median(t)} against {_median(base)}; "
                    f"log-rank p = {adjusted[value]:.2g} after Holm: {verdict}.",
                    headline=len(others) <= 6,
                )
            )
        (a, n, _), (b, m, _) = supers[value], supers[reference]
        if n and m and a + b:
            e = ratio(a, n, b, m)
            study.findings.append(
                Finding(
                    f"super seeds at {family.setting}={value}",
                    f"{e.value:.2f} times",
                    f"Super seeds are {e.value:.2f} times as frequent ({e.low:.2f} to {e.high:.2f}) at "
                    f"{family.setting}={value} ({a} of {n}) as at {reference} ({b} of {m}).",
                    e,
                )
            )


def _median(times: Times) -> str:
    try:
        return quantile(times).plain()
    except NotEnoughData:
        last = float(np.max(times.left)) if len(times) else 0.0
        return f"not within {last:,.0f}"


def _supers(observations: Observations, rows: pd.DataFrame) -> tuple[int, int, int]:
    labelled, horizon = judged(observations, rows)
    known = labelled[labelled["label"] != UNJUDGED]
    return int((known["label"] == "super").sum()), len(known), horizon


WEIGHT_DECAY_QUESTION = Question(
    "weight_decay",
    "Weight decay",
    "Does a seed need weight decay to generalise, and to be super?",
    "python -m grok.run -m sweep=weight_decay",
    lambda observations, question: analyse_settings(observations, question, (WEIGHT_DECAY,)),
    lambda observations: bool(families(observations, (WEIGHT_DECAY,))),
)
OTHERS = tuple(s for s in CONDITION_SETTINGS if s != WEIGHT_DECAY)
INTERVENTIONS_QUESTION = Question(
    "interventions",
    "Interventions",
    "What happens when one setting is changed and the seeds are not?",
    "python -m grok.run -m sweep=train_fraction",
    lambda observations, question: analyse_settings(observations, question, OTHERS),
    lambda observations: bool(families(observations, OTHERS)),
)
