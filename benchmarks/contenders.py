"""The ways to train the default regime that ``benchmarks.seeds`` compares.

Each contender is a class with ``step()``. All train the same task with the same model, batch size and
optimiser.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grok.arithmetic.program import Program, dropout_noise
from grok.arithmetic.run import ArithmeticRun, Lane
from grok.arithmetic.task import FIRST_NUMBER, Vocabulary, split
from grok.config import ArithmeticConfig
from grok.config.arithmetic import ModelConfig
from grok.records import Job


class PlainBlock(nn.Module):
    """A post-norm block of torch's own modules."""

    def __init__(self, d: int, heads: int, ff: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, ff), nn.GELU(), nn.Linear(ff, d))
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        mask = torch.full((t, t), -math.inf, device=x.device, dtype=x.dtype).triu(1)
        attended, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        x = self.norm1(x + attended)
        normed: Tensor = self.norm2(x + self.mlp(x))
        return normed


class PlainModel(nn.Module):
    def __init__(self, vocab: int, length: int, model: ModelConfig) -> None:
        super().__init__()
        d = model.d_model
        self.tokens, self.positions = nn.Embedding(vocab, d), nn.Embedding(length, d)
        ff = model.d_ff or 4 * d
        self.blocks = nn.ModuleList(PlainBlock(d, model.heads, ff) for _ in range(model.layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def training_set(config: ArithmeticConfig, seed: int) -> tuple[Tensor, Tensor]:
    """Return tokens (examples, positions) and answers (examples) of the split ``seed``."""
    train_set, _ = split(config.task, seed)
    numbers = {"a": train_set.a + FIRST_NUMBER, "b": train_set.b + FIRST_NUMBER}
    columns = [
        torch.from_numpy(numbers[w]) if isinstance(w, str) else torch.full((len(train_set),), w)
        for w in Vocabulary.of(config.task).layout
    ]
    return torch.stack(columns, 1), torch.from_numpy(train_set.answer) + FIRST_NUMBER


class PlainLoop:
    """A plain training loop: nn.MultiheadAttention, DataLoader, AdamW."""

    lanes = 1

    def __init__(self, config: ArithmeticConfig, seed: int) -> None:
        vocabulary = Vocabulary.of(config.task)
        torch.manual_seed(seed)
        data = torch.utils.data.TensorDataset(*training_set(config, seed))
        self.loader = torch.utils.data.DataLoader(data, batch_size=config.train.batch_size, shuffle=True)
        self.batches = iter(self.loader)
        self.model = PlainModel(vocabulary.size, vocabulary.length, config.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.optim.lr,
            betas=(config.optim.betas[0], config.optim.betas[1]),
            weight_decay=config.optim.weight_decay,
        )

    def step(self) -> None:
        try:
            tokens, answer = next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            tokens, answer = next(self.batches)
        loss = F.cross_entropy(self.model(tokens)[:, -1], answer)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class OurLane:
    """A lane of this project's engine, as a worker runs it."""

    lanes = 1

    def __init__(self, config: ArithmeticConfig, seed: int) -> None:
        self.lane = Lane(ArithmeticRun(Job(run_id=str(seed), config=config)), Program(config))

    def step(self) -> None:
        lane, step = self.lane, self.lane.run.step + 1
        noise = dropout_noise(lane.run.config, lane.run.streams.dropout, step)
        _, _, gradients = lane.program.gradients(lane.parameters, lane.batch(step), noise)
        lane.optimizer.update(lane.changed(gradients, step), step)
        lane.run.step = step

    def evaluate(self) -> None:
        self.lane.evaluate()
