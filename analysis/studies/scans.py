"""Scans: only the weights, the order, the split or one layer differs from run to run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pandas as pd

from analysis.criteria import DIARY, UNJUDGED, Outcome, judge_by_time, outcome
from analysis.observations import Observations, describe_task, differing_settings, floats, in_words, varying_columns
from analysis.populations import LAYERS, Population, listed, populations
from analysis.proposals import proposal
from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.proportions import share
from analysis.statistics.survival import quantile
from analysis.statistics.variance_shares import standard_deviation, variance_ratio
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
    study = Scans(**question.names, scans=scans)
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
        by_time = share(int(verdict.is_early.sum()), int(verdict.judged.sum())) if verdict.judged.any() else None
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
    return Finding(f"early {scan.unit}, {scan.fixed} fixed ({task})", e.percent(), text, e, headline)


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
        "early": scan.by_time.percent() if scan.by_time else "",
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

# Scans of one layer's seed with everything else fixed: the spread, and its share of that of the whole init seed.

FEWEST_OF_LAYER = 8
"""Smallest number of seeds of a scanned layer."""


@dataclass(frozen=True)
class Background:
    """Scans of layers at one condition, split and order, and the scan of the whole init seed if it exists."""

    layers: list[Population] = field(default_factory=list)
    init: list[Population] = field(default_factory=list)


def backgrounds(observations: Observations) -> Iterator[Background]:
    """Yield the backgrounds in which at least one layer was scanned."""
    by_key: dict[object, Background] = {}
    for p in observations.once(populations).every:
        (stream, *more) = p.varies
        layer = stream.startswith(LAYERS)
        if more or len(p) < FEWEST_OF_LAYER or not (layer or stream == "init"):
            continue
        key = (tuple(p.condition.items()), p.fixed["split"], p.fixed["order"])
        here = by_key.setdefault(key, Background())
        (here.layers if layer else here.init).append(p)
    yield from (here for here in by_key.values() if here.layers)


def analyse_layers(observations: Observations, question: Question) -> Study:
    """Return the answer for every scan of a layer.

    Raises:
        NotEnoughData: no scan has enough seeds with a known outcome.
    """
    study = Study(**question.names)
    records, gap = [], None
    for background in backgrounds(observations):
        scans = [*background.layers, *background.init]
        try:
            # One outcome for all scans, so that their spreads are on one scale and up to one step.
            seen = outcome(observations, pd.concat([p.rows for p in scans]))
            records += [_answer(study, p, background, seen) for p in background.layers]
        except NotEnoughData as problem:
            gap = problem
    if not records:
        raise gap or NotEnoughData(f"at least {FEWEST_OF_LAYER} seeds of one layer with everything else held")
    study.tables.append(Table("layer_scans", "One layer's seed at a time, 95% intervals", pd.DataFrame(records)))
    study.notes.append(
        "Only the layer's initial weights differ. The other weights, the order and the split are those of one seed; "
        "other seeds can give another spread. The intervals assume normal outcomes."
    )
    if any(record["of what init moves"] == "" for record in records):
        study.notes.append(
            "To compare with the whole init seed, scan it at the same split and order: "
            + proposal("grok sweep 'seeds.init=range(0,64)'", observations, any_task=True)
        )
    return study


def _answer(study: Study, p: Population, background: Background, seen: Outcome) -> dict[str, object]:
    """Add the finding of one layer's scan, and return its row of the table."""
    scans = [*background.layers, *background.init]
    start = sum(len(q) for q in scans[: next(i for i, q in enumerate(scans) if q is p)])
    values = seen.values[start : start + len(p)]
    layer = p.varies[0].removeprefix(LAYERS)
    spread = standard_deviation(values)
    record = {"layer": layer, "held": p.held, "seeds": len(p), "outcome": seen.name, "spread (sd)": spread.plain(2)}
    text = f"{p.scope} Standard deviation of the outcome ({seen.name}): {spread.plain(2)}"
    if not background.init:
        shown = f"{spread.plain(2)}"
        study.findings.append(Finding(f"spread from {layer} alone", shown, f"{text}.", spread, headline=True))
        return {**record, "of what init moves": ""}
    count = sum(len(q) for q in background.layers)
    share = variance_ratio(values, seen.values[count : count + len(background.init[0])])
    text += f"; its variance is {share.percent(0)} of the variance over whole init seeds."
    study.findings.append(Finding(f"spread from {layer} alone", share.percent(0), text, share, headline=True))
    return {**record, "of what init moves": share.percent(0)}


LAYER_QUESTION = Question(
    "layer_scans",
    "One layer alone",
    "With everything else fixed, how much do one layer's initial weights decide?",
    "grok sweep 'seeds.layers.head=range(0,32)'",
    analyse_layers,
    lambda observations: any(True for _ in backgrounds(observations)),
)
