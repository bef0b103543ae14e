"""The stages of ``benchmarks.device_day``: ``python -m benchmarks.device_stages NAME [--fake]`` runs one.

A stage prints one JSON object in its last line. ``--fake``: small, on the processor, without graphs.
"""

from __future__ import annotations

import argparse
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

from benchmarks.settings import TINY

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
    from grok.arithmetic.gpu import train_stacked
    from grok.config import load_config
    from grok.records import Job, RunResult
    from grok.runs import never

    jobs = [Job(run_id=str(i), config=load_config(config)) for i, config in enumerate(configs)]
    device = "cpu" if fake else "cuda"
    events = train_stacked(jobs, lanes=lanes, stop=never, device=device, graphs=graphs)
    results = {event.run_id: event for event in events if isinstance(event, RunResult)}
    return [results[str(i)] for i in range(len(jobs))]


def installed(name: str) -> bool:
    """Return whether a package is installed, other than as our replacement."""
    spec = importlib.util.find_spec(name)
    return spec is not None and "stand_ins" not in Path(spec.origin or "").parts


def environment(fake: bool) -> dict[str, Any]:
    """Return the machine's properties and the result of one product on it."""
    import torch

    from benchmarks.harness import commit

    result: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "compiler": compiler(),
        "commit": commit(),
        "packages": {name: installed(name) for name in PACKAGES},
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
    import torch

    from benchmarks.settings import default_config
    from grok.arithmetic.gpu.engine import lane_width

    return lane_width(default_config(), torch.device("cuda"))


def step(fake: bool, widths: tuple[int, ...] = ()) -> dict[str, Any]:
    """Measure a step and the floor of its products, at the table's width or at ``widths``."""
    if fake:
        return {"skipped": "measures a device"}
    from benchmarks.counts import counts_of
    from benchmarks.device import Contender, product_seconds, seconds_of
    from benchmarks.settings import default_config

    how = uncompiled_if_it_must()
    result: dict[str, Any] = {"compiled": not how}
    for width in widths or (table_width(),):
        counts, _, _ = counts_of(default_config(), width)
        for precision in ("tf32",) if widths else PRECISIONS:
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


def profile(fake: bool) -> dict[str, Any]:
    """Return the time of each kernel of a step."""
    if fake:
        return {"skipped": "measures a device"}
    import torch

    from benchmarks.device import Contender

    contender = Contender(table_width(), precision="tf32", **uncompiled_if_it_must())
    contender.step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as taken:
        for _ in range(3):
            contender.step()
        torch.cuda.synchronize()
    rows = sorted(taken.key_averages(), key=lambda row: -row.self_device_time_total)[:60]
    return {"us a step": {row.key[:90]: [round(row.self_device_time_total / 3, 1), row.count // 3] for row in rows}}


def sweep(fake: bool) -> dict[str, Any]:
    """Train the seeds of two full stacks, with set-up, refilling, evaluation and results."""
    from benchmarks.device import whole_sweep

    if fake:
        began = time.perf_counter()
        results = trained([settings(True, seed=seed) for seed in range(8)], lanes=4, fake=True)
        return {"seeds": len(results), "seconds": round(time.perf_counter() - began, 2)}
    return whole_sweep(table_width(), "tf32", 300, **uncompiled_if_it_must())


def widths(fake: bool) -> dict[str, Any]:
    """Measure the step at other widths."""
    return step(fake, (132, 528))


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
    "profile": profile,
    "sweep": sweep,
    "widths": widths,
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
