"""Objectives of a search: statistics over a trial's seeds.

| name | statistic | better |
|---|---|---|
| ``median_time`` | median step of generalisation; a censored seed counts as after the budget | low |
| ``generalised_share`` | share of seeds that generalised within the budget | high |
| ``accurate_share`` | share of seeds with validation accuracy above ``study.accuracy`` at the horizon | high |
| ``val_loss``, ``val_acc`` | median over seeds, at the horizon | low, high |
| ``logit_acc`` | mean over seeds of ln(right / wrong) on the validation set at the horizon | high |
| ``compute`` | training operations of the median time, by the model's and the batch's size | low |

If at least half of the seeds are censored, the median does not exist. The value is then the budget times
(1 + share of censored seeds): above every median that exists, and better if more seeds generalised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from grok.config import ArithmeticConfig, RunConfig
from grok.errors import ConfigError, StoreError
from grok.store import Store
from sweeps.search.config import StudyConfig

Direction = Literal["minimize", "maximize"]

MINIMISED: Final = frozenset({"median_time", "val_loss", "compute"})
READ_AT_HORIZON: Final = frozenset({"accurate_share", "val_loss", "val_acc", "logit_acc"})
SURE: Final = 1e-3
"""Accuracies are clipped to this distance from 0 and 1 before the logit, so that one seed cannot dominate a mean."""


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """The outcome of one seed of a trial."""

    run_id: str
    status: str
    error: str | None
    budget: int
    grokked_step: int | None
    val_loss: float
    """At the horizon; NaN if the run did not reach it."""
    val_acc: float
    """The same of the accuracy."""

    @property
    def time(self) -> float:
        """Step of generalisation; infinite if censored."""
        return math.inf if self.grokked_step is None else float(self.grokked_step)


@dataclass(frozen=True, slots=True)
class Objective:
    """One of ``OBJECTIVES``."""

    name: str
    accuracy: float

    @property
    def direction(self) -> Direction:
        return "minimize" if self.name in MINIMISED else "maximize"

    def score(self, seed: SeedOutcome, config: RunConfig) -> float:
        """Return the finite score of one seed of the setting ``config``; a censored time is twice the budget."""
        if self.name in ("median_time", "compute"):
            time = seed.time if math.isfinite(seed.time) else 2.0 * seed.budget
            return time * operations_per_step(config) if self.name == "compute" else time
        if self.name == "generalised_share":
            return float(seed.grokked_step is not None)
        if self.name == "accurate_share":
            return float(seed.val_acc > self.accuracy)
        if self.name == "logit_acc":
            accuracy = min(max(seed.val_acc, SURE), 1 - SURE) if math.isfinite(seed.val_acc) else SURE
            return math.log(accuracy / (1 - accuracy))
        if self.name == "val_acc":
            return seed.val_acc if math.isfinite(seed.val_acc) else 0.0
        return seed.val_loss if math.isfinite(seed.val_loss) else WORST_LOSS

    def value(self, seeds: Sequence[SeedOutcome], config: RunConfig) -> float:
        """Return the objective of the setting ``config`` over its ``seeds``."""
        if self.name == "median_time":
            return median_time(seeds)
        if self.name == "compute":
            return median_time(seeds) * operations_per_step(config)
        scores = [self.score(seed, config) for seed in seeds]
        return median(scores) if self.name in ("val_loss", "val_acc") else sum(scores) / len(scores)


WORST_LOSS: Final = 100.0
"""Validation loss of a diverged seed: larger than any real one, and finite, as samplers need it."""


def median_time(seeds: Sequence[SeedOutcome]) -> float:
    """Return the median step of generalisation; if it is censored, a number above the budget."""
    middle = median(seed.time for seed in seeds)
    if math.isfinite(middle):
        return middle
    censored = sum(seed.grokked_step is None for seed in seeds) / len(seeds)
    return max(seed.budget for seed in seeds) * (1 + censored)


def operations_per_step(config: RunConfig) -> float:
    """Return the operations of one update: 6 for each weight of a matrix and each position of the batch.

    They are those of the plain model, without the engine's savings.

    Raises:
        ConfigError: ``config`` is not an arithmetic run.
    """
    if not isinstance(config, ArithmeticConfig):
        raise ConfigError("study.objectives: compute is for mode=arithmetic only; expected val_loss for a text model")
    model, task = config.model, config.task
    d, inner = model.d_model, model.d_ff or 4 * model.d_model
    positions = config.train.batch_size * len(task.sequence.split())
    return 6.0 * (model.layers * (4 * d * d + 2 * d * inner) * positions + d * task.modulus * config.train.batch_size)


def make_objectives(study: StudyConfig) -> tuple[Objective, ...]:
    """Return the study's one or two objectives."""
    return tuple(Objective(name, study.accuracy) for name in study.objectives)


def read_outcomes(
    store: Store, run_ids: Sequence[str], horizon: int | None, budgets: Mapping[str, int]
) -> dict[str, SeedOutcome]:
    """Return the stored outcomes of ``run_ids`` at ``horizon`` (None: the last step).

    Raises:
        StoreError: a run passed the horizon without an evaluation at it.
    """
    columns = ["run_id", "status", "error", "steps", "grokked_step", "val_loss", "val_acc"]
    rows = {row["run_id"]: row for row in store.table("runs", run_ids, columns).to_pylist()}
    at: dict[str, tuple[float | None, float | None]] = {}
    if horizon is not None:
        points = store.table("curves", run_ids, ["val_loss", "val_acc"]).to_pylist()
        at = {point["run_id"]: (point["val_loss"], point["val_acc"]) for point in points if point["step"] == horizon}
    outcomes = {}
    for run_id, row in rows.items():
        loss, accuracy = (row["val_loss"], row["val_acc"]) if horizon is None else at.get(run_id, (None, None))
        if horizon is not None and run_id not in at and row["status"] == "completed" and row["steps"] >= horizon:
            raise StoreError(f"study.horizon={horizon}: run {run_id} was not evaluated at that step, see eval.every")
        finished = row["status"] == "completed"
        outcomes[run_id] = SeedOutcome(
            run_id=run_id,
            status=row["status"],
            error=row["error"],
            budget=budgets[run_id],
            grokked_step=row["grokked_step"] if finished else None,
            val_loss=float(loss) if finished and loss is not None else math.nan,
            val_acc=float(accuracy) if finished and accuracy is not None else math.nan,
        )
    return outcomes
