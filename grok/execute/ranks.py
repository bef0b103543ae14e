"""Language models on several processes: rank 0 carries out the command, the others train what it hands over."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from grok.config import GptConfig, RunConfig
from grok.errors import ConfigError, GrokError, one_line
from grok.execute.interrupt import Interrupt
from grok.execute.worker import prepare_process
from grok.processes import Rank
from grok.records import Checkpoint


def refuse_unsharable(configs: Sequence[RunConfig], rank: Rank) -> None:
    """Refuse runs that the processes of this command cannot share.

    Raises:
        ConfigError: another mode, more processes than sequences, or another number of them than was asked for.
    """
    for config in configs:
        if not isinstance(config, GptConfig):
            if rank.size > 1:
                raise ConfigError(
                    f"mode={config.mode} under torchrun with {rank.size} processes: only language models (mode=gpt) "
                    "share a run; use `grok run ... workers=N`"
                )
            continue
        train = config.train
        if train.devices not in (1, rank.size):
            raise ConfigError(
                f"train.devices={train.devices}, and {rank.size} process{'es were' if rank.size > 1 else ' was'} "
                f"started: torchrun --nproc-per-node={train.devices} -m grok.run mode=gpt ... starts {train.devices}"
            )
        smallest = min([train.batch_size, *train.batch_ramp[:1]])
        if smallest < rank.size:
            name = "train.batch_ramp's first batch" if smallest < train.batch_size else "train.batch_size"
            raise ConfigError(
                f"{name} of {smallest} cannot be shared by {rank.size} processes: expected at least {rank.size}, "
                f"or torchrun --nproc-per-node={smallest}"
            )
        if rank.size > 1 and train.parallel == "fsdp" and config.eval.tasks:
            raise ConfigError("train.parallel=fsdp with eval.tasks: no process has the whole model; use grok evaluate")
        if rank.size > 1 and train.parallel == "fsdp" and config.optim.kind == "adamw8bit":
            raise ConfigError(
                "train.parallel=fsdp with optim.kind=adamw8bit: bitsandbytes cannot shard its moments; expected "
                "optim.kind=adamw or muon, or train.parallel=ddp"
            )


def take_part(shared: RunConfig, rank: Rank) -> int:
    """Train every run that rank 0 hands over and write this process's shares of its checkpoints; return the status."""
    from grok.gpt.training.engine import train
    from grok.gpt.training.ranks import Ranks, RefusedElsewhere

    launcher = os.getppid()
    device = prepare_process([shared], shared.device, slot=rank.local)
    with Interrupt(lambda name: None) as interrupt:
        try:
            for event in train([], device=device, stop=lambda: interrupt() or os.getppid() != launcher):
                if isinstance(event, Checkpoint) and event.shards is not None:
                    event.shards()
            Ranks.of_this_process().leave()
        except RefusedElsewhere as error:
            return error.exit_status
        except GrokError as error:
            print(f"rank {rank.index}: {one_line(error)}", file=sys.stderr, flush=True)
            return error.exit_status
    return 0


def let_go() -> None:
    """Let the other processes go, once the command is carried out."""
    from grok.gpt.training.ranks import Ranks

    ranks = Ranks.of_this_process()
    ranks.end()
    ranks.leave()
