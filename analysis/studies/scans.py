"""Scans: only the weights, the order, the split or one layer differs from run to run."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.criteria import DIARY, UNJUDGED, judge_by_time
from analysis.observations import Observations, describe_task, differing_settings, floats, in_words, varying_columns
from analysis.populations import Population, listed, populations
from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.proportions import share
from analysis.statistics.survival import quantile
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.census import judged

FEWEST = 20
"""Smallest number of seeds of a scan."""
DIARY_SAYS = {"order": "0.43% super; later 0.6%, given the model", "init": "0.4% super, given the order"}


@dataclass(frozen=True)
class Scan:
    """All runs that differ only in the seeds of some streams."""

    stream: str
    unit: str
    """What differs from run to run, in words: ``init seeds``."""
    fixed: str
    """The other streams' seeds, in words."""
    rows: pd.DataFrame
    horizon: int
    shares: dict[str, Estimate]
    median: Estimate | None
    """Median step of generalisation; None if fewer than half of the seeds generalised."""
    middle: str
    """The quartiles of the step of generalisation in words."""
    by_time: Estimate | None
    """Share that generalised at least three times faster than this scan's median."""
    in_diary_regime: bool


@dataclass(kw_only=True)
class Scans(Study):
    """Every scan of the store."""

    scans: list[Scan]


def scans_of(observations: Observations) -> list[Population]:
    """Return the populations of at least ``FEWEST`` runs with at least one fixed stream."""
    return [p for p in observations.once(populations).every if p.fixed and len(p) >= FEWEST]


def analyse(observations: Observations, question: Question) -> Scans:
    """Return the answer for every scan.

    Raises:
        NotEnoughData: there is no scan with enough judged seeds.
    """
    scans = []
    for population in observations.once(scans_of):
        labelled, horizon = judged(observations, population.rows)
        labels = labelled.loc[labelled["label"] != UNJUDGED, "label"]
        if len(labels) >= FEWEST:
            shares = {c: share(int((labels == c).sum()), len(labels)) for c in ("super", "fast", "normal")}
            scans.append(_timed(observations, population, labelled, horizon, shares))
    if not scans:
        raise NotEnoughData(f"at least {FEWEST} seeds of one stream with the other streams' seeds fixed")
    study = Scans(name=question.name, title=question.title, question=question.question, scans=scans)
    differing = varying_columns(pd.DataFrame([scan.rows.iloc[0] for scan in scans]))
    for scan in scans:
        first = scan.rows.iloc[0]
        task = describe_task(first) + "".join(f", {c.removeprefix('config.')}={in_words(first[c])}" for c in differing)
        study.findings.append(_finding(scan, task, headline=len(scans) <= 4))
    study.tables.append(
        Table("scans", "One stream scanned at a time, 95% intervals", pd.DataFrame([_record(s) for s in scans]))
    )
    study.notes.append("These shares hold for the fixed seeds; other fixed seeds can give other shares.")
    return study


def _timed(
    observations: Observations, population: Population, rows: pd.DataFrame, horizon: int, shares: dict[str, Estimate]
) -> Scan:
    times, by_time = observations.times(rows), None
    known: dict[float, Estimate] = {}
    for q in (0.25, 0.5, 0.75):
        try:
            known[q] = quantile(times, q)
        except NotEnoughData:
            break
    if 0.5 in known:
        verdict = judge_by_time(times, floats(rows["config.train.steps"]))
        by_time = share(int(verdict.is_super.sum()), int(verdict.judged.sum())) if verdict.judged.any() else None
    ends = [f"{known[q].value:,.0f}" if q in known else "later" for q in (0.25, 0.75)]
    return Scan(
        listed(population.varies),
        population.unit if not population.from_masters else f"seeds ({listed(population.varies)} drawn anew)",
        population.held,
        rows,
        horizon,
        shares,
        known.get(0.5),
        " to ".join(ends),
        by_time,
        not differing_settings(rows.iloc[0]),
    )


def _finding(scan: Scan, task: str, headline: bool) -> Finding:
    n = scan.shares["super"].n
    intro = f"{n} {scan.unit} with {scan.fixed} fixed ({task}): "
    by_accuracy = ", ".join(f"{e.percent()} {_called(scan, c)}" for c, e in scan.shares.items())
    diary = f" The diary: {DIARY_SAYS[scan.stream]}." if scan.stream in DIARY_SAYS and scan.in_diary_regime else ""
    at = f"at step {scan.horizon:,}: {by_accuracy}.{diary}"
    if scan.in_diary_regime or scan.by_time is None or scan.median is None:
        e, which = scan.shares["super"], _called(scan, "super")
        named = f"{which} {scan.unit}" if scan.in_diary_regime else f"{scan.unit} {which} at step {scan.horizon:,}"
        label = f"{named}, {scan.fixed} fixed ({task})"
        return Finding(label, e.percent(), intro + at, e, headline)
    e = scan.by_time
    text = (
        f"{intro}{e.percent()} generalised at least {DIARY.speedup:.0f} times faster than the median of these seeds, "
        f"which is step {scan.median.plain()}; the middle half took {scan.middle} steps. Validation accuracy {at}"
    )
    return Finding(f"{scan.unit} super by time, {scan.fixed} fixed ({task})", e.percent(), text, e, headline)


def _called(scan: Scan, name: str) -> str:
    """Return a class by its name in the diary's regime, and by its thresholds elsewhere."""
    low, high = f"{DIARY.normal_accuracy:.0%}", f"{DIARY.super_accuracy:.0%}"
    elsewhere = {"super": f"above {high}", "fast": f"between {low} and {high}", "normal": f"below {low}"}
    return name if scan.in_diary_regime else elsewhere[name]


def _record(scan: Scan) -> dict[str, object]:
    return {
        "scanned": scan.stream,
        "fixed": scan.fixed,
        "seeds": scan.shares["super"].n,
        "median step": scan.median.plain() if scan.median else "",
        "middle half": scan.middle if scan.median else "",
        "super by time": scan.by_time.percent() if scan.by_time else "",
        "judged at step": scan.horizon,
        **{_called(scan, c): e.percent() for c, e in scan.shares.items()},
    }


QUESTION = Question(
    "scans",
    "One stream alone",
    "With everything else fixed, how often does one stream's seed make a run super?",
    "grok sweep sweep=order_alone",
    analyse,
    lambda observations: bool(observations.once(scans_of)),
)
