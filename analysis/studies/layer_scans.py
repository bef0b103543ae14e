"""Scans of one layer's seed with everything else fixed: the spread, and its share of that of the whole init seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pandas as pd

from analysis.observations import Observations
from analysis.populations import LAYERS, Population, populations
from analysis.proposals import proposal
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.spread import standard_deviation, variance_ratio
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.outcomes import Outcome, outcome

FEWEST = 8
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
        if more or len(p) < FEWEST or not (layer or stream == "init"):
            continue
        key = (tuple(p.condition.items()), p.fixed["split"], p.fixed["order"])
        here = by_key.setdefault(key, Background())
        (here.layers if layer else here.init).append(p)
    yield from (here for here in by_key.values() if here.layers)


def analyse(observations: Observations, question: Question) -> Study:
    """Return the answer for every scan of a layer.

    Raises:
        NotEnoughData: no scan has enough seeds with a known outcome.
    """
    study = Study(name=question.name, title=question.title, question=question.question)
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
        raise gap or NotEnoughData(f"at least {FEWEST} seeds of one layer with everything else held")
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


QUESTION = Question(
    "layer_scans",
    "One layer alone",
    "With everything else fixed, how much do one layer's initial weights decide?",
    "grok sweep 'seeds.layers.head=range(0,32)'",
    analyse,
    lambda observations: any(True for _ in backgrounds(observations)),
)
