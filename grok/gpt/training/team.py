"""Data parallel training: several devices share each batch.

The run itself lives in one process, which leads: it evaluates, logs, rolls back and yields records as
always. ``train.devices - 1`` followers hold the same weights, compute their share of every batch's
micro-batches, and make the same update with the same summed gradient, so weights never travel. With
two devices and two micro-batches the sum has two terms, and the bits are those of one device.

The leader starts the followers (``python -m grok.gpt.training.follower``) and talks to them over a local socket; a
follower ends with its leader, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore  # torch.distributed's own, where its types are declared

from grok.config.gpt import GptConfig
from grok.errors import ConfigError
from grok.gpt.training.numerics import Numerics

FOLLOWER: Final = "grok.gpt.training.follower"
HOST = "127.0.0.1"
PATIENCE = timedelta(minutes=30)
"""How long a follower waits for a word: an evaluation of the leader may take a while."""


class Team:
    """One process's place among those that train a run together; rank 0 leads."""

    def __init__(self, rank: int, size: int, store: Store) -> None:
        self.rank, self.size = rank, size
        self.followers: list[subprocess.Popen[bytes]] = []
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)

    def say(self, *message: Any) -> None:
        """Tell every follower what comes next; a follower says nothing."""
        if self.rank == 0:
            dist.broadcast_object_list([message], src=0)

    def hear(self) -> tuple[Any, ...]:
        """Wait for the leader's next word."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, src=0)
        message: tuple[Any, ...] = box[0]
        return message

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the team, in one exchange."""
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        for t, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            t.copy_(total.view_as(t))

    def close(self) -> None:
        """Let the followers go."""
        try:
            with contextlib.suppress(RuntimeError):  # a follower that died has said why itself
                self.say("end")
            dist.destroy_process_group()
        finally:
            for follower in self.followers:
                try:
                    follower.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    follower.kill()
                    follower.wait()


def open_team(config: GptConfig, numerics: Numerics) -> Team | None:
    """Start the followers and return the leader's place, or None for a run on one device.

    Raises:
        ConfigError: more devices than there are.
    """
    size = config.train.devices
    if size == 1:
        return None
    visible = torch.cuda.device_count() if numerics.device.type == "cuda" else size
    if size > visible:
        raise ConfigError(f"train.devices={size}: {visible} CUDA devices are visible here")
    store = TCPStore(HOST, 0, size, is_master=True, wait_for_workers=False)
    settings = json.dumps(asdict(config))
    followers = [
        subprocess.Popen(
            [sys.executable, "-m", FOLLOWER, str(rank), str(size), str(store.port), numerics.device.type],
            stdin=subprocess.PIPE,
        )
        for rank in range(1, size)
    ]
    for follower in followers:
        assert follower.stdin is not None
        follower.stdin.write(settings.encode())
        follower.stdin.close()
    team = Team(0, size, store)
    team.followers = followers
    return team
