"""One stream scanned alone: only the weights, the order or the split is drawn anew (REQUIREMENTS N3)."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.criteria import UNJUDGED
from analysis.observations import Observations, describe_task, differing_settings, varying_columns
from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.proportions import share
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.census import judged

FEWEST = 20
"""Seeds of the scanned stream below which a group is no scan."""
STREAMS = ("split", "init", "order")
DIARY_SAYS = {"order": "0.43% super; later 0.6%, given the model", "init": "0.4% super, given the order"}


@dataclass(frozen=True)
class Scan:
    """All runs that differ in one stream's seed alone."""

    stream: str
    fixed: str
    """The other streams' seeds, in words."""
    rows: pd.DataFrame
    horizon: int
    shares: dict[str, Estimate]


@dataclass(kw_only=True)
class Scans(Study):
    """Every scan of the store."""

    scans: list[Scan]


def scans_of(observations: Observations) -> list[tuple[str, pd.DataFrame]]:
    """Return (stream, rows) of each group in which one stream takes at least ``FEWEST`` seeds, the others one each."""
    rows = observations.arithmetic
    if rows.empty:
        return []
    plain = rows[(rows["layers"] == "{}") & (rows["config.perturb.ulps"].fillna(0) == 0)]
    plain = plain.assign(_condition=observations.conditions(plain)) if len(plain) else plain
    found = []
    for stream in STREAMS:
        others = [f"seed_{s}" for s in STREAMS if s != stream]
        cell = plain.groupby(["_condition", *others])[f"seed_{stream}"] if len(plain) else None
        if cell is None:
            continue
        # Thousands of cells hold one run each: the few scans among them are picked out before any is cut out.
        large = plain[cell.transform("nunique") >= FEWEST]
        for _, group in large.groupby(["_condition", *others], sort=True):
            found.append((stream, group.drop(columns="_condition")))
    return found


def analyse(observations: Observations, question: Question) -> Scans:
    """Answer for every scan.

    Raises:
        NotEnoughData: there is none, or none was judged.
    """
    scans = []
    for stream, rows in scans_of(observations):
        labelled, horizon = judged(observations, rows)
        labels = labelled.loc[labelled["label"] != UNJUDGED, "label"]
        if len(labels) < FEWEST:
            continue
        shares = {c: share(int((labels == c).sum()), len(labels)) for c in ("super", "fast", "normal")}
        first = rows.iloc[0]
        fixed = ", ".join(f"{s} {first[f'seed_{s}']}" for s in STREAMS if s != stream)
        scans.append(Scan(stream, fixed, labelled, horizon, shares))
    if not scans:
        raise NotEnoughData(f"at least {FEWEST} seeds of one stream with the other streams' seeds fixed")
    study = Scans(name=question.name, title=question.title, question=question.question, scans=scans)
    first_rows = pd.DataFrame([scan.rows.iloc[0] for scan in scans])
    differing = varying_columns(first_rows)
    for scan in scans:
        task = describe_task(scan.rows.iloc[0])
        task += "".join(f", {c.removeprefix('config.')}={scan.rows.iloc[0][c]}" for c in differing)
        n = scan.shares["super"].n
        in_diary_regime = not differing_settings(scan.rows.iloc[0])
        said = f" The diary: {DIARY_SAYS[scan.stream]}." if scan.stream in DIARY_SAYS and in_diary_regime else ""
        study.findings.append(
            Finding(
                f"super {scan.stream} seeds",
                scan.shares["super"].percent(),
                f"{n} {scan.stream} seeds with {scan.fixed} fixed ({task}), at step "
                f"{scan.horizon:,}: super {scan.shares['super'].percent()}, fast {scan.shares['fast'].percent()}, "
                f"normal {scan.shares['normal'].percent()}.{said}",
                scan.shares["super"],
                headline=len(scans) <= 4,
            )
        )
    frame = pd.DataFrame(
        [
            {
                "scanned": scan.stream,
                "fixed": scan.fixed,
                "seeds": scan.shares["super"].n,
                "judged at step": scan.horizon,
                **{c: e.percent() for c, e in scan.shares.items()},
            }
            for scan in scans
        ]
    )
    study.tables.append(Table("scans", "Shares with 95% intervals, one stream scanned at a time", frame))
    study.notes.append("These shares hold for the fixed seeds; other fixed seeds can give other shares.")
    return study


QUESTION = Question(
    "scans",
    "One stream alone",
    "With everything else fixed, how often does one stream's seed make a run super?",
    "python -m grok.run -m sweep=order_alone",
    analyse,
    lambda observations: bool(scans_of(observations)),
)
