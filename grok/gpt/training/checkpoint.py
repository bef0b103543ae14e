"""A run's history and its checkpoints: the resumed run equals one that never stopped.

Every tensor keeps its dtype. A checkpoint contains the settings that decide a
result. To continue with other settings, each of them must be named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from grok import checkpoints
from grok.config.fields import canonical_json, walk
from grok.config.gpt import GptConfig
from grok.errors import CheckpointError, in_words, one_line
from grok.gpt.model import GPT
from grok.gpt.training.parallel import Ranks, keep, like, local, read_shares, write_shares
from grok.gpt.training.stability import Branch
from grok.gpt.training.trainer import Counters, Trainer, state_of, state_tensors
from grok.records import Checkpoint, CurvePoint, KeptCheckpoints, StepPoint, finite_or_null

# A run's history: its curve, its log of steps, its best and its averaged weights.

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

    def observe(self, point: CurvePoint, model: GPT | None = None) -> None:
        """Add an evaluation; with a ``model``, keep its weights where the evaluation is the best so far."""
        self.curve.append(point)
        if point.val_loss < self.best_loss:
            self.best_loss, self.best_step, self.worse = point.val_loss, point.step, 0
            self.best = None if model is None else copy_weights(model)
        else:
            self.worse += 1

    def add_to_average(self, step: int, model: GPT) -> None:
        """Add the present weights, after ``step`` updates, to the mean."""
        now = copy_weights(model)
        self.averaged_at.append(step)
        if len(self.averaged_at) == 1:
            self.average = now
        else:
            assert self.average is not None
            self.average = {n: a + (now[n] - a) / len(self.averaged_at) for n, a in self.average.items()}

    def fork(self) -> History:
        """Return a copy for a rollback; the weights are shared."""
        return replace(self, curve=list(self.curve), log=list(self.log), averaged_at=list(self.averaged_at))

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
            "curve": [finite_or_null(asdict(p)) for p in self.curve],
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
        points: list[dict[str, Any]] = [
            {k: math.nan if v is None and k != "sample" else v for k, v in p.items()} for p in state["curve"]
        ]
        return cls(
            curve=[CurvePoint(**values) for values in points],
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
        kept = [p for p in self.curve if p.step in due]
        last = max((p.step for p in self.log), default=0)
        if self.averaged_at != sorted(k for k in averaged if k <= last):
            self.average, self.averaged_at = None, []
        if self.best_step in (0, *due):
            self.curve, self.worse = kept, sum(p.step > self.best_step for p in kept)
            return
        self.best, self.best_step, self.best_loss, self.worse, self.curve = None, 0, math.inf, 0, []
        for point in kept:
            self.observe(point)


def _part(tensors: dict[str, Tensor], prefix: str) -> Weights | None:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)} or None


# Makes a checkpoint of a run in training and restores it: the resumed run equals one that never stopped.

VERSION: Final = 1
FIXED: Final = frozenset(
    f"model.{name}"
    for name in (
        "layers", "d_model", "heads", "kv_heads", "d_ff", "context", "vocab_size", "vocab_multiple", "norm_type",
        "positions", "bias", "tied", "qk_norm", "plugin",
    )
) | {"optim.kind", "optim.plugin", "optim.intervention"}  # fmt: skip
"""Settings that determine the shapes of tensors, or the state beside the weights."""
OWN: Final = "optim.own."
"""Before the names of the state of the user's own optimiser and intervention."""


@dataclass(slots=True)
class Moment:
    """A state that a run can return to: tensors, other state, and the history until then."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    history: History


def capture(trainer: Trainer, history: History) -> Moment:
    """Return the present state, copied to the CPU; of a sharded model this process's shards."""
    tensors = {}
    for name, p in trainer.model.named_parameters():
        tensors[f"model.{name}"] = keep(p)
        for key, value in {} if trainer.own_optimizer else state_tensors(trainer.optimizer, p).items():
            tensors[f"optim.{key}.{name}"] = keep(value)
    tensors |= {f"{OWN}{name}": keep(value) for name, value in trainer.own_state().items()}
    state = {
        "counters": asdict(trainer.counters),
        "watch": trainer.watch.state(),
        "branch": asdict(trainer.branch),
    }
    return Moment(trainer.counters.step, tensors, state, history.fork())


@torch.no_grad()
def put_back(trainer: Trainer, moment: Moment) -> History:
    """Set ``trainer`` to the state ``moment`` and return its history."""
    trainer.optimizer.state.clear()
    keys = {n.split(".")[1] for n in moment.tensors if n.startswith("optim.") and not n.startswith(OWN)}
    for name, p in trainer.model.named_parameters():
        p.copy_(like(moment.tensors[f"model.{name}"], p))
        p.grad = None
        saved = {key: moment.tensors.get(f"optim.{key}.{name}") for key in keys}
        state = {key: like(_in_dtype_of(p, t), p) for key, t in saved.items() if t is not None}
        if state:
            trainer.optimizer.state[p] = state_of(trainer.optimizer, state)
    trainer.restore_own({n.removeprefix(OWN): t for n, t in moment.tensors.items() if n.startswith(OWN)})
    trainer.counters = Counters(**moment.state["counters"])
    trainer.watch.load(moment.state["watch"])
    trainer.branch = Branch(**moment.state["branch"])
    return moment.history.fork()


def _in_dtype_of(parameter: Tensor, saved: Tensor) -> Tensor:
    """Return a moment in the dtype of its parameter, which ``resume.changes=[precision]`` may have changed."""
    is_moment = saved.is_floating_point() and saved.shape == parameter.shape  # not a step count, not codes of 8 bits
    return saved.to(parameter.dtype) if is_moment else saved


def deciding_settings(config: GptConfig) -> dict[str, Any]:
    """Return the settings that decide a trajectory, by dotted name; lists and maps as canonical JSON text."""
    roles = {"result"} if config.length_is_free() else {"result", "length"}
    values = {
        name: canonical_json(value) if isinstance(value, (list, dict)) else value
        for name, value, rule in walk(config)
        if rule.role in roles and not name.startswith("resume.")
    }
    seeds = asdict(config.stream_seeds())
    return values | {f"seeds.{name}": seeds[name] for name in sorted(config.live_streams())}


def to_checkpoint(
    run_id: str, config: GptConfig, now: Moment, kept: list[Moment], rest: dict[str, Any], ranks: Ranks | None = None
) -> Checkpoint:
    """Return the checkpoint of a run that is at ``now`` and may roll back to ``kept``; ``rest``: the engine's state."""
    tensors: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    first_name: dict[int, str] = {}
    moments = []
    prefixes = _prefixes(1 + len(kept))
    for prefix, moment in zip(prefixes, [now, *kept], strict=True):
        for n, t in (moment.tensors | moment.history.tensors()).items():
            if first_name.setdefault(id(t), prefix + n) == prefix + n:
                tensors[prefix + n] = t
            else:  # moments share their best weights, in memory and on the disk
                same[prefix + n] = first_name[id(t)]
        moments.append({"step": moment.step, "state": moment.state, "history": moment.history.state()})
    parts = (*prefixes[1:], *(f"{prefix}{weights}" for prefix in prefixes for weights in ("best.", "average.")))
    shares: dict[str, Tensor] = {n: t for n, t in tensors.items() if isinstance(t, DTensor)}
    state = {"version": VERSION, "settings": deciding_settings(config), "moments": moments, "same": same, **rest}
    if shares:
        state["shares"] = list(shares)
    whole = {n: t for n, t in tensors.items() if n not in shares}
    write = Shares(checkpoints.split(shares, parts), ranks or Ranks()) if shares else None
    return Checkpoint(run_id=run_id, step=now.step, tensors=whole, state=state, parts=parts, shards=write)


def _prefixes(moments: int) -> list[str]:
    """Return what stands before the names of the tensors of each moment of a checkpoint, the present one first."""
    return ["", *(f"kept.{i}." for i in range(1, moments))]


class Shares:
    """The sharded tensors of a checkpoint; all processes write them together."""

    def __init__(self, groups: dict[str, dict[str, Tensor]], ranks: Ranks) -> None:
        """``groups``: the tensors of each part, by the prefix of their names; all others have the key ``""``."""
        self.groups, self.ranks = groups, ranks
        self.written = False

    def __call__(
        self, folder: Path | None = None, earlier: Sequence[Path] | None = None
    ) -> dict[str, checkpoints.Entry]:
        """Write the shards into ``folder`` and the parts beside it. Every process calls this, rank 0 with arguments.

        Return, on rank 0, the entries of the parts for the checkpoint's manifest.

        Raises:
            CheckpointError: a process could not write.
        """
        if self.written:
            raise CheckpointError(f"{folder}: another process removed the checkpoint while it was written")
        self.written = True
        folder = Path(self.ranks.tell(None if folder is None else str(folder.resolve())))
        entries = {}
        try:
            self._write(self.groups[""], folder)
            for prefix, group in self.groups.items():
                if prefix:
                    part = folder.with_name(checkpoints.folder_of(self._content(group)))
                    if self.ranks.tell(earlier is not None and self._is_missing(part, earlier)):
                        self._write(group, part)
                    if earlier is not None:
                        entries[prefix] = checkpoints.entry_of(part)
        except CheckpointException as error:
            raise CheckpointError(f"writing {folder}: {one_line(error)}") from error
        return entries

    def _write(self, group: dict[str, Tensor], folder: Path) -> None:
        with self.ranks.watched():
            write_shares(group, folder)

    def _is_missing(self, part: Path, earlier: Sequence[Path]) -> bool:
        """Return whether the processes must write a part; if so, its folder exists afterwards."""
        missing = not part.exists() and checkpoints.share_part(part.name, part.parent, earlier) is None
        if missing:
            part.mkdir()
        return missing

    def _content(self, group: dict[str, Tensor]) -> str:
        """Return a hash of all processes' shards of ``group``."""
        own = checkpoints.content_hash({name: local(tensor) for name, tensor in group.items()})
        every = torch.zeros(self.ranks.size, len(own) // 2, dtype=torch.int64)
        every[self.ranks.index] = torch.tensor(list(bytes.fromhex(own)))
        return checkpoints.content_hash({"shares": self.ranks.sum(every)})


def read_checkpoint_shares(checkpoint: Checkpoint, trainer: Trainer) -> dict[str, Tensor]:
    """Return the sharded tensors of a checkpoint, sharded as ``trainer`` has them.

    Raises:
        CheckpointError: they cannot be read on this machine.
    """
    parameters = dict(trainer.model.named_parameters())
    tensors = {n: keep(parameters[parameter_of(n)]) for n in checkpoint.state["shares"]}
    for prefix, group in checkpoints.split(tensors, checkpoint.shards).items():
        folder = checkpoint.shards[prefix]
        words = f"the shards of the checkpoint in {folder} cannot be read: every process needs the store's folder"
        with in_words(CheckpointError, words, OSError, CheckpointException):
            read_shares(group, Path(folder))
    return tensors


def parameter_of(name: str) -> str:
    """Return the parameter that a checkpoint's tensor belongs to.

    >>> parameter_of("kept.2.optim.exp_avg.blocks.0.mlp.up.weight"), parameter_of("model.head.weight")
    ('blocks.0.mlp.up.weight', 'head.weight')
    """
    own = name.split(".", 2)[2] if name.startswith("kept.") else name
    return own.split(".", 2)[2] if own.startswith("optim.") else own.removeprefix("model.")


def from_checkpoint(checkpoint: Checkpoint) -> tuple[Moment, list[Moment]]:
    """Return the state to resume from, and the older ones that a rollback may return to.

    Raises:
        CheckpointError: it was written by another mode or by a newer version.
    """
    version = checkpoint.state.get("version")
    if version != VERSION or "moments" not in checkpoint.state:
        raise CheckpointError(
            f"the checkpoint of run {checkpoint.run_id} at step {checkpoint.step} has version {version!r}; "
            f"this mode reads version {VERSION}"
        )
    stored = checkpoint.tensors | {n: checkpoint.tensors[first] for n, first in checkpoint.state["same"].items()}
    moments, entries = [], checkpoint.state["moments"]
    prefixes = _prefixes(len(entries))
    groups = checkpoints.split(stored, prefixes[1:])
    for prefix, entry in zip(prefixes, entries, strict=True):
        own = groups[prefix]
        tensors = {n: t for n, t in own.items() if n.startswith(("model.", "optim."))}
        moments.append(Moment(entry["step"], tensors, entry["state"], History.load(own, entry["history"])))
    return moments[0], moments[1:]


def is_kept(checkpoint: Checkpoint, left: Sequence[int]) -> bool:
    """Return whether a run that left its branches at the steps ``left`` is still on the checkpoint's branch there.

    A checkpoint that a rollback abandoned stays on the disk until the run has passed its step again.
    """
    branch = checkpoint.state["moments"][0]["state"]["branch"]["number"]
    return all(checkpoint.step <= step for step in left[branch:])


def kept_before(
    kept: KeptCheckpoints | None, every: int, wanted: int, left: Sequence[int], say: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest intact checkpoint of this branch or its ancestors, at most at step ``wanted``, or None.

    ``every``: ``checkpoint.keep_every``. ``left``: for each rollback, the step at which the new branch begins.

    Raises:
        CheckpointUnreadable: one that may be intact cannot be read.
    """
    if kept is None or not every:
        return None
    # only permanent checkpoints: which of the others exist depends on the clock
    for step in sorted((s for s in kept.steps() if 0 < s <= wanted and s % every == 0), reverse=True):
        try:
            checkpoint = kept.load(step)
        except CheckpointError as error:
            say(f"the rollback skips the checkpoint of step {step}: {error}")
            continue
        if is_kept(checkpoint, left):
            return checkpoint
    return None


def check_settings(checkpoint: Checkpoint, config: GptConfig, data_hash: str) -> list[str]:
    """Return the settings that differ from the checkpoint's and were named in ``resume.changes``, with both values.

    Raises:
        CheckpointError: a setting differs and was not named, a named setting does not differ, or the data differ.
    """
    whose = f"the checkpoint of run {checkpoint.run_id} at step {checkpoint.step}"
    now = deciding_settings(config)
    was = checkpoint.state["settings"]
    different = {n: (was[n], now[n]) for n in sorted(was.keys() & now.keys()) if was[n] != now[n]}
    shown = {n: f"{n}: checkpoint {a}, now {b}" for n, (a, b) in different.items()}
    if silent := [text for n, text in shown.items() if n not in config.resume.changes]:
        raise CheckpointError(
            f"{whose} was made under other settings ({'; '.join(silent)}): go on under the same ones, or start a new "
            f"run from it with resume.run={checkpoint.run_id} resume.step={checkpoint.step} and "
            "resume.changes=[...] naming each"
        )
    fixed = FIXED | ({"model.activation"} if "swiglu" in different.get("model.activation", ()) else set())
    if refused := [text for n, text in shown.items() if n in fixed]:
        raise CheckpointError(
            f"{whose} has weights of other shapes, or another optimiser's state ({'; '.join(refused)}): "
            "these settings cannot change on the way, start a new run"
        )
    own = checkpoint.run_id != config.resume.run  # made under these settings, after the changes
    if idle := [n for n in config.resume.changes if n not in different and not own]:
        raise CheckpointError(
            f"resume.changes names {', '.join(idle)}, which does not differ from the checkpoint's: "
            f"what differs is {', '.join(different) or 'nothing'}"
        )
    if checkpoint.state["data"] != data_hash:
        raise CheckpointError(
            f"{whose} was trained on data {checkpoint.state['data'][:12]}, and data.path={config.data.path} holds "
            f"{data_hash[:12]}: give the folder it was trained on"
        )
    return list(shown.values())


# Averages the weights of a run's checkpoints into a new checkpoint.


def abandoned_steps(folder: Path, steps: Sequence[int], of: checkpoints.Origin) -> list[int]:
    """Return those of ``steps`` whose checkpoint in ``folder`` is of a branch that a rollback of the run ``of`` left.

    Such a checkpoint stays until the new branch has passed its step.

    Raises:
        CheckpointError: none is intact, or one after the step of a rollback is damaged.
    """
    if not steps:
        return []
    newest = checkpoints.load_checkpoint(folder, of=of).state
    left = newest.get("left", [])  # only language models roll back
    doubtful = [step for step in steps if left and step > min(left)]  # the others need no check of their files
    return [step for step in doubtful if not is_kept(checkpoints.read_state(folder, step, of=of), left)]


def average(folder: Path, run_id: str, steps: Sequence[int], of: checkpoints.Origin) -> Checkpoint:
    """Return the checkpoint ``run_id``: the mean of the weights in ``folder`` of the run ``of`` at ``steps``.

    It has the settings and counters of the last of these, but no moments and no history. Sums are float64.

    Raises:
        CheckpointError: a checkpoint is missing or damaged.
    """
    sums: dict[str, torch.Tensor] = {}
    for step in steps:
        checkpoint = checkpoints.load_checkpoint(folder, step, of=of)
        now, _ = from_checkpoint(checkpoint)
        weights = {n: t for n, t in now.tensors.items() if n.startswith("model.")}
        sums = {n: sums.get(n, torch.zeros((), dtype=torch.float64)) + t.double() for n, t in weights.items()}
    means = {n: (t / len(steps)).to(weights[n].dtype) for n, t in sums.items()}
    empty = History()
    moment = {"step": now.step, "state": now.state, "history": empty.state()}
    state = {n: v for n, v in checkpoint.state.items() if n != "shares"}
    state |= {"moments": [moment], "same": {}, "averaged": {"run_id": checkpoint.run_id, "steps": list(steps)}}
    return Checkpoint(run_id=run_id, step=now.step, tensors=means | empty.tensors(), state=state)
