"""Our GPT step against a plain nanoGPT-style loop, in turns, each in a process of its own, at equal threads.

    python -m benchmarks.gpt --data DIR [--threads 1] [--steps 400] [--device cpu] [--out results/benchmarks]

DIR is what ``python -m grok.prepare text --input input.txt --tokenizer char --out DIR`` wrote. The plain loop
is the usual one: an ``nn.Module`` with ``scaled_dot_product_attention``, windows at random offsets,
AdamW as PyTorch gives it by default, clipping, a cosine schedule. Both train the same model for the same
number of steps; the table gives milliseconds a step (median, and the quartiles over rounds), and each
one's validation loss on the same windows, so that no speed is bought with it. Our step also makes the
whole log of the step (norms, moments, zeros, data wait), which the plain one does not, and runs as a
worker runs it (what is freed stays with the process); the plain one runs as Python starts it.

Beside that: what waiting for data and writing a checkpoint cost, and the share of the peak where it is known.

A shared machine disturbs every figure: ratios are taken round by round, and the table gives their spread.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import platform
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grok.checkpoint import save_checkpoint
from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.execute.allocation import keep_freed_memory
from grok.gpt.batches import validation_starts
from grok.gpt.checkpoint import capture, to_checkpoint
from grok.gpt.corpus import Corpus, open_corpus
from grok.gpt.history import History
from grok.gpt.numerics import Numerics, device_model
from grok.gpt.planner import MACHINES, count_parameters, train_flops_per_token
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


def our_config(corpus: Corpus, threads: int, steps: int, precision: str, compiled: bool) -> GptConfig:
    """Return the settings of the same model and schedule."""
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
    return config


class OurLoop:
    """Our step, as a worker makes it."""

    def __init__(self, corpus: Corpus, device: str, threads: int, steps: int, precision: str, compiled: bool) -> None:
        keep_freed_memory()
        self.config = our_config(corpus, threads, steps, precision, compiled)
        self.trainer = Trainer(self.config, corpus, Numerics.of(self.config, device))
        self.model = self.trainer.model.loss
        self.waits: list[float] = []
        self.history = History()

    def step(self) -> None:
        point, _ = self.trainer.update()
        self.waits.append(point.data_wait)
        self.history.log.append(point)

    def checkpoint(self) -> float:
        """Return the seconds that taking and writing a checkpoint takes (best of five)."""
        seconds = []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(5):
                began = time.perf_counter()
                moment = capture(self.trainer, self.history)
                save_checkpoint(folder, to_checkpoint("benchmark", self.config, moment, [], {}))
                seconds.append(time.perf_counter() - began)
        return min(seconds)


def serve(pipe: Connection, kind: tuple[str, str, bool], given: argparse.Namespace) -> None:
    """Build one contender in this process, then do what the pipe asks for."""
    torch.set_num_threads(given.threads)
    name, precision, compiled = kind
    corpus = open_corpus(given.data)
    loop: Any = (
        PlainLoop(corpus, given.device, given.steps)
        if name == "plain"
        else OurLoop(corpus, given.device, given.threads, given.steps, precision, compiled)
    )
    clock = time.perf_counter if given.clock == "wall" else time.process_time
    pipe.send("ready")
    while (count := pipe.recv()) is not None:
        began, faults = clock(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            loop.step()
        seconds = clock() - began
        pipe.send((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults))
    tokens = corpus.tokens("val")
    x, y = (
        torch.from_numpy(a.copy()).to(given.device) for a in gather(tokens, validation_starts(len(tokens), T, 480), T)
    )
    with torch.no_grad():
        loss = loop.model(x, y).item()
    more = {} if name == "plain" else {"data_wait": float(np.mean(loop.waits)), "checkpoint_seconds": loop.checkpoint()}
    if given.profile and compiled and precision == "float32":
        with torch.profiler.profile() as profile:
            for _ in range(ROUND):
                loop.step()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=60))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    pipe.send({"val_loss": loss, "memory": memory, **more})


@dataclass(slots=True)
class Contender:
    """One process and what it took, round by round."""

    name: str
    pipe: Connection
    rounds: list[float] = field(default_factory=list)
    """Milliseconds a step."""
    faults: list[float] = field(default_factory=list)
    """Pages a step that the kernel had to map."""
    end: dict[str, float] = field(default_factory=dict)

    @classmethod
    def start(cls, name: str, kind: tuple[str, str, bool], given: argparse.Namespace) -> Contender:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        context.Process(target=serve, args=(there, kind, given), daemon=True).start()
        assert here.recv() == "ready"
        return cls(name, here)

    def round(self) -> None:
        self.pipe.send(ROUND)
        seconds, faults = self.pipe.recv()
        self.rounds.append(1000 * seconds / ROUND)
        self.faults.append(faults / ROUND)

    def finish(self) -> None:
        self.pipe.send(None)
        self.end = self.pipe.recv()


KINDS = {
    "plain loop": ("plain", "float32", False),
    "ours, float32": ("ours", "float32", False),
    "ours, float32, compiled": ("ours", "float32", True),
    "ours, bf16, compiled": ("ours", "bf16", True),
}


def measure(given: argparse.Namespace) -> list[Contender]:
    """Run all contenders in turns and return them."""
    contenders = [Contender.start(name, kind, given) for name, kind in KINDS.items()]
    for _ in range(given.steps // ROUND):
        for contender in contenders:
            contender.round()
    for contender in contenders:
        contender.finish()
    return contenders


def page(contenders: list[Contender], given: argparse.Namespace) -> str:
    """Return the benchmark as Markdown."""
    device = device_model(torch.device(given.device))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    corpus = open_corpus(given.data)
    config = our_config(corpus, given.threads, given.steps, "float32", False)
    flops = B * T * train_flops_per_token(config.model, count_parameters(config.model, corpus.vocab_size))
    lines = [
        "# A GPT step against a plain loop",
        "",
        f"{datetime.date.today()}, commit {commit.strip()}, {device}, {given.threads} thread(s), "
        f"Python {platform.python_version()}, torch {torch.__version__}. {LAYERS} layers, width {D}, {T} tokens, "
        f"batch {B}, {given.steps} steps, {given.clock} time. Command: `python -m benchmarks.gpt --data DIR "
        f"--threads {given.threads} --steps {given.steps} --clock {given.clock}`.",
        "",
        f"Medians over rounds of {ROUND} steps in which all take turns, each in a process of its own; ratios round by "
        "round, with quartiles. Ours makes its whole log of the step.",
        "",
        "| | ms a step | tokens/s | GFLOP/s | val loss | times the plain loop | pages mapped a step | MiB |",
        "|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    base = np.array(contenders[0].rounds[1:])  # the first round compiles
    for c in contenders:
        ms = float(np.median(c.rounds[1:]))
        low, middle, high = np.quantile(base / np.array(c.rounds[1:]), [0.25, 0.5, 0.75])
        lines.append(
            f"| {c.name} | {ms:.1f} | {B * T / ms * 1000:,.0f} | {flops / ms / 1e6:,.0f} | {c.end['val_loss']:.3f} | "
            f"{middle:.2f} ({low:.2f} to {high:.2f}) | {np.median(c.faults[1:]):,.0f} | {c.end['memory']:,.0f} |"
        )
    ours = contenders[1]
    seconds, minutes = ours.end["checkpoint_seconds"], config.checkpoint.minutes
    lines += [
        "",
        f"Waiting for data takes {ours.end['data_wait']:.2%} of our float32 step. Taking and writing a checkpoint "
        f"takes {1000 * seconds:.0f} ms: {seconds / (60 * minutes):.3%} of the time at one every {minutes:g} minutes.",
    ]
    known = [m for m in MACHINES.values() if m.name in device]
    if known:
        peak = known[0].peak_of("bf16")
        ms = float(np.median(contenders[-1].rounds[1:]))
        lines.append(
            f"MFU in bf16: {flops / ms * 1000 / peak:.1%} of {known[0].name}'s {peak / 1e12:,.0f} TFLOP/s (data sheet)."
        )
    return "\n".join(lines) + "\n"


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
    parser.add_argument("--out", type=Path, help="folder for a dated page and its figures")
    given = parser.parse_args()
    given.steps = ROUND * max(2, given.steps // ROUND)
    contenders = measure(given)
    text = page(contenders, given)
    print(text)
    if given.out is not None:
        name = f"{datetime.date.today()}-gpt"
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / f"{name}.md").write_text(text, encoding="utf-8")
        figures = {c.name: {"ms a step": c.rounds, "pages a step": c.faults, **c.end} for c in contenders}
        (given.out / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
