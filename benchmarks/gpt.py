"""Our GPT step against a plain nanoGPT-style loop, in turns, each in its own process, with equal threads.

    python -m benchmarks.gpt --data DIR [--threads 1] [--steps 400] [--out results/benchmarks]
    python -m benchmarks.gpt --data DIR --processes 2 [--only "plain loop, compiled" "ours, float32, compiled"]
    python -m benchmarks.gpt --data DIR --only "plain loop, bf16, compiled" "ours, bf16, compiled" [--steps 400]
    python -m benchmarks.gpt --data DIR --model gpt2 --device cuda [--batch 16] [--steps 200] [--out ...]

DIR is the output of ``python -m grok.prepare``: Shakespeare's characters for all commands but the last, any text with
GPT-2's tokeniser for the last. bf16 is fast only on a processor that multiplies it (``amx_bf16`` or ``avx512_bf16``
in /proc/cpuinfo).

The plain loop is an ``nn.Module`` with ``scaled_dot_product_attention``, windows at
random offsets, clipping, a cosine schedule and PyTorch's default AdamW (fused on a GPU). It uses bf16 autocast and
compilation if ours does; several processes share a batch by DDP.

Both train the same model for the same number of steps. The table has milliseconds per step (median, with the
quartiles over rounds) and both validation losses on the same windows. The loops draw different weights and windows, so
these losses agree only roughly. Our step also writes its whole log (norms, moments, zeros, data wait) and runs as in a
worker (freed memory stays with the process). The plain loop has no log and Python's default memory settings.

The page also has the cost of waiting for data, and the share of the device's peak if it is known. Ratios are taken
round by round, because a shared machine disturbs single times.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Contender, heading, table, write
from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.execute.worker import keep_freed_memory, use_large_pages
from grok.gpt.costs import count_parameters, peak_of_device, train_flops_per_token
from grok.gpt.training.batches import validation_starts
from grok.gpt.training.checkpoint import History
from grok.gpt.training.numerics import Numerics, device_model
from grok.gpt.training.parallel import Ranks
from grok.gpt.training.trainer import Trainer
from grok.processes import Rank
from grok.text.corpus import Corpus, open_corpus
from grok.text.windows import gather

ROUND = 20
"""Number of steps of one contender before the next one's turn."""
VALIDATED = 480 * 64
"""Number of validation tokens, but at least two batches."""


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

    def __init__(self, shape: Shape, corpus: Corpus, device: str, steps: int, precision: str, compiled: bool) -> None:
        rank = Rank.of_this_process()  # among those that share a batch by DDP, as nanoGPT does under ``torchrun``
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


def our_config(shape: Shape, corpus: Corpus, threads: int, steps: int, precision: str, compiled: bool) -> GptConfig:
    """Return the settings of the same model and schedule."""
    config = load_config(
        {
            "mode": "gpt",
            "experiment": "benchmark",
            "precision": precision,
            "data": {"path": str(corpus.path)},
            "model": {
                "layers": shape.layers,
                "d_model": shape.width,
                "heads": shape.heads,
                "context": shape.tokens,
                "bias": False,
                "activation": "gelu",
            },
            "optim": {"lr": shape.lr, "betas": [0.9, 0.99], "warmup_steps": shape.warmup},
            "train": {"steps": steps, "batch_size": shape.batch, "threads": threads},
            "numerics": {"compile": compiled},
        }
    )
    assert isinstance(config, GptConfig)
    return config


class OurLoop:
    """Our step, as in a worker."""

    def __init__(self, shape: Shape, corpus: Corpus, device: str, steps: int, precision: str, compiled: bool) -> None:
        keep_freed_memory()
        use_large_pages()
        config = our_config(shape, corpus, torch.get_num_threads(), steps, precision, compiled)
        self.trainer = Trainer(config, corpus, Numerics.of(config, device), Ranks.of_this_process())
        self.active = contextlib.ExitStack()
        self.active.enter_context(self.trainer.numerics.active())  # for the life of this process
        self.model = self.trainer.model.loss
        self.waits: list[float] = []
        self.history = History()

    def step(self) -> None:
        point, _ = self.trainer.update()
        self.waits.append(point.data_wait)
        self.history.log.append(point)


class Served:
    """One contender in this process, or its part of one that has several."""

    def __init__(self, kind: tuple[str, str, bool], arguments: argparse.Namespace) -> None:
        torch.set_num_threads(arguments.threads)
        name, precision, compiled = kind
        self.arguments, self.corpus = arguments, open_corpus(arguments.data)
        build: type[PlainLoop | OurLoop] = PlainLoop if name == "plain" else OurLoop
        steps, device = arguments.steps, arguments.device
        self.loop = build(shape_of(arguments), self.corpus, device, steps, precision, compiled)
        self.step = self.loop.step

    def end(self) -> dict[str, float]:
        shape, on_cuda = shape_of(self.arguments), self.arguments.device == "cuda"
        shape = replace(shape, batch=shape.batch // self.arguments.processes)  # as it was compiled
        last = {"memory": torch.cuda.max_memory_allocated() / 2**20} if on_cuda else {}
        last["val_loss"] = validation_loss(self.loop.model, self.corpus, shape, self.arguments.device)
        if isinstance(self.loop, OurLoop):
            last["data_wait"] = float(np.mean(self.loop.waits))
        return last


def shape_of(arguments: argparse.Namespace) -> Shape:
    """Return the shape of ``--model``, with the batch of ``--batch``."""
    shape = SHAPES[arguments.model]
    return replace(shape, batch=arguments.batch) if arguments.batch else shape


@torch.no_grad()
def validation_loss(model: Any, corpus: Corpus, shape: Shape, device: str) -> float:
    """Return the mean validation loss in float32, computed batch by batch."""
    tokens = corpus.tokens("val")
    windows = max(2, VALIDATED // (shape.tokens * shape.batch)) * shape.batch
    starts, losses = validation_starts(len(tokens), shape.tokens, windows), []
    for first in range(
        0, len(starts) - shape.batch + 1, shape.batch
    ):  # whole batches, because a compiled model has one shape
        batch = gather(tokens, starts[first : first + shape.batch], shape.tokens)
        x, y = (torch.from_numpy(a.copy()).to(device) for a in batch)
        losses.append(model(x, y).item())
    return float(np.mean(losses))


def started(name: str, kind: tuple[str, str, bool], arguments: argparse.Namespace) -> Contender:
    """Return a contender in its own process, or in several that share each batch."""
    size, places = arguments.processes, []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    for rank in range(size if size > 1 else 0):
        words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        places.append({n: str(value) for n, value in words.items()} | {"MASTER_ADDR": "127.0.0.1"})
    return Contender(Served, [(kind, arguments)] * size, name=name, places=places)


def milliseconds(contender: Contender) -> Any:
    """Return the milliseconds per step (rounds,) without the first round, which compiles."""
    return 1000 * np.array(contender.times[1:])


KINDS = {
    "plain loop": ("plain", "float32", False),
    "plain loop, compiled": ("plain", "float32", True),
    "plain loop, bf16, compiled": ("plain", "bf16", True),
    "ours, float32": ("ours", "float32", False),
    "ours, float32, compiled": ("ours", "float32", True),
    "ours, bf16": ("ours", "bf16", False),
    "ours, bf16, compiled": ("ours", "bf16", True),
}
"""The contenders. Each of ours is compared with the plain loop of the same precision and compilation, if it is
measured."""
USUAL = {"cpu": [name for name in KINDS if name != "ours, bf16"], "cuda": [name for name in KINDS if "bf16" in name]}
"""Those that are measured without ``--only``, by kind of device."""


def measure(arguments: argparse.Namespace) -> list[Contender]:
    """Run all contenders in turns and return them."""
    chosen = arguments.only or USUAL[arguments.device]
    contenders = [started(name, kind, arguments) for name, kind in KINDS.items() if name in chosen]
    for _ in range(arguments.steps // ROUND):
        for contender in contenders:
            contender.times.append(contender.run(ROUND))
    for contender in contenders:
        contender.end()
    return contenders


def data_of(corpus: Corpus) -> dict[str, Any]:
    """Return what identifies the data of a measurement: its form, number of ids and hash."""
    return {"form": corpus.manifest["form"], "vocab_size": corpus.vocab_size, "hash": corpus.hash}


def page(contenders: list[Contender], arguments: argparse.Namespace) -> str:
    """Return the benchmark as Markdown."""
    device = device_model(torch.device(arguments.device))
    corpus, shape = open_corpus(arguments.data), shape_of(arguments)
    config = our_config(shape, corpus, arguments.threads, arguments.steps, "float32", False)
    tokens = shape.batch * shape.tokens
    size = count_parameters(config.model, corpus.vocab_size)
    flops = tokens * train_flops_per_token(config.model, size)
    lines = [
        *heading(
            "A GPT step against a plain loop",
            device,
            f"{arguments.processes} process(es) of {arguments.threads} thread(s)",
            f"{shape.layers} layers, width {shape.width}, {shape.tokens} tokens, batch {shape.batch}, "
            f"{size.total:,} parameters, {arguments.steps} steps. "
            f"Command: `python -m benchmarks.gpt --data DIR --model {arguments.model} --device {arguments.device} "
            f"--batch {shape.batch} --threads {arguments.threads} --processes {arguments.processes} "
            f"--steps {arguments.steps}`.",
        ),
        "Data: {form}, {vocab_size:,} ids, corpus {hash}.".format(**data_of(corpus)),
        "",
        f"Medians over rounds of {ROUND} steps in which all contenders take turns, each in its own process; ratios "
        "round by round, with quartiles. Ours writes its whole log of the step. The loops draw different weights and "
        "windows, so their losses agree only roughly.",
        "",
    ]
    head = ["", "ms a step", "tokens/s", "GFLOP/s", "val loss", "times the plain loop", "MiB"]
    rows = []
    for c in contenders:
        plain = ("plain", *KINDS[c.name][1:])  # the loop of the same precision and compilation, if it was measured
        ms, last = float(np.median(milliseconds(c))), c.last[0]
        base = next((other for other in contenders if KINDS[other.name] == plain), None)
        times = "-"
        if base is not None:
            ratios = np.quantile(milliseconds(base) / milliseconds(c), [0.25, 0.5, 0.75])
            times = "{1:.2f} ({0:.2f} to {2:.2f})".format(*ratios)
        speed = f"{tokens / ms * 1000:,.0f}", f"{flops / ms / 1e6:,.0f}"
        rows.append((c.name, f"{ms:.1f}", *speed, f"{last['val_loss']:.3f}", times, f"{last['memory']:,.0f}"))
    lines += table(head, rows, right=(1, 2, 3, 4, 6))
    if ours := [c.last[0] for c in contenders if "data_wait" in c.last[0]]:
        lines.append(f"Waiting for data takes {ours[0]['data_wait']:.2%} of our step.")
    if (peak := peak_of_device(device, "bf16")) is not None:
        ms = float(np.median(milliseconds(contenders[-1])))
        lines.append(f"MFU in bf16: {flops / ms * 1000 / peak:.1%} of {peak / 1e12:,.0f} TFLOP/s (data sheet).")
    return "\n".join(lines) + "\n"


def arguments_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command's arguments; exit with status 2 if they are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="processes that share each batch (default 1)")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=KINDS, help="only these, by their names in the table"
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--device", default="cpu", choices=USUAL)
    parser.add_argument(
        "--model", default="char", choices=tuple(SHAPES), help="gpt2: 124M parameters with GPT-2's tokeniser, for a GPU"
    )
    parser.add_argument("--batch", type=int, help="sequences of a step (default: the model's)")
    parser.add_argument("--out", type=Path, help="folder for a dated page and its figures")
    arguments = parser.parse_args(words)
    arguments.steps = ROUND * max(2, arguments.steps // ROUND)
    return arguments


def main() -> None:
    arguments = arguments_of()
    contenders = measure(arguments)
    name = "gpt" + (f"-{arguments.processes}-processes" if arguments.processes > 1 else "")
    name += "-bf16" if all("bf16" in c.name for c in contenders) else ""
    figures: dict[str, Any] = {"data": data_of(open_corpus(arguments.data))}
    for c in contenders:
        figures[c.name] = {"ms a step": [1000 * t for t in c.times], **c.last[0]}
    write(arguments.out, name, page(contenders, arguments), figures)


if __name__ == "__main__":
    main()
