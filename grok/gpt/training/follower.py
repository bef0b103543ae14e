"""A process that follows the leader of a team: it computes its share of every batch (``grok.gpt.training.team``)."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # torch.distributed's own, where its types are declared

from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.gpt.training.checkpoint import put_back
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.stability import Branch
from grok.gpt.training.team import HOST, Team
from grok.gpt.training.trainer import Trainer
from grok.text.corpus import open_corpus


def follow(rank: int, size: int, port: int, kind: str, config: GptConfig) -> None:
    """Do a follower's part of a run until the leader ends it."""
    if kind == "cuda":
        torch.cuda.set_device(rank)
    numerics = Numerics.of(config, f"cuda:{rank}" if kind == "cuda" else kind)
    with numerics.active():
        team = Team(rank, size, TCPStore(HOST, port, size, is_master=False))
        assert config.data.path is not None
        trainer = Trainer(config, open_corpus(config.data.path), numerics, team)  # the leader has read it through
        while True:
            match team.hear():
                case ("load", moment):
                    put_back(trainer, moment)
                case ("gradients", k, branch, scale):
                    trainer.branch, trainer.counters.scale = Branch(**branch), scale
                    trainer.gradients(k, *trainer.batch(k))
                    trainer.unscale()
                case ("apply", norm, rate):
                    trainer.apply(torch.tensor(norm, dtype=numerics.dtype, device=numerics.device), rate)
                case _:
                    break
        dist.destroy_process_group()


if __name__ == "__main__":
    config = load_config(json.load(sys.stdin))
    assert isinstance(config, GptConfig)
    follow(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], config)
