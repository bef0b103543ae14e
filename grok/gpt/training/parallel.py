"""The processes that train a run together: their communication, and how the model is distributed over them.

Sources: Li et al. 2020 (DDP: gradients are summed in buckets during the backward pass); Rajbhandari et al.
2020 (ZeRO) and Zhao et al. 2023 (FSDP: weights, gradients and moments are sharded, and a block gathers its weights
before it computes). Both sum gradients; the trainer weights each piece of a batch by its rows.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from grok.errors import GrokError, TrainingError, one_line
from grok.files import unique
from grok.gpt.model import GPT
from grok.gpt.parts import Masks
from grok.gpt.training.numerics import LOW, Numerics
from grok.plugins import activate, active
from grok.processes import Rank
from grok.records import Checkpoint, Event, Job

FORWARDS: Final = ("loss", "score")
"""Methods of the model, other than its call, that compute with its weights. None calls another one: at the end of the
inner one torch would drop the gathered weights."""


class Loss(nn.Module):
    """A model's loss as a module's forward pass, which DDP needs."""

    def __init__(self, model: GPT, function: Callable[..., Tensor] | None = None) -> None:
        """``function``: the compiled loss, used instead of the model's."""
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        return self.model.loss(x, y, masks) if self.function is None else self.function(x, y, masks)


def replicate(loss: Loss, numerics: Numerics) -> DistributedDataParallel:
    """Return ``loss`` wrapped in DDP: its backward pass sums the gradients of all processes.

    DDP rebuilds its buckets after the first pass of a process, and three or more processes then add in another order: a
    resumed run would have other bits. It does not rebuild them where parameters may be unused.
    """
    devices = [torch.cuda.current_device()] if numerics.device.type == "cuda" else None
    module = DistributedDataParallel(
        loss, device_ids=devices, gradient_as_bucket_view=True, find_unused_parameters=True
    )
    module.register_comm_hook(None, lambda state, bucket: _sum(bucket))  # DDP checks the annotations of this function
    return module


def _sum(bucket: Any) -> torch.futures.Future[Tensor]:
    """Sum a ``dist.GradBucket``, whose types torch does not declare; DDP's own hook would take the mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    future: torch.futures.Future[list[Tensor]] = work.get_future()
    return future.then(lambda done: done.value()[0])


def shard(model: GPT, numerics: Numerics) -> None:
    """Shard every tensor of ``model`` over the processes; its tensors may be on the ``meta`` device.

    In half precision the blocks' weights are sent in that precision; their gradients are summed in float32.
    """
    mesh = init_device_mesh(numerics.device.type, (dist.get_world_size(),))
    low = LOW.get(numerics.precision)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False)
    if numerics.compile:
        import torch._dynamo.config as dynamo  # slow to import, and only needed here

        # 8 versions of each block, torch's own limit for a function: it counts those of a class together
        dynamo.recompile_limit = max(dynamo.recompile_limit, 8 * len(model.blocks))
        dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, dynamo.recompile_limit)
    for block in model.blocks:
        if numerics.compile:
            block.compile(dynamic=False, fullgraph=True)
        fully_shard(block, mesh=mesh, mp_policy=policy if low else MixedPrecisionPolicy())
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for name in FORWARDS:
        register_fsdp_forward_method(model, name)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@contextmanager
def training_pass(model: GPT, *, last: bool, keeps: str | None) -> Iterator[None]:
    """Compute a micro-batch of the sharded ``model`` in this block; ``last``: it is the last one of a step.

    ``keeps``: of ``train.parallel``. Embedding, norm and head stay gathered between forward and backward pass. Outside
    this block no weights stay gathered at the end of a step, so the model's parameters are the shards.
    """
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(last or keeps == "nothing")
    model.set_reshard_after_backward(last or keeps != "weights")
    model.set_reshard_after_forward(False, recurse=keeps == "weights")
    yield
    model.set_reshard_after_forward(True)


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard of ``tensor``, or all of a tensor that is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def keep(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU; of a sharded tensor a copy of this process's shard."""
    if not isinstance(tensor, DTensor):
        return tensor.detach().to("cpu", copy=True)
    mesh = tensor.device_mesh
    if mesh.device_type != "cpu":  # torch moves a share to its mesh's device
        mesh = init_device_mesh("cpu", tuple(mesh.shape))
    return _as_share(tensor.to_local().detach().to("cpu", copy=True), tensor, mesh)


def _as_share(share: Tensor, of: DTensor, mesh: DeviceMesh) -> DTensor:
    """Return this process's ``share`` of a tensor on ``mesh`` that is sharded as ``of`` is."""
    shape, stride = of.shape, of.stride()
    return DTensor.from_local(share, mesh, of.placements, run_check=False, shape=shape, stride=stride)


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a kept ``tensor``, whole or sharded, distributed as ``parameter`` is; scalars stay whole."""
    if not isinstance(parameter, DTensor):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor  # every process calls this
        return whole.to(parameter.device, copy=True)
    if isinstance(tensor, DTensor):
        return _as_share(tensor.to_local().to(parameter.device, copy=True), parameter, parameter.device_mesh)
    if not tensor.dim():
        return tensor.to(parameter.device, copy=True)
    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def write_shares(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write each process's shards of ``tensors`` as safetensors into ``folder``; every process must call this."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))


def read_shares(tensors: dict[str, Tensor], folder: Path) -> None:
    """Fill ``tensors`` with this process's shards of those in ``folder``, which any number of processes wrote."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)))


# The processes that train a run together, started by ``torchrun``, and their communication.
#
# Every process runs the same engine on the same job. Rank 0 plans, prints and writes; the others receive
# their jobs from it. What only one process knows (the clock, a signal) is exchanged before
# any process acts on it.

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
                if self.size > 1:
                    self.tell((job.run_id, job.config, active()))
                    self.share_checkpoint(job.resume)
                self.busy = self.size > 1
                yield job
            return
        while (received := self.tell()) is not None:
            run_id, config, code = received
            activate(code)
            resume = self.share_checkpoint(None)
            self.busy = True
            yield Job(run_id=run_id, config=config, resume=resume)

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

    def sum(self, tensor: Tensor, by: Any = dist.ReduceOp.SUM) -> Tensor:
        """Replace ``tensor`` by its sum over the processes, or what ``by`` says; the same bits everywhere."""
        if self.size > 1:
            with self.watched():
                dist.all_reduce(tensor, op=by)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by its largest value over the processes."""
        return self.sum(tensor, dist.ReduceOp.MAX)

    def any(self, here: bool) -> bool:
        """Return whether ``here`` is true on any process."""
        return here if self.size == 1 else bool(self.largest(torch.tensor(int(here))))

    def tell(self, message: Any = None) -> Any:
        """Return rank 0's ``message``, which can be pickled, on every process."""
        messages = [message]
        if self.size > 1:
            with self.watched():
                dist.broadcast_object_list(messages, src=0, device=torch.device("cpu"))
        return messages[0]

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
        # best and averaged weights stay with rank 0; tensors are sent one by one, not in one pickle
        needed = re.compile(r"(kept\.\d+\.)?(log$|model\.|optim\.)")
        tensors = {} if checkpoint is None else checkpoint.tensors
        own = {name: tensor.contiguous() for name, tensor in tensors.items() if needed.match(name)}
        empty = {name: tensor.to("meta") for name, tensor in own.items()}
        sent: Checkpoint | None = self.tell(checkpoint and replace(checkpoint, tensors=empty))
        if sent is None:
            return None
        for name, tensor in sent.tensors.items():
            sent.tensors[name] = own[name] if self.index == 0 else torch.empty_like(tensor, device="cpu")
            with self.watched():
                dist.broadcast(sent.tensors[name], src=0)
        if self.index == 0:
            return checkpoint
        sent.state["same"] = {n: first for n, first in sent.state["same"].items() if first in sent.tensors}
        return sent


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
