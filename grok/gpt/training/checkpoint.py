"""Makes a checkpoint of a run in training and restores it: the resumed run equals one that never stopped.

Every tensor keeps its dtype. A checkpoint contains the settings that decide a
result. To continue with other settings, each of them must be named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from grok.config.fields import canonical_json, walk
from grok.config.gpt import GptConfig
from grok.errors import CheckpointError, CheckpointUnreadable, one_line
from grok.gpt.training.counters import Counters
from grok.gpt.training.history import History
from grok.gpt.training.optimizer import state_of, state_tensors
from grok.gpt.training.parallel import in_shares, keep, like, local, read_shares, write_shares
from grok.gpt.training.ranks import Ranks
from grok.gpt.training.stability import Branch
from grok.gpt.training.trainer import Trainer
from grok.parts import SPARE, EarlierParts, Entry, entry_of, folder_of, split
from grok.records import Checkpoint, KeptCheckpoints
from grok.tensors import content_hash

VERSION: Final = 1
SHAPES: Final = frozenset(
    f"model.{name}"
    for name in (
        "layers", "d_model", "heads", "kv_heads", "d_ff", "context", "vocab_size", "vocab_multiple", "norm_type",
        "positions", "bias", "tied", "qk_norm",
    )
)  # fmt: skip
"""Settings that determine the tensors and their shapes."""


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
        for key, value in state_tensors(trainer.optimizer, p).items():
            tensors[f"optim.{key}.{name}"] = keep(value)
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
    keys = {n.split(".")[1] for n in moment.tensors if n.startswith("optim.")}
    for name, p in trainer.model.named_parameters():
        p.copy_(like(moment.tensors[f"model.{name}"], p))
        p.grad = None
        saved = {key: moment.tensors.get(f"optim.{key}.{name}") for key in keys}
        state = {key: like(_in_dtype_of(p, t), p) for key, t in saved.items() if t is not None}
        if state:
            trainer.optimizer.state[p] = state_of(trainer.optimizer, state)
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
    for i, moment in enumerate([now, *kept]):
        prefix = "" if i == 0 else f"kept.{i}."
        for n, t in (moment.tensors | moment.history.tensors()).items():
            if first_name.setdefault(id(t), prefix + n) == prefix + n:
                tensors[prefix + n] = t
            else:  # moments share their best weights, in memory and on the disk
                same[prefix + n] = first_name[id(t)]
        moments.append({"step": moment.step, "state": moment.state, "history": moment.history.state()})
    prefixes = ["", *(f"kept.{i}." for i in range(1, len(moments)))]
    parts = (*prefixes[1:], *(f"{prefix}{weights}" for prefix in prefixes for weights in SPARE))
    shares: dict[str, Tensor] = {n: t for n, t in tensors.items() if isinstance(t, DTensor)}
    state = {"version": VERSION, "settings": deciding_settings(config), "moments": moments, "same": same, **rest}
    if shares:
        state["shares"] = list(shares)
    whole = {n: t for n, t in tensors.items() if n not in shares}
    write = Shares(split(shares, parts), ranks or Ranks()) if shares else None
    return Checkpoint(run_id=run_id, step=now.step, tensors=whole, state=state, parts=parts, shards=write)


class Shares:
    """The sharded tensors of a checkpoint; all processes write them together."""

    def __init__(self, groups: dict[str, dict[str, Tensor]], ranks: Ranks) -> None:
        """``groups``: the tensors of each part, by the prefix of their names; all others have the key ``""``."""
        self.groups, self.ranks = groups, ranks
        self.written = False

    def __call__(self, folder: Path | None = None, earlier: EarlierParts | None = None) -> dict[str, Entry]:
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
                    part = folder.with_name(folder_of(self._content(group)))
                    if self.ranks.tell(earlier is not None and self._is_missing(part, earlier)):
                        self._write(group, part)
                    if earlier is not None:
                        entries[prefix] = entry_of(part)
        except CheckpointException as error:
            raise CheckpointError(f"writing {folder}: {one_line(error)}") from error
        return entries

    def _write(self, group: dict[str, Tensor], folder: Path) -> None:
        with self.ranks.watched():
            write_shares(group, folder)

    def _is_missing(self, part: Path, earlier: EarlierParts) -> bool:
        """Return whether the processes must write a part; if so, its folder exists afterwards."""
        missing = not part.exists() and earlier.share(part.name, part.parent) is None
        if missing:
            part.mkdir()
        return missing

    def _content(self, group: dict[str, Tensor]) -> str:
        """Return a hash of all processes' shards of ``group``."""
        own = content_hash({name: local(tensor) for name, tensor in group.items()})
        every = torch.zeros(self.ranks.size, len(own) // 2, dtype=torch.int64)
        every[self.ranks.index] = torch.tensor(list(bytes.fromhex(own)))
        return content_hash({"shares": self.ranks.sum(every)})


def read_checkpoint_shares(checkpoint: Checkpoint, trainer: Trainer) -> dict[str, Tensor]:
    """Return the sharded tensors of a checkpoint, sharded as ``trainer`` has them.

    Raises:
        CheckpointError: they cannot be read on this machine.
    """
    parameters = dict(trainer.model.named_parameters())
    tensors = in_shares({n: parameters[parameter_of(n)] for n in checkpoint.state["shares"]})
    for prefix, group in split(tensors, checkpoint.shards).items():
        folder = checkpoint.shards[prefix]
        try:
            read_shares(group, Path(folder))
        except (OSError, CheckpointException) as error:
            raise CheckpointError(
                f"the shards of the checkpoint in {folder} cannot be read ({one_line(error)}): every process needs the "
                "store's folder"
            ) from error
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
    shared = {n: first for n, first in checkpoint.state["same"].items() if not first.startswith(checkpoint.lost)}
    stored = checkpoint.tensors | {n: checkpoint.tensors[first] for n, first in shared.items()}
    moments = []
    for i, entry in enumerate(checkpoint.state["moments"]):
        prefix = "" if i == 0 else f"kept.{i}."
        own = {
            n.removeprefix(prefix): t
            for n, t in stored.items()
            if (n.startswith(prefix) if prefix else not n.startswith("kept."))
        }
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
        except CheckpointUnreadable:
            raise
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
    now = deciding_settings(config)
    was = checkpoint.state["settings"]
    different = {n: (was[n], now[n]) for n in sorted(was.keys() & now.keys()) if was[n] != now[n]}
    shown = {n: f"{n}: checkpoint {a}, now {b}" for n, (a, b) in different.items()}
    silent = [text for n, text in shown.items() if n not in config.resume.changes]
    if silent:
        raise CheckpointError(
            f"the checkpoint of run {checkpoint.run_id} at step {checkpoint.step} was made under other settings "
            f"({'; '.join(silent)}): go on under the same ones, or start a new run from it with "
            f"resume.run={checkpoint.run_id} resume.step={checkpoint.step} resume.changes=[...] naming each"
        )
    gated = any("swiglu" in values for n, values in different.items() if n == "model.activation")
    reshaped = [shown[n] for n in different if n in SHAPES or (gated and n == "model.activation")]
    if reshaped:
        raise CheckpointError(
            f"the checkpoint of run {checkpoint.run_id} at step {checkpoint.step} has weights of other shapes "
            f"({'; '.join(reshaped)}): these settings cannot change on the way, start a new run"
        )
    if "optim.kind" in different:
        raise CheckpointError(
            f"the checkpoint of run {checkpoint.run_id} has the state of another optimiser ({shown['optim.kind']}): "
            "optim.kind cannot change on the way, start a new run"
        )
    own = checkpoint.run_id != config.resume.run  # made under these settings, after the changes
    idle = [n for n in config.resume.changes if n not in different and not own]
    if idle:
        raise CheckpointError(
            f"resume.changes names {', '.join(idle)}, which does not differ from the checkpoint's: "
            f"what differs is {', '.join(different) or 'nothing'}"
        )
    if checkpoint.state["data"] != data_hash:
        raise CheckpointError(
            f"the checkpoint of run {checkpoint.run_id} was trained on data {checkpoint.state['data'][:12]}, "
            f"and data.path={config.data.path} holds {data_hash[:12]}: give the folder it was trained on"
        )
    return list(shown.values())
