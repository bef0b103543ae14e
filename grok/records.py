"""The records that engines yield and the store keeps. No torch, no I/O.

An engine is a generator: ``train(jobs, ...)`` yields :class:`Progress` often,
:class:`Checkpoint` when one is due, and one :class:`RunResult` for each job. The caller
decides what to write and where.

Step ``k`` is after ``k`` updates. ``train_loss`` and ``train_acc`` are those of the
k-th mini-batch before its update; at step 0 there is no mini-batch, and they are NaN.
Losses are mean cross-entropies in nats, accuracies are shares in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from grok.config import RunConfig

STATUSES: Final = ("completed", "diverged", "failed", "rolled_back")
"""How a run ended. An interrupted run has no row: the same command continues it."""

NAN: Final = float("nan")

VAL_LOSS: Final = "val_loss."
"""Followed by the name of a further validation set: its loss in ``CurvePoint.metrics`` (GPT)."""
VAL_ACC: Final = "val_acc."
TASK: Final = "task."
"""Followed by ``NAME.METRIC``: a task's score there."""

_TAGS: Final = " | "
"""Between the numerics tags of a run that several processes computed."""


def numerics_tag(parts: Mapping[str, object]) -> str:
    """Return the numerics tag of one process: everything outside a run's identity that decides its bits."""
    return ";".join(f"{name}={value}" for name, value in parts.items())


def tag_parts(numerics: object) -> dict[str, str]:
    """Return the parts of a numerics tag, of the last process if there were several.

    >>> tag_parts("device=cpu;threads=1 | device=cuda;width=8")
    {'device': 'cuda', 'width': '8'}
    """
    return dict(part.partition("=")[::2] for part in tags_of(numerics)[-1].split(";"))


def tags_of(numerics: object) -> list[str]:
    """Return the tags of the processes that computed a run, in order."""
    return str(numerics or "").split(_TAGS)


def joined_tags(tags: Sequence[str]) -> str:
    """Return the text of several processes' tags; :func:`tags_of` reads it."""
    return _TAGS.join(tags)


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
    lr: float = NAN
    """Learning rate of update ``step``."""
    weight_norm_all: float = NAN
    """L2 norm of all parameters."""
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
    mfu: float = NAN
    """Share of the devices' peak FLOP/s that the model's FLOPs are; not a number on a CPU and on unknown devices."""
    peak_memory: float = NAN
    """Bytes: the most that tensors took on the device so far, on a CPU the most that the process took (its RSS)."""
    data_wait: float = NAN
    """Share of the step's wall time spent waiting for data."""
    event: str | None = None
    """The event of this step, one of ``grok.config.gpt.EVENTS``, or None."""


def finite_or_null(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with None, JSON's null, for each number that is not finite."""
    return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in values.items()}


@dataclass(slots=True, kw_only=True)
class RunResult:
    """One finished run: the engine's part of its row, and its curve."""

    run_id: str
    status: str
    stop_reason: str
    """``steps`` (the budget is used), ``generalised``, ``early_stop``, ``exception``, or a step's event."""
    error: str | None = None
    steps: int
    """Number of updates made."""
    weights_hash: str | None = None
    """SHA-256 of the final parameters' names and bytes in name order; None without parameters."""
    memorised_step: int | None = None
    """This and the other event times are defined in ``grok.arithmetic.outcome``; None: the event did not happen."""
    memorised_loss_step: int | None = None
    grokked_step: int | None = None
    grokked_for_good_step: int | None = None
    val_acc_dips: int | None = None
    """Number of falls below the threshold after ``grokked_step``; None: not counted (other mode, older version)."""
    val_loss_peak_step: int | None = None
    weight_norm_peak_step: int | None = None
    weight_norm_fall_step: int | None = None
    seconds: float = NAN
    device: str = "cpu"
    lane_width: int | None = None
    """Number of lanes in one batched product; None where each lane is computed alone."""
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
    """The complete state of one run in flight: a run that continues from it ends with the same bits."""

    run_id: str
    step: int
    tensors: dict[str, Any]
    """CPU torch tensors by name."""
    state: dict[str, Any]
    """The other state, JSON-serialisable: the curve so far, events so far, counters."""
    trajectory_id: str | None = None
    """That of the run; None: an engine or an older version, which do not say it."""
    parts: tuple[str, ...] = ()
    """Prefixes of names in ``tensors``: each prefix stands for a part, which other checkpoints may have, too."""
    shards: Any = None
    """Tensors that are sharded over processes: for saving, a function that writes them into a folder; after loading
    with ``whole=False``, their folders by prefix of their names."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a run: it is at ``step`` of ``steps``."""

    run_id: str
    step: int
    steps: int
    train_loss: float = NAN
    val_acc: float = NAN


@dataclass(slots=True, kw_only=True)
class Paused:
    """A run that has used its budget of time: its checkpoint was yielded before, and it has no result yet."""

    run_id: str
    words: str
    """The step at which it paused, and how to continue it."""


class KeptCheckpoints(Protocol):
    """The checkpoints that a run has kept so far."""

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints."""

    def load(self, step: int) -> Checkpoint:
        """Return the checkpoint of ``step``, with sharded tensors joined.

        Raises:
            CheckpointError: it is damaged or missing.
        """


@dataclass(slots=True, kw_only=True)
class Job:
    """One run to train: its run_id, its settings, and the checkpoint from which it continues."""

    run_id: str
    config: RunConfig
    resume: Checkpoint | None = None
    kept: KeptCheckpoints | None = None
    """Checkpoints to which a rollback may return, beside the states in memory; None: no checkpoints."""


Event = Progress | Checkpoint | Paused | RunResult
StopRequested = Callable[[], bool]
"""Called between steps; if it returns True, the engine yields a last Checkpoint for each run in flight and returns."""
