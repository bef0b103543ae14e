"""Fate of a language model: how much of its final loss is fixed by a step, whatever order of the data comes later?

Runs go on from checkpoints of others in other orders of the data: ``resume.run``, ``resume.step`` and
``resume.changes=[seeds.order]``, the same orders for each run that is left. Of the variance of the final loss at one
step of leaving, the share that belongs to the runs is fixed by that step; the rest is up to the order after it. Step 0
stands for runs with the same weights and dropout masks, and those orders from the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from grok.analysis.criteria import final_loss
from grok.analysis.observations import Condition, Observations, how_many
from grok.analysis.purposes import roles
from grok.analysis.statistics.estimate import NotEnoughData, generator
from grok.analysis.statistics.variance_shares import variance_shares
from grok.analysis.studies import gpt
from grok.analysis.studies.base import Beside, Question, Study, by_condition


@dataclass(kw_only=True)
class LanguageFate(Study):
    """The families of one model on one corpus."""

    steps: pd.DataFrame
    """By step: number of runs that were left, of orders and of children; value, low and high (the share that is
    fixed); spread (standard deviation of the final loss among children of one run, in nats)."""


def children(observations: Observations) -> pd.DataFrame:
    """Return the runs in another order of the data, with ``step`` and ``left``: from when, and after which run.

    ``left`` of a run with the other order from the start, step 0, has the same weights and masks.
    """
    rows, runs = observations.once(roles).of("child", kinds=("branch",)), observations.gpt
    rows = rows[rows["from_step"].notna() & rows["redrawn"].map(lambda streams: streams == ("order",)).astype(bool)]
    rows = rows[rows["run_id"].isin(runs.index) & rows["parent_run_id"].isin(runs.index)]
    later = runs.loc[rows["run_id"]].assign(left=rows["parent_run_id"].to_numpy(), step=rows["from_step"].to_numpy())
    same = ["config_id", "data_hash", "own_code", "layers", "seed_init", "seed_dropout"]
    parents = runs.loc[later["left"].unique(), same].rename_axis("left").reset_index()
    start = runs[~runs.index.isin([*later.index, *parents["left"]])].reset_index().merge(parents, on=same)
    start = start[start["seed_order"].isin(later["seed_order"])].set_index("run_id").assign(step=0)
    return pd.concat([later, start])


def conditions(observations: Observations) -> list[Condition]:
    """Return the families of each model and corpus."""
    rows = observations.once(children)
    left = gpt.conditions_of(observations.gpt.loc[rows["left"].unique()])
    return [Condition(c.name, rows[rows["left"].isin(c.rows.index)]) for c in left]


def one(observations: Observations, condition: Condition) -> LanguageFate:
    """Return the answer for the families of one model.

    Raises:
        NotEnoughData: at no step two runs were left for the same two orders.
    """
    study, records = LanguageFate(steps=pd.DataFrame(), lead="fixed_by_step"), []
    completed = condition.rows[condition.rows["status"] == "completed"]
    for step, rows in completed.groupby(completed["step"].astype(int), sort=True):
        codes = {"run": rows["left"].factorize()[0], "order": rows["seed_order"].factorize()[0]}
        try:
            found = variance_shares(final_loss(observations, rows).values, codes, generator("fate"), merged=True)
        except NotEnoughData:
            continue
        if len(found.levels) == 2:
            e, parts = found.shares["run"], found.components
            spread = math.sqrt(max(0.0, sum(parts.values()) - parts["run"]))
            records.append((step, *found.levels.values(), found.n, e.value, e.low, e.high, spread))
            text = f"{e.percent()} of the variance of the final loss is fixed by step {step:,}; the order after it "
            text += f"leaves children of one run a standard deviation of {spread:.4f} nats."
            study.tell(f"fixed by step {step:,}", e.percent(), text, e, headline=True)
    if not records:
        raise NotEnoughData("two or more runs, left at one step for the same two or more orders")
    names = ["step", "runs left", "orders", "children", "value", "low", "high", "spread"]
    study.steps = pd.DataFrame(records, columns=names)
    model = gpt.describe_language_model(condition.rows.iloc[0])
    study.scope = f"{len(completed):,} children of {how_many(completed['left'].nunique(), 'run')}: {model}."
    told = ", ".join(f"{finding.shown} {finding.label}" for finding in study.findings)
    study.summary = f"{study.scope} Of the variance of their final loss {told}, with 95% intervals."
    if lost := len(condition.rows) - len(completed):
        study.notes.append(f"{lost:,} more diverged or stopped early. They are left out, so the spread may be larger.")
    shown = study.steps[names[:4]].assign(fixed=[finding.shown for finding in study.findings])
    shown["standard deviation left (nats)"] = study.steps["spread"].round(4)
    study.tabulate("fixed", "Share of the variance of the final loss that is fixed by a step, 95% intervals", shown)
    return study


QUESTION = Question(
    "language_fate",
    "When is a language model's loss fixed?",
    "By which step is a language model's final loss fixed, whatever order of the data comes later?",
    "",  # a checkpoint comes first
    by_condition(conditions, one, Beside(), gpt.CONDITION_SETTINGS),
    lambda observations: not observations.once(children).empty,
    any_task=False,
)
