"""The stages of ``benchmarks.device_day``: ``python -m benchmarks.device_stages NAME [--fake]`` runs one.

A stage prints one JSON object in its last line. ``--fake``: small, on the processor, without graphs.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.counts import Counts, counts_of
from benchmarks.harness import commit
from benchmarks.settings import TINY, default_config
from grok.arithmetic.gpu import train_stacked
from grok.arithmetic.gpu.engine import Seat, Stack, lane_width, memory_of
from grok.config import load_config
from grok.numerics import product_precision
from grok.records import Job, RunResult
from grok.runs import never

ORDERED_SEEDS = 8
PRECISIONS = ("float32", "tf32", "bf16")
PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "hydra", "pytest", "hypothesis", "safetensors", "triton")


def settings(fake: bool, **over: Any) -> dict[str, Any]:
    """Return a run's settings with ``over``: the default regime's on a device, tiny ones if ``fake``."""
    base: dict[str, Any] = {"mode": "arithmetic", **(TINY if fake else uncompiled_if_it_must())}
    for name, value in over.items():
        base[name] = {**base.get(name, {}), **value} if isinstance(value, dict) else value
    return base


def compiler() -> str | None:
    """Return the C compiler, which Triton needs to launch kernels; None if there is none."""
    return next(filter(None, map(shutil.which, filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")))), None)


def uncompiled_if_it_must() -> dict[str, Any]:
    """Return the settings of an uncompiled step if there is no C compiler, else none."""
    return {} if compiler() else {"numerics": {"compile": False}}


def trained(configs: list[dict[str, Any]], *, lanes: int | None, fake: bool, graphs: bool = True) -> list[Any]:
    """Train the configs in one stack and return their results in order."""
    jobs = [Job(run_id=str(i), config=load_config(config)) for i, config in enumerate(configs)]
    device = "cpu" if fake else "cuda"
    events = train_stacked(jobs, lanes=lanes, stop=never, device=device, graphs=graphs)
    results = {event.run_id: event for event in events if isinstance(event, RunResult)}
    return [results[str(i)] for i in range(len(jobs))]


def environment(fake: bool) -> dict[str, Any]:
    """Return the machine's properties and the result of one product on it."""
    result: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "compiler": compiler(),
        "commit": commit(),
        "packages": {name: importlib.util.find_spec(name) is not None for name in PACKAGES},
    }
    if not fake:
        properties = torch.cuda.get_device_properties(0)
        result |= {
            "device": properties.name,
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": torch.cuda.get_device_capability(0),
        }
    device = torch.device("cpu" if fake else "cuda")
    result["product"] = (torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)).sum().item()
    return result


def capture(fake: bool) -> dict[str, Any]:
    """Train a few tiny uncompiled runs with and without captured graphs; return whether their bits are equal."""
    tiny = {"mode": "arithmetic", **TINY}
    hashes = []
    for graphs in (True, False):
        results = trained([{**tiny, "seed": seed} for seed in range(4)], lanes=4, fake=fake, graphs=graphs)
        hashes.append([result.weights_hash for result in results])
    return {"same bits captured and queued": hashes[0] == hashes[1], "hashes": hashes[0]}


def tests(fake: bool) -> dict[str, Any]:
    """Run the tests marked cuda."""
    if importlib.util.find_spec("pytest") is None:
        return {"skipped": "pytest is not installed"}
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-x", "-n", "0", "tests/arithmetic", "tests/gpt"]
    if importlib.util.find_spec("xdist") is None:
        command = [word for word in command if word not in ("-n", "0")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout[-3000:], done.stderr[-1000:])
    result = {"status": done.returncode, "last": (done.stdout.strip().splitlines() or [""])[-1]}
    if done.returncode:
        print(json.dumps(result))
        sys.exit(1)
    return result


def equal_lanes(fake: bool) -> dict[str, Any]:
    """Train one seed in every lane for 100 steps; return, by precision, whether all lanes end with the same bits."""
    width = 6 if fake else None
    result: dict[str, Any] = {}
    for precision in ("float32", "bf16") if fake else PRECISIONS:
        config = settings(fake, precision=precision, train={"steps": 100}, eval={"every": 100})
        count = width or table_width()
        began = time.perf_counter()
        hashes = [result.weights_hash for result in trained([config] * count, lanes=width, fake=fake)]
        result[precision] = {
            "lanes": len(hashes),
            "different ends": len(set(hashes)),
            "lanes unlike the first": [lane for lane, end in enumerate(hashes) if end != hashes[0]],
            "seconds": round(time.perf_counter() - began, 2),
        }
        print(json.dumps(result), flush=True)
    return result


def table_width() -> int:
    return lane_width(default_config(), torch.device("cuda"))


def seconds_of(function: Callable[[], object], count: int) -> float:
    """Return the device's seconds per call for ``count`` queued calls."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        function()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / count


class Contender:
    """A full stack of lanes with one precision and width."""

    def __init__(self, width: int, *, graphs: bool = True, **over: Any) -> None:
        self.config = default_config(**over)
        device = torch.device("cuda")
        # save="init" keeps a seat's initial weights, so that a few seeds can fill all lanes
        configs = [default_config(seed=s, save="init", **over) for s in range(ORDERED_SEEDS)]
        jobs = [Job(run_id=str(config.seed), config=config) for config in configs]
        began = time.perf_counter()
        self.stack = Stack(jobs, lanes=width, device=device, graphs=graphs)
        self.set_up = time.perf_counter() - began
        began = time.perf_counter()
        seats = [Seat(job) for job in jobs]
        self.seat = (time.perf_counter() - began) / len(seats)
        """Seconds to prepare one run on the host and put it into its lane."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for lane in range(width):
            list(self.stack._seat(lane, seats[lane % len(seats)]))
        torch.cuda.synchronize()
        self.seat += (time.perf_counter() - began) / width
        self.stack._shuffle()
        self.width = width
        self.times: list[float] = []

    def step(self) -> None:
        with product_precision(self.config.precision):
            self.stack._step()

    def evaluate(self) -> float:
        """Return the seconds of an evaluation of all lanes."""
        began = time.perf_counter()
        self.stack._evaluate(range(self.width))
        return time.perf_counter() - began


def product_seconds(counts: Counts, precision: str) -> float:
    """Return the seconds of only the batched products of a step, at their shapes and strides."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    total = 0.0
    for operands, times in counts.products.items():
        x, y = (
            torch.randn(  # not zeros: a device draws less power on them and runs faster
                sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1, dtype=dtype, device="cuda"
            ).as_strided(shape, strides)
            for shape, strides in operands
        )
        with product_precision(precision):
            torch.bmm(x, y)
            total += times * seconds_of(functools.partial(torch.bmm, x, y), 5)
    return total


def step(fake: bool) -> dict[str, Any]:
    """Measure a step and the floor of its products, at the table's width."""
    if fake:
        return {"skipped": "measures a device"}
    how = uncompiled_if_it_must()
    result: dict[str, Any] = {"compiled": not how}
    width = table_width()
    counts, _, _ = counts_of(default_config(), width)
    for precision in PRECISIONS:
        contender = Contender(width, precision=precision, **how)
        times = [seconds_of(contender.step, 20) for _ in range(5)]
        floor = min(product_seconds(counts, precision) for _ in range(3))
        result[f"{precision}, {width} lanes"] = {
            "ms a step": [round(1e3 * t, 3) for t in times],
            "ms of its products": round(1e3 * floor, 3),
            "evaluation ms": round(1e3 * contender.evaluate(), 2),
            "set-up s": round(contender.set_up, 1),
        }
        print(json.dumps(result), flush=True)
        del contender
    return result


def whole_sweep(width: int, precision: str, steps: int, **over: Any) -> dict[str, float]:
    """Return seconds and seeds of a small sweep with set-up, refilling, evaluation and results."""
    torch.cuda.reset_peak_memory_stats()
    configs = [default_config(seed=s, precision=precision, train={"steps": steps}, **over) for s in range(2 * width)]
    began = time.perf_counter()
    marks: list[float] = []
    for event in train_stacked([Job(run_id=str(c.seed), config=c) for c in configs], lanes=width, stop=never):
        if isinstance(event, RunResult):
            marks.append(time.perf_counter() - began)
    return {
        "seeds": len(marks),
        "steps": steps,
        "seconds": marks[-1],
        "second half": marks[-1] - marks[width - 1],
        "memory": torch.cuda.max_memory_allocated(),
        "memory estimate": memory_of(configs[0], width).total,
    }


def sweep(fake: bool) -> dict[str, Any]:
    """Train the seeds of two full stacks, with set-up, refilling, evaluation and results."""
    if fake:
        began = time.perf_counter()
        results = trained([settings(True, seed=seed) for seed in range(8)], lanes=4, fake=True)
        return {"seeds": len(results), "seconds": round(time.perf_counter() - began, 2)}
    return whole_sweep(table_width(), "tf32", 300, **uncompiled_if_it_must())


def gpt(fake: bool) -> dict[str, Any]:
    """Measure GPT-2's shape (86 million parameters with the 257 ids of bytes) and nanoGPT's loop, on generated text."""
    with tempfile.TemporaryDirectory() as folder:
        text, data = Path(folder) / "text.txt", Path(folder) / "data"
        text.write_text("\n".join(f"{n} and {n * n} are a number and its square." for n in range(60_000)))
        prepared = [sys.executable, "-m", "grok.prepare", "text", "--input", str(text), "--tokenizer", "byte"]
        subprocess.run([*prepared, "--out", str(data)], check=True)
        if fake or not compiler():
            return {"prepared": data.is_dir(), "skipped": "measures a device, by a C compiler"}
        measured = [sys.executable, "-m", "benchmarks.gpt", "--data", str(data), "--model", "gpt2", "--device", "cuda"]
        done = subprocess.run(
            [*measured, "--batch", "8", "--steps", "40", "--out", folder], check=False, capture_output=True, text=True
        )
        print(done.stderr[-3000:])
        done.check_returncode()
        return {"page": done.stdout[-3500:]}


STAGES: dict[str, Callable[[bool], dict[str, Any]]] = {
    "environment": environment,
    "capture": capture,
    "tests": tests,
    "equal-lanes": equal_lanes,
    "step": step,
    "sweep": sweep,
    "gpt": gpt,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_stages", description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--fake", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps(STAGES[arguments.stage](arguments.fake)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
