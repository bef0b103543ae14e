"""A run's history: its curve, its log of steps, its best and its averaged weights."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from grok.gpt.model import GPT
from grok.records import CurvePoint, StepPoint

Weights = dict[str, Tensor]
"""Parameters by name, on the CPU. They are never changed, so several states can share them."""

NUMBERS: Final = tuple(f.name for f in fields(StepPoint) if f.name != "event")
WHOLE: Final = frozenset({"step", "skipped_steps", "nan_steps", "consumed_samples", "consumed_tokens"})


def copy_weights(model: GPT) -> Weights:
    """Return a copy of the parameters on the CPU, a tied head once.

    Every process of a sharded model must call this. Rank 0 gets all parameters, the others none.
    """
    copies = {}
    for name, p in model.named_parameters():
        own = not isinstance(p, DTensor) or p.device_mesh.get_rank() == 0
        gathered = p.full_tensor().detach() if isinstance(p, DTensor) else p.detach()
        if own:
            copies[name] = gathered.to("cpu", copy=True)
    return copies


def average_steps(share: float, points: int, steps: int) -> frozenset[int]:
    """Return the steps whose weights are averaged: ``points`` evenly spaced steps in the last ``share`` of the run."""
    first = (1 - share) * steps
    return frozenset(round(first + (steps - first) * (i + 1) / points) for i in range(points)) if share else frozenset()


@dataclass(slots=True)
class History:
    """The part of a run's state that the next update does not need."""

    curve: list[CurvePoint] = field(default_factory=list)
    log: list[StepPoint] = field(default_factory=list)
    best: Weights | None = None
    """Weights at the lowest validation loss so far."""
    best_step: int = 0
    best_loss: float = math.inf
    worse: int = 0
    """Evaluations since the best one."""
    average: Weights | None = None
    """Mean weights of the last share of the run (Izmailov et al. 2018)."""
    averaged_at: list[int] = field(default_factory=list)
    """Steps whose weights the mean contains."""

    def observe(self, point: CurvePoint, model: GPT, *, keep: bool) -> bool:
        """Add an evaluation; return whether it is the best so far. With ``keep``, keep the weights of the best one."""
        self.curve.append(point)
        if not point.val_loss < self.best_loss:
            self.worse += 1
            return False
        self.best_loss, self.best_step, self.worse = point.val_loss, point.step, 0
        self.best = copy_weights(model) if keep else None
        return True

    def add_to_average(self, step: int, model: GPT) -> None:
        """Add the present weights, after ``step`` updates, to the mean."""
        now = copy_weights(model)
        self.averaged_at.append(step)
        if len(self.averaged_at) == 1:
            self.average = now
        elif self.average is not None:  # None: a damaged checkpoint lost the sum of the earlier ones
            self.average = {n: a + (now[n] - a) / len(self.averaged_at) for n, a in self.average.items()}

    def fork(self) -> History:
        """Return a copy for a rollback; the weights are shared."""
        return History(
            list(self.curve),
            list(self.log),
            self.best,
            self.best_step,
            self.best_loss,
            self.worse,
            self.average,
            list(self.averaged_at),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint: the log of steps as one float64 table, best and averaged weights."""
        table = [[float(getattr(p, name)) for name in NUMBERS] for p in self.log]
        result = {"log": torch.tensor(table, dtype=torch.float64).reshape(-1, len(NUMBERS))}
        for part, weights in (("best", self.best), ("average", self.average)):
            result |= {f"{part}.{name}": w for name, w in (weights or {}).items()}
        return result

    def state(self) -> dict[str, Any]:
        """Return the JSON-serialisable part of a checkpoint; NaN becomes null."""
        return {
            "curve": [point_to_json(p) for p in self.curve],
            "columns": list(NUMBERS),
            "events": {str(p.step): p.event for p in self.log if p.event},
            "best_step": self.best_step,
            "best_loss": self.best_loss if math.isfinite(self.best_loss) else None,
            "worse": self.worse,
            "averaged_at": self.averaged_at,
        }

    @classmethod
    def load(cls, tensors: dict[str, Tensor], state: dict[str, Any]) -> History:
        """Return the history that ``tensors()`` and ``state()`` describe."""
        log = []
        for row in tensors["log"].tolist():
            values = dict(zip(state["columns"], row, strict=True))
            numbers = {n: int(v) if n in WHOLE else v for n, v in values.items() if n in NUMBERS}
            log.append(StepPoint(**numbers, event=state["events"].get(str(int(values["step"])))))
        return cls(
            curve=[point_from_json(p) for p in state["curve"]],
            log=log,
            best=_part(tensors, "best."),
            best_step=state["best_step"],
            best_loss=math.inf if state["best_loss"] is None else state["best_loss"],
            worse=state["worse"],
            average=_part(tensors, "average."),
            averaged_at=state["averaged_at"],
        )

    def keep_steps(self, due: frozenset[int], averaged: frozenset[int]) -> None:
        """Drop what belongs to another schedule, such as the last evaluation and the average of a shorter run.

        Evaluations remain only at the steps ``due``. The average remains only if its steps are those of ``averaged``
        so far. If the best evaluation is dropped, its weights are lost.
        """
        self.curve = [p for p in self.curve if p.step in due]
        last = max((p.step for p in self.log), default=0)
        if self.averaged_at != sorted(k for k in averaged if k <= last):
            self.average, self.averaged_at = None, []
        if self.best_step and self.best_step not in due:
            self.best, self.best_step, self.best_loss, self.worse = None, 0, math.inf, 0
            for point in self.curve:
                better = point.val_loss < self.best_loss
                self.worse = 0 if better else self.worse + 1
                if better:
                    self.best_loss, self.best_step = point.val_loss, point.step


def _part(tensors: dict[str, Tensor], prefix: str) -> Weights | None:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)} or None


def point_to_json(point: CurvePoint) -> dict[str, Any]:
    """Return an evaluation as JSON-serialisable values; NaN becomes null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(point).items()}


def point_from_json(values: dict[str, Any]) -> CurvePoint:
    """Return the evaluation of :func:`point_to_json`."""
    known: dict[str, Any] = {k: math.nan if v is None and k != "sample" else v for k, v in values.items()}
    return CurvePoint(**known)
