"""The ways to train the default regime that ``benchmarks.seeds`` compares.

Each contender is a class with ``step()``. All train the same task with the same model, batch size and
optimiser.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grok.arithmetic.model import Transformer
from grok.arithmetic.program import OneLaneProgram, dropout_noise
from grok.arithmetic.run import ArithmeticRun, Lane
from grok.arithmetic.task import FIRST_NUMBER, Vocabulary, split
from grok.arithmetic.weights import initial_parameters
from grok.config import ArithmeticConfig
from grok.config.arithmetic import ModelConfig
from grok.execute.worker import keep_freed_memory, use_large_pages
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


class PlainLoop:
    """A plain training loop: nn.MultiheadAttention, DataLoader, AdamW."""

    def __init__(self, config: ArithmeticConfig, seed: int, *, our_memory: bool = False) -> None:
        if our_memory:
            keep_freed_memory()
            use_large_pages()
        vocabulary = Vocabulary.of(config.task)
        torch.manual_seed(seed)
        train_set, _ = split(config.task, seed)
        numbers = {"a": train_set.a + FIRST_NUMBER, "b": train_set.b + FIRST_NUMBER}
        columns = [
            torch.from_numpy(numbers[w]) if isinstance(w, str) else torch.full((len(train_set),), w)
            for w in vocabulary.layout
        ]
        data = torch.utils.data.TensorDataset(
            torch.stack(columns, 1), torch.from_numpy(train_set.answer) + FIRST_NUMBER
        )
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


class VmapLanes:
    """Lanes stacked by torch.func.vmap over the plain model, without prefix sharing."""

    def __init__(self, config: ArithmeticConfig, seed: int, lanes: int) -> None:
        vocabulary = Vocabulary.of(config.task)
        self.model = Transformer(config.model, vocab_size=vocabulary.size, length=vocabulary.length)
        single = [initial_parameters(config) for _ in range(lanes)]
        self.parameters = {n: torch.stack([p[n] for p in single]).requires_grad_() for n in single[0]}
        self.optimizer = torch.optim.AdamW(list(self.parameters.values()), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1)
        train_set, _ = split(config.task, seed)
        self.lanes = lanes
        size = config.train.batch_size
        numbers = {"a": train_set.a[:size] + FIRST_NUMBER, "b": train_set.b[:size] + FIRST_NUMBER}
        columns = [
            torch.from_numpy(numbers[w]) if isinstance(w, str) else torch.full((size,), w) for w in vocabulary.layout
        ]
        self.tokens = torch.stack(columns, 1).expand(lanes, -1, -1)
        self.answer = (torch.from_numpy(train_set.answer[:size]) + FIRST_NUMBER).expand(lanes, -1)

        def loss(parameters: dict[str, Tensor], tokens: Tensor, answer: Tensor) -> Tensor:
            logits = torch.func.functional_call(self.model, parameters, (tokens,))
            return F.cross_entropy(logits[:, -1], answer)

        self.loss = torch.func.vmap(loss)

    def step(self) -> None:
        """Take one step of every lane."""
        self.optimizer.zero_grad()
        self.loss(self.parameters, self.tokens, self.answer).sum().backward()
        self.optimizer.step()


class OurLanes:
    """Lanes of this project's engine, as a worker runs them: in turns, step by step."""

    def __init__(self, config: ArithmeticConfig, seed: int, lanes: int = 1) -> None:
        keep_freed_memory()
        use_large_pages()
        program = OneLaneProgram(config)
        runs = [ArithmeticRun(Job(run_id=str(i), config=config)) for i in range(seed, seed + lanes)]
        self.lanes = [Lane(run, program) for run in runs]
        self.phases: dict[str, float] = {"data": 0.0, "forward and backward": 0.0, "optimiser": 0.0}
        self.first_batch = self.lanes[0].batch(1)

    def step(self) -> None:
        for lane in self.lanes:
            self.step_of(lane)

    def step_of(self, lane: Lane) -> None:
        run = lane.run
        step = run.step + 1
        clock = time.perf_counter
        start = clock()
        batch = lane.batch(step)
        data = clock()
        noise = dropout_noise(run.config, run.streams.dropout, step)
        _, _, gradients = lane.program.gradients(lane.parameters, batch, noise)
        gradient = clock()
        lane.optimizer.update(lane.changed(gradients, step), step)
        end = clock()
        run.step = step
        for phase, seconds in zip(self.phases, (data - start, gradient - data, end - gradient), strict=True):
            self.phases[phase] += seconds

    def forward(self) -> None:
        """Do the forward pass of a step, without storing activations for gradients."""
        lane = self.lanes[0]
        assert isinstance(lane.program, OneLaneProgram)
        lane.program.scores(lane.parameters, self.first_batch)

    def evaluate(self) -> None:
        self.lanes[0].evaluate()
