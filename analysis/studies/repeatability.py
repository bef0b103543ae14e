"""Is a super seed a property of the seed? Repeats under other conditions (REQUIREMENTS N9)."""

from __future__ import annotations

from collections.abc import Sequence
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
STREAMS = ("split", "init", "order")
TESTS = {
    "whole seed": ("split", "init", "order"),
    "split + init": ("split", "init"),
    "split + order": ("split", "order"),
    "init + order": ("init", "order"),
    "init": ("init",),
    "order": ("order",),
    "split": ("split",),
}
"""What is held fixed; a repeat redraws the other streams."""
WORDS = {"split": "split", "init": "initial weights", "order": "batch order"}


@dataclass(frozen=True)
class Test:
    """One kind of repeat."""

    name: str
    fixed: tuple[str, ...]
    units: pd.DataFrame
    """Per candidate: seeds, conditions, score, p, q."""
    result: Repeatability
    confirmation: Confirmation | None

    @property
    def free(self) -> tuple[str, ...]:
        """The streams that a repeat redraws; none: a unit in the last place, a device or a lane width."""
        return tuple(s for s in STREAMS if s not in self.fixed)


@dataclass(kw_only=True)
class Repeats(Study):
    """Scores for each kind of repeat that the store holds."""

    tests: list[Test]


def table_of(
    observations: Observations, fixed: tuple[str, ...]
) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray | None]:
    """Return a table of outcomes (units × conditions), the units' seeds, and which conditions are related.

    It is about the settings with most repeated units. Where a stream is redrawn a condition
    is a value of the free seeds, and perturbed repeats of one run are averaged: they are no
    independent witnesses. Two conditions are related if they have one of the free seeds in
    common (None: they cannot).
    """
    rows = observations.computations
    rows = rows[rows["layers"] == "{}"]
    if rows.empty:
        raise NotEnoughData("runs")
    settings = observations.conditions(rows)
    unit_columns = [f"seed_{s}" for s in fixed]
    free = [f"seed_{s}" for s in STREAMS if s not in fixed]
    perturbed = rows["config.perturb.ulps"].fillna(0).astype(int)
    kick = pd.Series(np.where(perturbed > 0, rows["seed_perturb"], -1), index=rows.index)
    columns = rows[free] if free else pd.DataFrame({"ulps": perturbed, "kick": kick, "numerics": rows["numerics"]})
    # Few columns: the runs of every setting are cut out of this table in turn.
    narrow = rows[[*unit_columns, *free, "seed"]].assign(
        _unit=rows.groupby(unit_columns).ngroup(),
        _condition=columns.groupby(list(columns.columns), dropna=False).ngroup(),
        _settings=settings,
    )
    best: pd.DataFrame | None = None
    for _, group in narrow.groupby("_settings", sort=True):
        repeats = group.groupby("_unit")["_condition"].transform("nunique")
        kept = group[repeats >= 2]
        shared = kept.groupby("_condition")["_unit"].transform("nunique")
        kept = kept[shared >= FEWEST]
        # A candidate that lost its other conditions to this is no repeat any more.
        kept = kept[kept.groupby("_unit")["_condition"].transform("nunique") >= 2]
        if best is None or kept["_unit"].nunique() > best["_unit"].nunique():
            best = kept
    if best is None or best["_unit"].nunique() < FEWEST:
        raise NotEnoughData(f"at least {FEWEST} candidates, each run under the same two conditions or more")
    best = best.assign(_y=outcome(observations, rows.loc[best.index]).values)
    values = best.pivot_table(index="_unit", columns="_condition", values="_y", aggfunc="mean")
    seeds = best.drop_duplicates("_unit").set_index("_unit")[[*unit_columns, "seed"]].reindex(values.index)
    if set(fixed) != set(STREAMS):
        seeds = seeds.drop(columns="seed")  # the master seed names all streams, and some of them are redrawn
    if len(free) < 2:
        return values, seeds, None
    of = best.drop_duplicates("_condition").set_index("_condition")[free].reindex(values.columns).to_numpy()
    related = (of[:, None, :] == of[None, :, :]).any(-1) & ~np.eye(len(of), dtype=bool)
    return values, seeds, related


def analyse(observations: Observations, question: Question) -> Repeats:
    """Answer for every kind of repeat that has the data.

    Raises:
        NotEnoughData: none has.
    """
    tests, gap = [], NotEnoughData("repeated runs")
    for name, fixed in TESTS.items():
        try:
            values, seeds, related = table_of(observations, fixed)
            array = values.to_numpy(dtype=float)
            shared = [seeds[f"seed_{s}"].to_numpy() for s in fixed]
            clusters = [labels for labels in shared if len(np.unique(labels)) < len(labels)]
            result = repeatability(array, generator(f"repeatability {name}"), related=related, clusters=clusters)
        except NotEnoughData as problem:
            gap = problem
            continue
        try:
            top = len(values) // 5
            # Picked candidates that share a seed, or conditions that do, are no independent confirmation.
            if top < 3 or (len(fixed) < len(STREAMS) and (related is not None or clusters)):
                raise NotEnoughData("15 candidates that share no seed to confirm the best fifth of them")
            confirmation = confirm(array, top, generator(f"confirm {name}"), draws=500)
        except NotEnoughData:
            confirmation = None
        units = seeds.assign(
            conditions=np.isfinite(array).sum(1), score=result.scores, p=result.p, q=result.q
        ).sort_values("score", ascending=False)
        tests.append(Test(name, fixed, units, result, confirmation))
    if not tests:
        raise gap
    study = Repeats(name=question.name, title=question.title, question=question.question, tests=tests)
    study.notes.append(
        f"Task: {describe_task(observations.arithmetic.iloc[0])}. Candidates are ranked inside each condition; score "
        "1: the fastest under every condition, 0.5: what chance gives. The rank correlation is between two conditions: "
        "1 if the same candidates are fast under both, 0 if the first says nothing about the second. A candidate is "
        "reliably faster if its mean score is above 0.5 by more than repeats move it (false-discovery rate 5%)."
    )
    if any(len(test.free) > 1 for test in tests):
        study.notes.append(
            "Where two streams are redrawn, only pairs of conditions that have neither in common count: a lucky "
            "combination of two seeds is not a property of one."
        )
    for test in tests:
        _findings(study, test)
    return study


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def what_repeats(test: Test) -> str:
    """Return what is held fixed and what a repeat changes, in words."""
    if not test.free:
        kept, changed = "All seeds kept", "initial weights moved by a unit in the last place (or another device)"
    else:
        kept = f"{_listed([WORDS[s] for s in test.fixed]).capitalize()} kept"
        changed = f"{_listed([WORDS[s] for s in test.free])} redrawn"
    return f"{kept}, {changed}"


def _verdict(test: Test) -> str:
    """Return what the correlation means to a reader."""
    a = test.result.agreement
    if not test.free:
        if a.low >= 0.8:
            return "the same seeds give nearly the same speed again: chaos hardly changes who is fast"
        if a.low > 0:
            return "the same seeds tend to be fast again, but chaos changes much of the ranking"
        return "running a seed again is like drawing another seed: chaos decides who is fast"
    kept = _listed([WORDS[s] for s in test.fixed])
    redrawn = _listed([WORDS[s] for s in test.free])
    if a.low >= 0.8:
        return f"who is fast is decided nearly by the {kept} alone"
    if a.low > 0:
        return f"a part of the speed stays with the {kept}, the rest goes with the {redrawn}"
    be = "is" if test.free in (("split",), ("order",)) else "are"
    limit = f" (at most {a.high:.2f})" if a.high < 0.9 else ""
    return f"no sign of any speed that stays with the {kept} once the {redrawn} {be} redrawn{limit}"


def _findings(study: Repeats, test: Test) -> None:
    a, n = test.result.agreement, len(test.units)
    shown = f"{a.value:.2f} ({a.low:.2f} to {a.high:.2f})"
    found = int((test.units["q"] <= 0.05).sum())
    study.findings.append(
        Finding(
            f"repeatability of the {test.name}",
            shown,
            f"{what_repeats(test)}: rank correlation {shown}, so {_verdict(test)}. {found} of {n} candidates are "
            f"reliably faster than the typical one ({test.result.conditions} conditions, each candidate under "
            f"{test.result.per_unit:.0f} of them in the median).",
            a,
            headline=len(test.fixed) != len(STREAMS) - 1,
        )
    )
    if test.confirmation:
        c = test.confirmation
        curse = c.found - c.confirmed.value
        study.findings.append(
            Finding(
                f"best {test.name} candidates, confirmed",
                f"{c.confirmed.value:.2f} ({c.confirmed.low:.2f} to {c.confirmed.high:.2f})",
                f"The best {c.picked} scored {c.found:.2f} where they were picked and {c.confirmed.value:.2f} "
                f"({c.confirmed.low:.2f} to {c.confirmed.high:.2f}) on the conditions that did not pick them "
                f"(p = {c.p:.2g}): "
                + ("there was no winner's curse." if curse < 0.02 else "the difference is the winner's curse."),
                c.confirmed,
            )
        )
    top = test.units.head(15).copy()
    for column in [c for c in top if str(c).startswith("seed")]:
        top[column] = top[column].astype(str)
    top["score"] = top["score"].round(3)
    top[["p", "q"]] = top[["p", "q"]].map(lambda v: float(f"{v:.2g}"))
    name = test.name.replace(" + ", "_").replace(" ", "_")
    study.tables.append(Table(f"scores_{name}", f"Best candidates: {test.name}", top, open=False))


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
