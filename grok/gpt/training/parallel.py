"""How a model is distributed over processes: each has all of it (DDP), or a shard of every tensor (FSDP2).

Sources: Li et al. 2020 (DDP: gradients are summed in buckets during the backward pass); Rajbhandari et al.
2020 (ZeRO) and Zhao et al. 2023 (FSDP: weights, gradients and moments are sharded, and a block gathers its weights
before it computes). Both sum gradients; the trainer weights each piece of a batch by its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from grok.gpt.dropout import Masks
from grok.gpt.model import GPT
from grok.gpt.training.numerics import LOW, Numerics

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
        _allow_versions(len(model.blocks))
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
def training_pass(model: GPT, *, last: bool, keeps: str) -> Iterator[None]:
    """Compute a micro-batch of the sharded ``model`` in this block; ``last``: it is the last one of a step.

    ``keeps``: ``train.fsdp_keeps``. Embedding, norm and head stay gathered between forward and backward pass. Outside
    this block no weights stay gathered at the end of a step, so the model's parameters are the shards.
    """
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(last or keeps == "nothing")
    model.set_reshard_after_backward(last or keeps != "weights")
    model.set_reshard_after_forward(False, recurse=keeps == "weights")
    yield
    model.set_reshard_after_forward(True)


def _allow_versions(blocks: int) -> None:
    """Let torch compile 8 versions of each block, its own limit for a function: it counts those of a class together."""
    import torch._dynamo.config as dynamo  # slow to import, and only needed here

    limit = 8 * blocks
    dynamo.recompile_limit = max(dynamo.recompile_limit, limit)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, limit)


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard of ``tensor``, or all of a tensor that is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return all of ``tensor``; every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def keep(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU; of a sharded tensor a copy of this process's shard."""
    if not isinstance(tensor, DTensor):
        return tensor.detach().to("cpu", copy=True)
    return _as_share(tensor.to_local().detach().to("cpu", copy=True), tensor, _mesh_on_cpu(tensor.device_mesh))


def _as_share(share: Tensor, whole: DTensor, mesh: DeviceMesh) -> DTensor:
    """Return this process's ``share`` of a tensor on ``mesh`` that is sharded as ``whole`` is."""
    shape, stride = whole.shape, whole.stride()
    return DTensor.from_local(share, mesh, whole.placements, run_check=False, shape=shape, stride=stride)


def _mesh_on_cpu(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh of the same processes for tensors on the CPU: torch moves a share to its mesh's device."""
    return mesh if mesh.device_type == "cpu" else init_device_mesh("cpu", tuple(mesh.shape))


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a kept ``tensor``, whole or sharded, distributed as ``parameter`` is; scalars stay whole."""
    if not isinstance(parameter, DTensor):
        return whole(tensor).to(parameter.device, copy=True)
    if isinstance(tensor, DTensor):
        return _as_share(tensor.to_local().to(parameter.device, copy=True), parameter, parameter.device_mesh)
    if not tensor.dim():
        return tensor.to(parameter.device, copy=True)
    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def in_shares(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return empty tensors on the CPU by name, each sharded as its parameter."""
    empty: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        assert isinstance(parameter, DTensor)
        share = torch.empty_like(parameter.to_local().detach(), device="cpu")
        empty[name] = _as_share(share, parameter, _mesh_on_cpu(parameter.device_mesh))
    return empty


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
