"""Seed census: how many seeds are super, fast and normal (REQUIREMENTS N2, C8)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.criteria import CLASSES, DIARY, UNJUDGED, Criteria, SpeedJudgement, accuracy_at, judge_by_time
from analysis.observations import Observations, describe_task, differing_settings, floats, is_random_seed
from analysis.rerun import rerun_command
from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.proportions import seeds_for_width, share
from analysis.statistics.survival import Times
from analysis.studies.base import Finding, Question, Study, Table

BEST = 12
"""Rows of the table of best seeds."""


@dataclass(kw_only=True)
class Census(Study):
    """The census of the condition with most random seeds."""

    rows: pd.DataFrame
    """One row per seed, with ``accuracy`` (at the horizon) and ``label`` added."""
    times: Times
    curves: pd.DataFrame
    """The evaluations of all its seeds."""
    horizon: int
    shares: dict[str, Estimate]
    is_diary_regime: bool
    by_time: SpeedJudgement | None = None


def judged(observations: Observations, rows: pd.DataFrame, criteria: Criteria = DIARY) -> tuple[pd.DataFrame, int]:
    """Return ``rows`` with columns ``accuracy`` (at the horizon) and ``label``, and the horizon."""
    diverged = rows["status"] == "diverged"
    horizon = criteria.horizon_of(rows)
    accuracy = accuracy_at(observations.curves_of(rows.index), rows.index, horizon)
    label = criteria.classify(accuracy, diverged)
    return rows.assign(accuracy=accuracy, label=label), horizon


def groups(observations: Observations) -> list[pd.DataFrame]:
    """Return the random seeds of each condition, the condition with most seeds first."""
    rows = observations.arithmetic
    rows = rows[is_random_seed(rows)]
    if rows.empty:
        return []
    condition = observations.conditions(rows)
    return [rows[condition == c] for c in sorted(condition.unique())]


def analyse(observations: Observations, question: Question) -> Census:
    """Answer for the condition with most random seeds; other conditions get a row of the table.

    Raises:
        NotEnoughData: no random seed has finished.
    """
    conditions = observations.once(groups)
    if not conditions:
        raise NotEnoughData("at least one finished run of a random seed")
    rows, horizon = judged(observations, conditions[0])
    first = rows.iloc[0]
    labels = rows.loc[rows["label"] != UNJUDGED, "label"]
    census = Census(
        name=question.name,
        title=question.title,
        question=question.question,
        rows=rows,
        times=observations.times(rows),
        curves=observations.curves_of(rows.index),
        horizon=horizon,
        shares={c: share(int((labels == c).sum()), len(labels)) for c in CLASSES} if len(labels) else {},
        is_diary_regime=not differing_settings(first),
    )
    by_time = _time_findings(census)
    by_accuracy = _accuracy_findings(census, describe_task(first))
    census.findings = by_accuracy + by_time if census.is_diary_regime else by_time + by_accuracy
    if census.by_time is not None and not census.is_diary_regime:
        census.findings = [replace(f, headline=f in by_time and f.estimate is not None) for f in census.findings]
    census.tables = [_share_table(census), _best_table(census, observations)]
    if len(conditions) > 1:
        census.tables.append(_condition_table(observations, conditions))
    unjudged = int((rows["label"] == UNJUDGED).sum())
    if unjudged:
        census.notes.append(f"{unjudged} of {len(rows)} seeds are not judged: no evaluation at step {horizon:,}.")
    if horizon < DIARY.horizon:
        census.notes.append(
            f"The runs end before step {DIARY.horizon:,}, so the diary's accuracy thresholds are read at step "
            f"{horizon:,}, the last one that at least half of the runs reached."
        )
    if not census.is_diary_regime:
        changed = ", ".join(f"{k}={v}" for k, v in differing_settings(first).items())
        census.notes.append(
            f"This is not the diary's regime ({changed}): its accuracy thresholds were made for another task. "
            "The definition by time carries over."
        )
    return census


def _accuracy_findings(census: Census, task: str) -> list[Finding]:
    words = {
        "super": f"had validation accuracy above {DIARY.super_accuracy:.0%} at step {census.horizon:,}",
        "fast": f"were in between ({DIARY.normal_accuracy:.0%} to {DIARY.super_accuracy:.0%})",
        "normal": f"were still below {DIARY.normal_accuracy:.0%}",
        "diverged": "diverged",
    }
    found = []
    for name, estimate in census.shares.items():
        hits = round(estimate.value * estimate.n)
        if name == "diverged" and not hits:
            continue
        text = (
            f"{hits:,} of {estimate.n:,} seeds ({task}) {words[name]}: {estimate.percent()}, 95% interval "
            f"({estimate.method})."
        )
        label = f"{name} seeds" if census.is_diary_regime else f"{name} seeds by the diary's thresholds"
        found.append(Finding(label, estimate.percent(), text, estimate, headline=name != "diverged"))
    if "super" in census.shares and (census.is_diary_regime or census.by_time is None):
        n = census.shares["super"].n
        quicker = share(round((census.shares["super"].value + census.shares["fast"].value) * n), n)
        text = f"Super and fast together: {quicker.percent()}."
        if census.is_diary_regime:
            text += " The diary: 0.86% super, 7% faster than normal, of 2,073 seeds."
        found.append(Finding("faster than normal", quicker.percent(), text, quicker))
        found.append(_seeds_needed(census.shares["super"], "super share"))
    return found


def _seeds_needed(e: Estimate, name: str) -> Finding:
    """Plan the next census: how many seeds make the interval as narrow as the share itself, or 10 points."""
    # Nothing seen yet is planned for as one in all seeds so far.
    p = max(e.value, 1 / (e.n + 1))
    width = min(p, 0.1)
    n = seeds_for_width(p, width)
    supposed = "" if e.value else " (one in all seeds so far)"
    text = (
        f"If the {name} is {p:.2%}{supposed}, an interval {100 * width:.2g} percentage points wide around it takes "
        f"{n:,} seeds."
    )
    return Finding("seeds needed", f"{n:,}", text)


def _time_findings(census: Census) -> list[Finding]:
    seen, n = int(census.times.seen.sum()), len(census.times)
    done = share(seen, n)
    text = f"{seen:,} of {n:,} seeds generalised within their budget: {done.percent()}."
    generalised = Finding("generalised", done.percent(), text, done)
    try:
        census.by_time = judge_by_time(census.times, floats(census.rows["config.train.steps"]))
    except NotEnoughData as gap:
        census.notes.append(f"Super by time (3 times faster than the median): not enough data, needs {gap.needs}.")
        return [generalised]
    verdict = census.by_time
    judged_seeds, hits = int(verdict.judged.sum()), int(verdict.is_super.sum())
    if not judged_seeds:
        return [generalised]
    estimate = share(hits, judged_seeds)
    text = (
        f"{hits:,} of {judged_seeds:,} seeds generalised by step {verdict.threshold:,.0f}, at least "
        f"{DIARY.speedup:.0f} times faster than the median seed, which takes {verdict.median.plain()} steps: "
        f"{estimate.percent()}."
    )
    by_time = Finding("super by time", estimate.percent(), text, estimate, headline=True)
    found = [by_time, generalised]
    return found if census.is_diary_regime else [*found, _seeds_needed(estimate, "share that is super by time")]


def _share_table(census: Census) -> Table:
    shares = dict(census.shares)
    shares |= {f.label: f.estimate for f in census.findings if f.label == "super by time" and f.estimate}
    words = {
        "super": f"above {DIARY.super_accuracy:.0%}",
        "fast": f"{DIARY.normal_accuracy:.0%} to {DIARY.super_accuracy:.0%}",
        "normal": f"below {DIARY.normal_accuracy:.0%}",
    }
    if census.is_diary_regime:
        words = {}
    records = [
        {
            "class": words.get(name, name),
            "seeds": round(e.value * e.n),
            "of": e.n,
            "share %": round(100 * e.value, 3),
            "low %": round(100 * e.low, 3),
            "high %": round(100 * e.high, 3),
            "interval": e.method,
        }
        for name, e in shares.items()
    ]
    return Table("shares", f"Shares at step {census.horizon:,} with 95% intervals", pd.DataFrame(records))


def _best_table(census: Census, observations: Observations) -> Table:
    rows = census.rows.assign(when=census.times.right)
    best = rows.sort_values(["when", "accuracy", "seed"], ascending=[True, False, True]).head(BEST)
    frame = pd.DataFrame(
        {
            "seed": best["seed"].to_numpy(),
            "run": [r[:10] for r in best.index],
            "class": best["label"].to_numpy(),
            "generalised at step": [f"{w:,.0f}" if np.isfinite(w) else "not yet" for w in best["when"]],
            f"val accuracy at {census.horizon:,}": [f"{a:.3f}" if np.isfinite(a) else "" for a in best["accuracy"]],
            "run it again": [rerun_command(row) for _, row in best.iterrows()],
        }
    )
    if not census.is_diary_regime:
        frame = frame.drop(columns="class")  # the diary's classes belong to its task
    caption = (
        "The best seeds of this census. They were picked for being best, so part of their lead is luck: "
        "a super seed is a claim to be repeated"
    )
    return Table("best_seeds", caption, frame, code=("run", "run it again"))


def _condition_table(observations: Observations, conditions: list[pd.DataFrame]) -> Table:
    records = []
    for group in conditions:
        rows, horizon = judged(observations, group)
        labels = rows.loc[rows["label"] != UNJUDGED, "label"]
        record = {
            "condition": _condition_name(group.iloc[0]),
            "seeds": len(labels),
            "judged at step": horizon,
        }
        for name in ("super", "fast", "normal"):
            record[name] = share(int((labels == name).sum()), len(labels)).percent() if len(labels) else ""
        records.append(record)
    return Table("conditions", "Every condition with random seeds in this store", pd.DataFrame(records), open=False)


def _condition_name(row: pd.Series) -> str:
    changed = differing_settings(row)
    return ", ".join(f"{k}={v}" for k, v in changed.items()) or "the diary's regime"


QUESTION = Question(
    "census",
    "Seed census",
    "How many seeds are super, fast and normal?",
    "python -m grok.run -m sweep=census",
    analyse,
    lambda observations: bool(len(observations.arithmetic)) and bool(is_random_seed(observations.arithmetic).any()),
)
