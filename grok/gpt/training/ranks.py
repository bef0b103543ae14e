"""The processes that train a run together, started by ``torchrun``, and their communication.

Every process runs the same engine on the same job. Rank 0 plans, prints and writes; the others receive
their jobs from it, as JSON and plain tensors. What only one process knows (the clock, a signal) is exchanged before
any process acts on it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from grok.config import load_config
from grok.errors import GrokError, TrainingError, one_line
from grok.files import unique
from grok.processes import Rank
from grok.records import Checkpoint, Event, Job

PATIENCE: Final = timedelta(minutes=30)
"""Longest wait for another process, which may be writing a checkpoint."""
CONNECTION: Final = timedelta(minutes=1)
"""Longest wait for a connection to ``torchrun``, which may have ended."""
LOST: Final = ("gloo", "Connection", "peer", "Socket", "ProcessGroup", "NCCL")
"""Words in torch's errors after the end of another process."""


class RankLost(TrainingError):
    """Another process of this run ended."""


class RefusedElsewhere(TrainingError):
    """Another process of this run refused. It prints the reason."""


class Ranks:
    """This process's rank in a run, and the communication of all processes. Every process must make each call."""

    def __init__(self, rank: Rank | None = None) -> None:
        self.rank = rank or Rank()
        self.index, self.size = self.rank.index, self.rank.size
        self.busy = False
        """Whether a job is in progress: the other processes then wait for its next call."""

    @classmethod
    def of_this_process(cls) -> Ranks:
        """Return the rank of this process; under ``torchrun`` the first call waits for all processes.

        Raises:
            RankLost: another process, or ``torchrun``, ended meanwhile.
        """
        rank = Rank.of_this_process()
        with cls(rank).watched():
            return _joined(rank)

    def jobs(self, own: Sequence[Job]) -> Iterator[Job]:
        """Yield the jobs of rank 0 on every process. On the other ranks they end only with :meth:`end`."""
        if self.index == 0:
            for job in own:
                self._hand_over(job)
                self.busy = self.size > 1
                yield job
            return
        while (received := self._receive()) is not None:
            self.busy = True
            yield received

    def end(self) -> None:
        """End the other ranks; called by rank 0 between jobs."""
        if self.size > 1 and self.index == 0 and not self.busy:
            with contextlib.suppress(RankLost):  # it has printed the reason
                self.tell(None)

    def leave(self) -> None:
        """Close the connections to the others, between jobs."""
        if self.size > 1 and not self.busy:
            dist.destroy_process_group()
            _joined.cache_clear()

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by its sum over the processes; the same bits everywhere."""
        if self.size > 1:
            with self.watched():
                dist.all_reduce(tensor)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by its largest value over the processes."""
        if self.size > 1:
            with self.watched():
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def any(self, here: bool) -> bool:
        """Return whether ``here`` is true on any process."""
        return here if self.size == 1 else bool(self.largest(torch.tensor(int(here))))

    def tell(self, message: Any = None) -> Any:
        """Return rank 0's ``message`` (JSON) on every process."""
        if self.size == 1:
            return message
        text = json.dumps(message).encode() if self.index == 0 else b""
        length = torch.tensor(len(text))
        self.broadcast(length)
        buffer = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
        if self.index:
            buffer = torch.empty(int(length), dtype=torch.uint8)
        self.broadcast(buffer)
        return json.loads(buffer.numpy().tobytes())

    def broadcast(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by that of rank 0."""
        with self.watched():
            dist.broadcast(tensor, src=0)

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Run a block without communication; if it raises a GrokError on any process, raise an error on every process.

        Raises:
            GrokError: this process's own error, if it is the first process with one.
            RefusedElsewhere: another process is the first one.
        """
        error: GrokError | None = None
        try:
            yield
        except GrokError as e:
            error = e
        if self.size > 1:
            first = self.largest(torch.tensor(0 if error is None else self.size - self.index))
            refusing = self.size - int(first)
            if refusing not in (self.index, self.size):
                raise RefusedElsewhere(f"rank {refusing} of this run refused, and prints the reason")
        if error is not None:
            raise error

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Run a block with communication. If it fails because another process ended, say so in one line.

        Raises:
            RankLost: another process ended, or did not answer.
        """
        try:
            yield
        except RuntimeError as error:
            if self.size > 1 and (isinstance(error, dist.DistError) or any(word in str(error) for word in LOST)):
                raise RankLost(
                    f"another process of this run ended or does not answer (this is rank {self.index} of {self.size})"
                ) from error
            raise

    def share_checkpoint(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Return rank 0's checkpoint, or None, on every process, with only those tensors that training needs."""
        if self.size == 1:
            return checkpoint
        if self.index:
            return self._receive_checkpoint(self.tell())
        self.tell(_described(checkpoint))
        self._send_tensors(checkpoint)
        return checkpoint

    def _hand_over(self, job: Job) -> None:
        if self.size > 1:
            self.tell({"run_id": job.run_id, "config": asdict(job.config), "resume": _described(job.resume)})
            self._send_tensors(job.resume)

    def _receive(self) -> Job | None:
        message = self.tell()
        if message is None:
            return None
        resume = self._receive_checkpoint(message["resume"])
        return Job(run_id=message["run_id"], config=load_config(message["config"]), resume=resume)

    def _send_tensors(self, checkpoint: Checkpoint | None) -> None:
        for tensor in _deciding(checkpoint).values():
            self.broadcast(tensor.contiguous())

    def _receive_checkpoint(self, saved: dict[str, Any] | None) -> Checkpoint | None:
        if saved is None:
            return None
        tensors = {n: torch.empty(shape, dtype=getattr(torch, dtype)) for n, dtype, shape in saved["tensors"]}
        for tensor in tensors.values():
            self.broadcast(tensor)
        state = saved["state"]
        state = state | {"same": {n: first for n, first in state["same"].items() if first in tensors}}
        return Checkpoint(
            run_id=saved["run_id"], step=saved["step"], tensors=tensors, state=state, shards=saved["shards"]
        )


def _described(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    """Return a checkpoint without the values of its tensors, JSON-serialisable."""
    if checkpoint is None:
        return None
    needed = _deciding(checkpoint).items()
    return {
        "run_id": checkpoint.run_id,
        "step": checkpoint.step,
        "state": checkpoint.state,
        "shards": checkpoint.shards and {part: str(folder) for part, folder in checkpoint.shards.items()},
        "tensors": [[n, str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in needed],
    }


def _deciding(checkpoint: Checkpoint | None) -> dict[str, Tensor]:
    return {} if checkpoint is None else {n: t for n, t in checkpoint.tensors.items() if _decides(n)}


def _decides(name: str) -> bool:
    """Return whether training needs a checkpoint's tensor; rank 0 alone keeps best and averaged weights."""
    own = name.split(".", 2)[2] if name.startswith("kept.") else name
    return own == "log" or own.startswith(("model.", "optim."))


@functools.lru_cache(maxsize=1)
def _joined(rank: Rank) -> Ranks:
    if rank.size > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(rank.local % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # torchrun makes the store before it starts a process; without it rank 0 makes the store at any time
        kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store, _, _ = next(rendezvous("env://", timeout=CONNECTION if kept else PATIENCE))
        store.set_timeout(PATIENCE)
        own = PrefixStore(_attempt(store, rank), store)
        dist.init_process_group(backend, store=own, rank=rank.index, world_size=rank.size, timeout=PATIENCE)
    return Ranks(rank)


def _attempt(store: Store, rank: Rank) -> str:
    """Return a name for this start of all processes; they agree on it through ``store``.

    ``torchrun`` restarts them with the same store, which still has the keys of earlier starts. So each process writes
    a new token, and rank 0 answers tokens until every process has confirmed the name of this attempt.
    """
    if rank.index:
        token = unique()
        store.set(f"grok/token/{rank.index}", token)
        store.wait([f"grok/name/{token}"], PATIENCE)
        name: str = store.get(f"grok/name/{token}").decode()
        store.set(f"grok/here/{name}/{rank.index}", "")
        return name
    name, missing, deadline = unique(), set(range(1, rank.size)), time.monotonic() + PATIENCE.total_seconds()
    while missing:
        if time.monotonic() > deadline:
            raise RankLost(f"rank {', '.join(map(str, sorted(missing)))} of this run did not connect within {PATIENCE}")
        for other in sorted(missing):
            if store.check([f"grok/token/{other}"]):
                store.set(f"grok/name/{store.get(f'grok/token/{other}').decode()}", name)
            if store.check([f"grok/here/{name}/{other}"]):
                missing.remove(other)
        time.sleep(0.02)
    return name


def fatally(events: Iterator[Event]) -> Iterator[Event]:
    """Yield ``events``; turn an unforeseen error into one without a retry, because the other processes still wait.

    Raises:
        TrainingError: in place of an error that is no GrokError.
    """
    try:
        yield from events
    except (GrokError, OSError):
        raise
    except Exception as error:
        raise TrainingError(f"{type(error).__name__}: {one_line(error)}") from error
