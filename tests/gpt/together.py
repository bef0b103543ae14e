"""Started by test_ranks: processes of torchrun's agent train what a file lists and write down what came out.

python -m tests.gpt.together RUNS.json RESULTS.json PROCESSES
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from torch import Tensor
from torch.distributed.launcher import LaunchConfig, elastic_launch
from torch.utils._python_dispatch import TorchDispatchMode

from grok.checkpoints import load_checkpoint, run_folder, save_checkpoint
from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.execute.resume import StoredCheckpoints
from grok.execute.sweep import let_go, take_part
from grok.gpt.training.engine import train
from grok.gpt.training.trainer import Trainer
from grok.processes import Rank
from grok.records import Checkpoint, Job, RunResult
from tests.gpt.faults import injected

RUN = "0123456789abcdef0123"


class Sent(TorchDispatchMode):
    """Counts the bytes that a process sends to gather weights and to scatter the sums of gradients."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # of (output, input) the smaller tensor goes to every other process
        own = {"_allgather_base_": 1, "_reduce_scatter_base_": 0}.get(func.overloadpacket.__name__)
        if own is not None:
            self.bytes += args[own].nbytes * (Rank.of_this_process().size - 1)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[list[int]]:
    """Collect the bytes that this process sends in the passes of each step."""
    steps: list[int] = []
    gradients = Trainer.gradients

    def counting(self: Trainer, k: int, x: Tensor, y: Tensor) -> Tensor:
        with Sent() as sent:
            loss = gradients(self, k, x, y)
        steps.append(sent.bytes)
        return loss

    with mock.patch.object(Trainer, "gradients", counting):
        yield steps


def trained(run: dict[str, Any]) -> dict[str, Any] | None:
    """Return what :func:`_trained` does; a run that is to ``count`` has the bytes sent in each step, too."""
    if not run.get("count"):
        return _trained(run)
    with counted() as steps:
        made = _trained(run)
    return made and {**made, "sent": steps}


def _trained(run: dict[str, Any]) -> dict[str, Any] | None:
    """Return a run's result; a run with ``stop_at`` leaves its checkpoint in the folder ``checkpoint`` instead.

    One with a ``store`` leaves its checkpoints there, that of the step ``damaged`` torn.
    """
    config = load_config(run["config"])
    assert isinstance(config, GptConfig)
    resume = None
    if run.get("resume"):
        resume = load_checkpoint(run["resume"], whole=config.train.parallel != "fsdp")
    calls, first = 0, 0 if resume is None else resume.step

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return run.get("stop_at") is not None and first + calls - 2 >= run["stop_at"]

    made: dict[str, Any] | None = None
    branches: list[tuple[str, int | None]] = []
    kept = StoredCheckpoints(run["store"], RUN) if run.get("store") else None
    for event in train([Job(run_id=RUN, config=config, resume=resume, kept=kept)], stop=stop):
        if isinstance(event, Checkpoint):
            folder = save_checkpoint(run.get("checkpoint") or run_folder(run["store"], RUN), event, keep=None)
            if event.step == run.get("damaged"):
                (folder / "tensors.safetensors").write_bytes(b"torn")
        if isinstance(event, RunResult):
            branches.append((event.stop_reason, event.branch_step))
            moments = {moment: sorted(tensors) for moment, tensors in event.tensors.items()}
            result = {name: getattr(event, name) for name in ("weights_hash", "status", "numerics", "steps")}
            curve, log = ([asdict(p) for p in points] for points in (event.curve, event.step_log))
            made = {**result, "curve": curve, "step_log": log, "kept": moments, "branches": branches}
    return made


def main(listed: Path, out: Path) -> None:
    runs, rank = json.loads(listed.read_text()), Rank.of_this_process()
    with injected():
        if rank.index:
            sys.exit(take_part(load_config(runs[0]["config"]), rank))
        results = {run["name"]: trained(run) for run in runs}
    if rank.size > 1:
        let_go()
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    import_module("torch._dynamo")  # for the optimiser: each process would import it after the fork
    processes = LaunchConfig(
        1, 1, int(sys.argv[3]), rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork", run_id="tests"
    )
    elastic_launch(processes, main)(Path(sys.argv[1]), Path(sys.argv[2]))
