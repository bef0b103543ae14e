"""A plain GPT training loop, which ``benchmarks.gpt`` compares with our step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from grok.processes import Rank
from grok.text.corpus import Corpus

ALONE = Rank()


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and its batch."""

    layers: int
    heads: int
    width: int
    tokens: int
    batch: int
    lr: float
    warmup: int

    @property
    def words(self) -> str:
        return f"{self.layers} layers, width {self.width}, {self.tokens} tokens, batch {self.batch}"


SHAPES = {
    "char": Shape(layers=4, heads=4, width=128, tokens=64, batch=12, lr=1e-3, warmup=100),
    "gpt2": Shape(layers=12, heads=12, width=768, tokens=1024, batch=16, lr=6e-4, warmup=100),
}
"""nanoGPT's settings for a CPU, and GPT-2's 124M."""


class PlainBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        d = shape.width
        self.heads = shape.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.c_fc, self.mlp_proj = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        parts = self.c_attn(self.ln_1(x)).split(d, dim=2)
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, d))
        mlp: Tensor = x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))
        return mlp


class PlainGPT(nn.Module):
    def __init__(self, shape: Shape, vocab_size: int, generator: torch.Generator) -> None:
        super().__init__()
        d = shape.width
        self.wte, self.wpe = nn.Embedding(vocab_size, d), nn.Embedding(shape.tokens, d)
        self.h, self.ln_f = nn.ModuleList(PlainBlock(shape) for _ in range(shape.layers)), nn.LayerNorm(d, bias=False)
        self.lm_head = nn.Linear(d, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / math.sqrt(2 * shape.layers) if name.endswith("proj.weight") else 0.02
                nn.init.normal_(p, 0.0, std, generator=generator)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            h = block(h)
        logits = self.lm_head(self.ln_f(h))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))


class PlainLoop:
    """A plain training loop."""

    def __init__(
        self, shape: Shape, corpus: Corpus, device: str, steps: int, precision: str, compiled: bool, rank: Rank = ALONE
    ) -> None:
        """``rank``: this process among those that share a batch by DDP, as nanoGPT does under ``torchrun``."""
        self.generator = torch.Generator().manual_seed(1337)
        shape = replace(shape, batch=shape.batch // rank.size)
        self.shape, self.device, self.steps, self.k, self.data = shape, device, steps, 0, corpus.tokens("train")
        plain = PlainGPT(shape, corpus.vocab_size, self.generator).to(device)
        self.model: Any = torch.compile(plain) if compiled else plain
        self.trained = self.model
        if rank.size > 1:
            if not dist.is_initialized():
                dist.init_process_group("nccl" if device == "cuda" else "gloo")
            self.trained = DistributedDataParallel(self.model)
            self.generator.manual_seed(1337 + rank.index)
        self.half = precision == "bf16"
        decays = [p for p in plain.parameters() if p.dim() >= 2]
        rest = [p for p in plain.parameters() if p.dim() < 2]
        groups = [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=shape.lr, betas=(0.9, 0.99), fused=True if device == "cuda" else None
        )

    def step(self) -> None:
        self.k += 1
        t, warmup = self.shape.tokens, self.shape.warmup
        ix = torch.randint(len(self.data) - t, (self.shape.batch,), generator=self.generator)
        x = torch.stack([torch.from_numpy(self.data[i : i + t].astype(np.int64)) for i in ix.tolist()])
        y = torch.stack([torch.from_numpy(self.data[i + 1 : i + 1 + t].astype(np.int64)) for i in ix.tolist()])
        share = self.k / warmup
        if self.k > warmup:
            share = 0.1 + 0.45 * (1 + math.cos(math.pi * (self.k - warmup) / max(1, self.steps - warmup)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.shape.lr * share
        if self.device == "cuda":
            x, y = (a.pin_memory().to(self.device, non_blocking=True) for a in (x, y))
        with torch.autocast(self.device, torch.bfloat16, enabled=self.half):
            loss = self.trained(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss.item()
