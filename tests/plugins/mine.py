"""A module of the user's own code, as text, and the tiny settings that name parts of it."""

from typing import Any

from grok.config import ArithmeticConfig
from grok.execute.groups import prepare_runs
from tests.arithmetic.cases import tiny

MINE = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from grok.arithmetic.model import Transformer
from grok.config.arithmetic import ModelConfig
from grok.plugins import Examples, Operation

def addition(n=11):
    x = np.arange(n)
    return Operation((x[:, None] + x) % n)

def parity(bits=6, floats=True):
    table = (np.arange(2**bits)[:, None] >> np.arange(bits)) & 1
    return Examples(1.0 - 2 * table if floats else table, table[:, :2].sum(1) % 2)

class Perceptron(nn.Module):
    def __init__(self, length, classes, width=16, dropout=0.0):
        super().__init__()
        self.hidden, self.head = nn.Linear(length, width), nn.Linear(width, classes)
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        return self.head(self.dropout(self.hidden(x).relu()))

class Same(Transformer):
    "The built-in transformer as a module of one's own."
    def __init__(self, vocab_size, length):
        super().__init__(ModelConfig(layers=2, d_model=16, heads=2, d_ff=24), vocab_size=vocab_size, length=length)

class Batchnorm(nn.Module):
    def __init__(self, length, classes):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(length), nn.Linear(length, classes)
    def forward(self, x):
        return self.head(self.norm(x))

class RandomBuffer(Perceptron):
    def __init__(self, length, classes, fixed=False):
        super().__init__(length, classes)
        drawn = torch.randn(classes, generator=torch.Generator().manual_seed(0) if fixed else None)
        self.register_buffer("features", drawn)
        self.register_buffer("unknown", torch.full((2,), torch.nan))

class Frozen(Perceptron):
    def __init__(self, length, classes):
        super().__init__(length, classes)
        self.head.bias.requires_grad_(False)

def mean_loss(logits, answer, power=1.0):
    return F.cross_entropy(logits, answer, reduction="none") * power

def scalar_loss(logits, answer):
    return F.cross_entropy(logits, answer)

class Counting(torch.optim.Optimizer):
    "Counts in its groups, in its state, and in a tensor of a group."
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            group["warm"] = group["step"] > 5
            group["total"] = group.get("total", torch.zeros(())) + 0.5
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                assert len(range(state["count"])) == group["step"]
                p -= group["lr"] * p.grad / float(group["total"]) / (1 + group["warm"])

class Doubled:
    "Adds what the gradient was before: state that a checkpoint must hold."
    def __init__(self, parameters):
        self.state = {n: torch.zeros_like(p) for n, p in parameters.items()}
    def gradients(self, step, parameters, gradients):
        changed = {n: g + 0.5 * self.state[n] for n, g in gradients.items()}
        self.state.update({n: g.clone() for n, g in gradients.items()})
        return changed

class Always(nn.Module):
    "Draws in evaluation mode, too."
    def __init__(self, vocab_size, length, classes):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, 4), nn.Linear(4 * length, classes)
    def forward(self, x):
        return self.head(F.dropout(self.embed(x).flatten(1), 0.5, training=True))

class Noise:
    def __init__(self, parameters):
        self.scale = 0.01 + 0.01 * float(torch.rand(()))
    def gradients(self, step, parameters, gradients):
        return {n: g + self.scale * torch.randn_like(g) for n, g in gradients.items()}

class NoisySgd(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad += 0.01 * torch.randn_like(p.grad)
        super().step()

def noisy_loss(logits, answer):
    return F.cross_entropy(logits, answer, reduction="none") * torch.rand(len(answer))

class InPlace:
    def __init__(self, parameters, state="calls"):
        self.state = {"calls": 0} if state == "calls" else {state: []}
    def gradients(self, step, parameters, gradients):
        self.state["calls"] += 1
        for g in gradients.values():
            g.mul_(self.state["calls"] % 3)
        return gradients

def norm(moment, scale=1.0):
    torch.rand(3)
    return {"two": scale * sum(float(p.square().sum()) for p in moment.parameters.values()) ** 0.5,
            "hits": float((moment.logits(moment.val_set).argmax(-1) == moment.classes(moment.val_set)).float().mean())}

def rude(moment):
    next(iter(moment.parameters.values())).zero_()
    return 0.0
"""
PLAIN = {"task": {"plugin": {"_target_": "mine.parity"}}, "model": {"plugin": {"_target_": "mine.Perceptron"}}}


def own(**over: Any) -> ArithmeticConfig:
    """Return the tiny config with code of one's own in it, ready to be imported."""
    config = tiny(**over)
    prepare_runs([config])
    return config
