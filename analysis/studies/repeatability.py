"""Is a super seed a property of the seed? Repeats under other conditions (REQUIREMENTS N9)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.observations import Observations, describe_task
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.repeatability import Confirmation, Repeatability, confirm, repeatability
from analysis.statistics.resampling import generator
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.outcomes import outcome

FEWEST = 5
"""Candidates below which nothing is scored."""
TESTS = {
    "whole seed": (("split", "init", "order"), "all seeds equal, weights moved by a unit in the last place, other "
                   "devices or lane widths"),
    "init": (("init",), "the same initial weights under other orders and splits"),
    "order": (("order",), "the same batch order under other weights and splits"),
    "split": (("split",), "the same split under other weights and orders"),
}  # fmt: skip
"""What is held fixed, and what a repeat changes."""


@dataclass(frozen=True)
class Test:
    """One kind of repeat."""

    name: str
    meaning: str
    units: pd.DataFrame
    """Per candidate: seeds, runs, score, p, q."""
    result: Repeatability
    confirmation: Confirmation | None


@dataclass(kw_only=True)
class Repeats(Study):
    """Scores for each kind of repeat that the store holds."""

    tests: list[Test]


def table_of(observations: Observations, fixed: tuple[str, ...]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (units × conditions outcome table, units' seeds) of the condition with most repeated units."""
    rows = observations.computations
    rows = rows[rows["layers"] == "{}"]
    if rows.empty:
        raise NotEnoughData("runs")
    settings = observations.conditions(rows)
    unit_columns = [f"seed_{s}" for s in fixed]
    free = [f"seed_{s}" for s in ("split", "init", "order") if s not in fixed]
    perturbed = rows["config.perturb.ulps"].fillna(0).astype(int)
    kick = pd.Series(np.where(perturbed > 0, rows["seed_perturb"], -1), index=rows.index)
    columns = pd.DataFrame(
        {**{c: rows[c] for c in free}, "ulps": perturbed, "kick": kick, "numerics": rows["numerics"]}
    )
    rows = rows.assign(
        _unit=rows.groupby(unit_columns).ngroup(),
        _condition=columns.groupby(list(columns.columns), dropna=False).ngroup(),
        _settings=settings,
    )
    best: pd.DataFrame | None = None
    for _, group in rows.groupby("_settings", sort=True):
        repeats = group.groupby("_unit")["_condition"].transform("nunique")
        kept = group[repeats >= 2]
        shared = kept.groupby("_condition")["_unit"].transform("nunique")
        kept = kept[shared >= FEWEST]
        if best is None or kept["_unit"].nunique() > best["_unit"].nunique():
            best = kept
    if best is None or best["_unit"].nunique() < FEWEST:
        raise NotEnoughData(f"at least {FEWEST} candidates, each run under the same two conditions or more")
    best = best.assign(_y=outcome(observations, best).values)
    values = best.pivot_table(index="_unit", columns="_condition", values="_y", aggfunc="mean")
    seeds = best.drop_duplicates("_unit").set_index("_unit")[[*unit_columns, "seed"]].reindex(values.index)
    return values, seeds


def analyse(observations: Observations, question: Question) -> Repeats:
    """Answer for every kind of repeat that has the data.

    Raises:
        NotEnoughData: none has.
    """
    tests, gap = [], NotEnoughData("repeated runs")
    for name, (fixed, meaning) in TESTS.items():
        try:
            values, seeds = table_of(observations, fixed)
            array = values.to_numpy(dtype=float)
            result = repeatability(array, generator(f"repeatability {name}"), draws=500)
        except NotEnoughData as problem:
            gap = problem
            continue
        try:
            top = len(values) // 5
            if top < 3:
                raise NotEnoughData("15 candidates to confirm the best fifth of them")
            confirmation = confirm(array, top, generator(f"confirm {name}"), draws=500)
        except NotEnoughData:
            confirmation = None
        units = seeds.assign(runs=np.isfinite(array).sum(1), score=result.scores, p=result.p, q=result.q).sort_values(
            "score", ascending=False
        )
        tests.append(Test(name, meaning, units, result, confirmation))
    if not tests:
        raise gap
    study = Repeats(name=question.name, title=question.title, question=question.question, tests=tests)
    study.notes.append(
        f"Task: {describe_task(observations.arithmetic.iloc[0])}. Score 1: the fastest under every condition, "
        "0.5: what chance gives. p-values come from shuffling seeds inside each condition."
    )
    for test in tests:
        _findings(study, test)
    return study


def _findings(study: Repeats, test: Test) -> None:
    a, n = test.result.agreement, len(test.units)
    shown = f"{a.value:.2f} ({a.low:.2f} to {a.high:.2f})"
    found = int((test.units["q"] <= 0.05).sum())
    study.findings.append(
        Finding(
            f"repeatability of the {test.name}",
            shown,
            f"{test.name} ({test.meaning}): rank correlation between two conditions {shown}, p = "
            f"{test.result.agreement_p:.2g}; {test.result.conditions} conditions. {found} of {n} candidates "
            "are faster than chance at a false-discovery rate of 5%.",
            a,
            headline=True,
        )
    )
    if test.confirmation:
        c = test.confirmation
        study.findings.append(
            Finding(
                f"best {test.name} candidates, confirmed",
                f"{c.confirmed.value:.2f} ({c.confirmed.low:.2f} to {c.confirmed.high:.2f})",
                f"The best {c.picked} scored {c.found:.2f} where they were picked and {c.confirmed.value:.2f} "
                f"({c.confirmed.low:.2f} to {c.confirmed.high:.2f}) on the conditions that did not pick them "
                f"(p = {c.p:.2g}): the difference is the winner's curse.",
                c.confirmed,
            )
        )
    top = test.units.head(15).copy()
    for column in [c for c in top if str(c).startswith("seed")]:
        top[column] = top[column].astype(str)
    top[["score", "p", "q"]] = top[["score", "p", "q"]].round(3)
    study.tables.append(
        Table(f"scores_{test.name.replace(' ', '_')}", f"Best candidates: {test.name}", top, open=False)
    )


QUESTION = Question(
    "repeatability",
    "Is it the seed?",
    "Does a fast seed stay fast when the run is repeated under other conditions?",
    "python -m grok.run -m sweep=repeatability",
    analyse,
    lambda observations: bool(
        (observations.computations["config.perturb.ulps"].fillna(0) > 0).any()
        or observations.computations["seed_init"].duplicated().any()
    ),
)
