"""Our GPT step against a plain nanoGPT-style loop, in one process, in turns, at equal threads.

    python -m benchmarks.gpt --data DIR [--threads 1] [--steps 400] [--device cpu] [--profile]

DIR is what ``python -m grok.prepare text --input input.txt --tokenizer char --out DIR`` wrote. The plain loop
is the usual one: an ``nn.Module`` with ``scaled_dot_product_attention``, windows at random offsets,
AdamW as PyTorch gives it by default, clipping, a cosine schedule. Both train the same model for the same
number of steps; the table gives milliseconds a step (median, and the quartiles over rounds), and each
one's validation loss on the same windows, so that no speed is bought with it. Our step also makes the
whole log of the step (norms, moments, zeros, data wait), which the plain one does not.

A shared machine disturbs every figure: ratios are taken round by round, and the table gives their spread.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.gpt.batches import validation_starts
from grok.gpt.corpus import Corpus, open_corpus
from grok.gpt.numerics import Numerics, device_model
from grok.gpt.trainer import Trainer
from grok.gpt.windows import gather

LAYERS, HEADS, D, T, B, LR, WARMUP = 4, 4, 128, 64, 12, 1e-3, 100
ROUND = 20
"""Steps of one before it is the other's turn."""


class PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(D, bias=False), nn.LayerNorm(D, bias=False)
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.c_fc, self.mlp_proj = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, D // HEADS).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(D, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, D))
        mlp: Tensor = x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))
        return mlp


class PlainGPT(nn.Module):
    def __init__(self, vocab_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, D), nn.Embedding(T, D)
        self.h, self.ln_f = nn.ModuleList(PlainBlock() for _ in range(LAYERS)), nn.LayerNorm(D, bias=False)
        self.lm_head = nn.Linear(D, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / math.sqrt(2 * LAYERS) if name.endswith("proj.weight") else 0.02
                nn.init.normal_(p, 0.0, std, generator=generator)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            h = block(h)
        logits = self.lm_head(self.ln_f(h))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))


class PlainLoop:
    """The usual training loop."""

    def __init__(self, corpus: Corpus, device: str, steps: int) -> None:
        self.generator = torch.Generator().manual_seed(1337)
        self.device, self.steps, self.k, self.data = device, steps, 0, corpus.tokens("train")
        self.model = PlainGPT(corpus.vocab_size, self.generator).to(device)
        decays = [p for p in self.model.parameters() if p.dim() >= 2]
        rest = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99), fused=True if device == "cuda" else None)

    def step(self) -> None:
        self.k += 1
        ix = torch.randint(len(self.data) - T, (B,), generator=self.generator)
        x = torch.stack([torch.from_numpy(self.data[i : i + T].astype(np.int64)) for i in ix.tolist()])
        y = torch.stack([torch.from_numpy(self.data[i + 1 : i + 1 + T].astype(np.int64)) for i in ix.tolist()])
        share = self.k / WARMUP
        if self.k > WARMUP:
            share = 0.1 + 0.45 * (1 + math.cos(math.pi * (self.k - WARMUP) / max(1, self.steps - WARMUP)))
        for group in self.optimizer.param_groups:
            group["lr"] = LR * share
        loss = self.model(x.to(self.device), y.to(self.device))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss.item()


@dataclass(slots=True)
class Entry:
    """One contestant."""

    name: str
    step: Callable[[], object]
    loss: Callable[[Tensor, Tensor], Tensor]
    rounds: list[float] = field(default_factory=list)
    """Milliseconds a step, round by round."""


def ours(corpus: Corpus, device: str, threads: int, steps: int, precision: str, compiled: bool) -> Trainer:
    """Return our run of the same model, ready to step."""
    config = load_config(
        {
            "mode": "gpt",
            "experiment": "benchmark",
            "precision": precision,
            "data": {"path": str(corpus.path)},
            "model": {
                "layers": LAYERS,
                "d_model": D,
                "heads": HEADS,
                "context": T,
                "bias": False,
                "activation": "gelu",
            },
            "optim": {"lr": LR, "betas": [0.9, 0.99], "warmup_steps": WARMUP},
            "train": {"steps": steps, "batch_size": B, "threads": threads},
            "numerics": {"compile": compiled},
        }
    )
    assert isinstance(config, GptConfig)
    return Trainer(config, corpus, Numerics.of(config, device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--clock",
        default="wall",
        choices=("wall", "cpu"),
        help="cpu: the process's own time, on a machine that is shared",
    )
    parser.add_argument("--profile", action="store_true", help="also print where our compiled step spends its time")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    corpus, steps = open_corpus(given.data), ROUND * max(2, given.steps // ROUND)

    plain = PlainLoop(corpus, given.device, steps)
    entries = [Entry("plain loop", plain.step, plain.model)]
    for precision, compiled in (("float32", False), ("float32", True), ("bf16", True)):
        trainer = ours(corpus, given.device, given.threads, steps, precision, compiled)
        entries.append(
            Entry(f"ours, {precision}{', compiled' if compiled else ''}", trainer.update, trainer.model.loss)
        )

    clock = time.perf_counter if given.clock == "wall" else time.process_time
    for _ in range(steps // ROUND):
        for entry in entries:
            began = clock()
            for _ in range(ROUND):
                entry.step()
            entry.rounds.append(1000 * (clock() - began) / ROUND)

    tokens = corpus.tokens("val")
    x, y = (
        torch.from_numpy(a.copy()).to(given.device) for a in gather(tokens, validation_starts(len(tokens), T, 480), T)
    )
    print(
        f"{LAYERS} layers, width {D}, {T} tokens, batch {B}, {steps} steps, {given.threads} threads, "
        f"{given.clock} clock, "
        f"{device_model(torch.device(given.device))}, torch {torch.__version__}, Python {platform.python_version()}"
    )
    print(f"{'':24}{'ms/step':>9}{'tokens/s':>10}{'val loss':>10}  times the plain loop (quartiles over rounds)")
    base = np.array(entries[0].rounds[1:])  # the first round compiles
    for entry in entries:
        ms, (low, middle, high) = np.array(entry.rounds[1:]), np.quantile(base / entry.rounds[1:], [0.25, 0.5, 0.75])
        with torch.no_grad():
            loss = entry.loss(x, y).item()
        print(
            f"{entry.name:24}{np.median(ms):9.1f}{B * T / np.median(ms) * 1000:10,.0f}{loss:10.3f}"
            f"  {middle:.2f} ({low:.2f} to {high:.2f})"
        )
    if given.profile:
        with torch.profiler.profile() as profile:
            for _ in range(ROUND):
                entries[-2].step()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=60))


if __name__ == "__main__":
    main()
