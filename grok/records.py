"""What the engines say and the store keeps: plain records, no torch, no I/O.

An engine is a generator: ``train(jobs, ...)`` yields :class:`Progress` often,
:class:`Checkpoint` when one is due, and one :class:`RunResult` for each job. Whoever
iterates decides what to write and where.

Step ``k`` is after ``k`` updates. ``train_loss`` and ``train_acc`` are those of the
k-th mini-batch before its update; at step 0 there is no mini-batch, and they are NaN.
Losses are mean natural-log cross-entropies, accuracies shares in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from grok.config import RunConfig

STATUSES: Final = ("completed", "diverged", "failed", "rolled_back")
"""How a run ended. An interrupted run has no row: it goes on when the command is given again."""

NAN: Final = float("nan")

VAL_LOSS: Final = "val_loss."
"""Followed by the name of a further validation set: its loss in ``CurvePoint.metrics`` (GPT)."""
VAL_ACC: Final = "val_acc."
TASK: Final = "task."
"""Followed by ``NAME.METRIC``: a task's score there."""

FORMER_COMPONENTS: Final = {"embedding": "token_embedding", "positions": "position_embedding"}
"""Names in ``block_norms`` that language models wrote at first, and the parameters' own, which both modes write now."""


@dataclass(slots=True, kw_only=True)
class CurvePoint:
    """One evaluation of one run."""

    step: int
    train_loss: float = NAN
    train_acc: float = NAN
    val_loss: float = NAN
    val_acc: float = NAN
    weight_norm: float = NAN
    """L2 norm of all parameters but token and position embeddings."""
    weight_norm_all: float = NAN
    """L2 norm of all parameters."""
    lr: float = NAN
    """Learning rate of update ``step``."""
    block_norms: dict[str, float] = field(default_factory=dict)
    """L2 norm per component, named as ``grok.runs.component`` does: ``token_embedding``, ``blocks.0`` ..., ``head``."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Optional further measurements by name."""
    sample: str | None = None
    """Text generated at this evaluation (GPT)."""


@dataclass(slots=True, kw_only=True)
class StepPoint:
    """GPT's log of one optimiser step."""

    step: int
    train_loss: float = NAN
    lr: float = NAN
    grad_norm: float = NAN
    param_norm: float = NAN
    adam_v_l1: float = NAN
    adam_v_max: float = NAN
    loss_scale: float = NAN
    skipped_steps: int = 0
    nan_steps: int = 0
    zeros_in_grads: float = NAN
    consumed_samples: int = 0
    consumed_tokens: int = 0
    tokens_per_second: float = NAN
    data_wait: float = NAN
    """Share of the step's wall time spent waiting for data."""
    event: str | None = None
    """What happened in this step, if anything: one of ``grok.config.stability.EVENTS``."""


@dataclass(slots=True, kw_only=True)
class RunResult:
    """One finished run: everything of its row that the engine knows, and its curve."""

    run_id: str
    status: str
    stop_reason: str
    """``steps`` (the budget is used), ``generalised``, ``early_stop``, ``exception``, or a step's event."""
    error: str | None = None
    steps: int
    """Updates made."""
    weights_hash: str | None = None
    """SHA-256 of the final parameters' bytes in name order; null where there are none."""
    memorised_step: int | None = None
    """This and the other event times: ``grok.arithmetic.outcome``; null where the event did not happen."""
    memorised_loss_step: int | None = None
    grokked_step: int | None = None
    grokked_for_good_step: int | None = None
    val_acc_dips: int | None = None
    """Falls under the threshold after ``grokked_step``; null: not counted (another mode, an older version)."""
    val_loss_peak_step: int | None = None
    weight_norm_peak_step: int | None = None
    weight_norm_fall_step: int | None = None
    seconds: float = NAN
    device: str = "cpu"
    lane_width: int | None = None
    """Lanes side by side in batched products; null where each lane is a program of its own."""
    numerics: str = ""
    """The numerics tag."""
    started_at: float = NAN
    """Seconds since 1970, UTC."""
    parent_run_id: str | None = None
    branch_step: int | None = None
    curve: list[CurvePoint] = field(default_factory=list)
    step_log: list[StepPoint] = field(default_factory=list)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Weights to keep by moment (``init``, ``final``), then by name; CPU torch tensors."""


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """All of one run in flight: loading it and going on equals never having stopped."""

    run_id: str
    step: int
    tensors: dict[str, Any]
    """CPU torch tensors by name."""
    state: dict[str, Any]
    """JSON-able rest: the curve so far, events so far, counters."""
    shards: Any = None
    """Tensors that several processes hold in parts: when saved, a function that writes them into a folder; when
    loaded in parts, that folder."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """A run is at ``step`` of ``steps``."""

    run_id: str
    step: int
    steps: int
    train_loss: float = NAN
    val_acc: float = NAN
    curve: Sequence[CurvePoint] = ()
    """All evaluations so far, where the engine tells them (GPT)."""
    step_log: Sequence[StepPoint] = ()
    """All steps so far, likewise."""


@dataclass(slots=True, kw_only=True)
class Paused:
    """A run whose budget of time is used: its checkpoint was yielded just before, and it has no result yet."""

    run_id: str
    words: str
    """At which step, and what continues it."""


class KeptCheckpoints(Protocol):
    """The checkpoints that a run has left so far."""

    def steps(self) -> list[int]:
        """Return their steps."""

    def load(self, step: int) -> Checkpoint:
        """Return that of ``step``, its tensors whole.

        Raises:
            CheckpointError: it is damaged, or gone.
        """


@dataclass(slots=True, kw_only=True)
class Job:
    """One run to train: its name, its settings, and where to go on from."""

    run_id: str
    config: RunConfig
    resume: Checkpoint | None = None
    kept: KeptCheckpoints | None = None
    """What a rollback may return to beside the states in memory; None: nothing."""


Event = Progress | Checkpoint | Paused | RunResult
StopRequested = Callable[[], bool]
"""Asked between steps; True makes an engine yield a last Checkpoint per run in flight and return."""
