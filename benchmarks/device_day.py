"""The first ten minutes on a GPU: ``python -m benchmarks.device_day``. Needs the project's packages and CUDA torch.

Runs the stages one after the other, each in its own process with a time limit, with one compile cache, for nine
minutes in all. ``device-day.json`` under ``--out`` is rewritten after each stage, so that an interruption keeps the
earlier results; what a stage printed is in ``STAGE.log``. ``--fake`` runs small stages on the processor, to try them
without a GPU; ``device_day STAGE`` runs one here, which prints its results as JSON in its last line.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import commit
from benchmarks.settings import TINY, default_config
from grok.arithmetic.gpu import train_stacked
from grok.arithmetic.gpu.engine import Seat, Stack, lane_width, memory_of
from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import TrainingStep
from grok.config import load_config
from grok.numerics import product_precision
from grok.records import Job, RunResult
from grok.runs import never

DAY: Final = 540.0
"""Seconds for all stages."""
ROOT: Final = Path(__file__).resolve().parent.parent
PRECISIONS: Final = ("float32", "tf32", "bf16")


def settings(fake: bool, **over: Any) -> dict[str, Any]:
    """Return a run's settings with ``over``: the default regime's on a device, tiny ones if ``fake``."""
    base: dict[str, Any] = {"mode": "arithmetic", **(TINY if fake else uncompiled_if_it_must())}
    for name, value in over.items():
        base[name] = {**base.get(name, {}), **value} if isinstance(value, dict) else value
    return base


def compiler() -> str | None:
    """Return the C compiler, which Triton needs to launch kernels; None if there is none."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def uncompiled_if_it_must() -> dict[str, Any]:
    """Return the settings of an uncompiled step if there is no C compiler, else none."""
    return {} if compiler() else {"numerics": {"compile": False}}


def trained(configs: list[dict[str, Any]], *, lanes: int | None, fake: bool, graphs: bool = True) -> list[Any]:
    """Train the configs in one stack and return their results in order."""
    jobs = [Job(run_id=str(i), config=load_config(config)) for i, config in enumerate(configs)]
    events = train_stacked(jobs, lanes=lanes, stop=never, device="cpu" if fake else "cuda", graphs=graphs)
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
    }
    if not fake:
        properties = torch.cuda.get_device_properties(0)
        result |= {"device": properties.name, "memory": properties.total_memory}
    ones = torch.ones(64, 64, device="cpu" if fake else "cuda")
    return {**result, "product": (ones @ ones).sum().item()}


def capture(fake: bool) -> dict[str, Any]:
    """Train a few tiny uncompiled runs with and without captured graphs; return whether their bits are equal."""
    configs = [{"mode": "arithmetic", **TINY, "seed": seed} for seed in range(4)]
    captured, queued = (
        [result.weights_hash for result in trained(configs, lanes=4, fake=fake, graphs=graphs)]
        for graphs in (True, False)
    )
    return {"same bits captured and queued": captured == queued, "hashes": captured}


def tests(fake: bool) -> dict[str, Any]:
    """Run the tests marked cuda."""
    if importlib.util.find_spec("pytest") is None:
        return {"skipped": "pytest is not installed"}
    alone = ["-n", "0"] if importlib.util.find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-x", *alone, "tests/arithmetic", "tests/gpt"]
    subprocess.run(command, check=True)
    return {"passed": True}


def equal_lanes(fake: bool) -> dict[str, Any]:
    """Train one seed in every lane for 100 steps; return, by precision, whether all lanes end with the same bits."""
    width = 6 if fake else table_width()
    result: dict[str, Any] = {}
    for precision in ("float32", "bf16") if fake else PRECISIONS:
        config = settings(fake, precision=precision, train={"steps": 100}, eval={"every": 100})
        hashes = [result.weights_hash for result in trained([config] * width, lanes=width, fake=fake)]
        result[precision] = {"lanes": width, "different ends": len(set(hashes))}
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


def full_stack(width: int, **over: Any) -> Stack:
    """Return a full stack of lanes at the start of an epoch; a few seeds fill all lanes."""
    # save="init" keeps a seat's initial weights, so that several lanes can take them
    jobs = [Job(run_id=str(s), config=default_config(seed=s, save="init", **over)) for s in range(8)]
    stack, seats = Stack(jobs, lanes=width, device=torch.device("cuda")), [Seat(job) for job in jobs]
    for lane in range(width):
        list(stack._seat(lane, seats[lane % len(seats)]))
    stack._shuffle()
    return stack


class Products(TorchDispatchMode):
    """Counts batched matrix products by shape and strides of their operands."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bmm.default:
            self.count[tuple((tuple(x.shape), x.stride()) for x in args)] += 1
        return func(*args, **(kwargs or {}))


def product_seconds(products: Products, precision: str) -> float:
    """Return the seconds of only the batched products of a step, at their shapes and strides."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    total = 0.0
    for operands, times in products.count.items():
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
    """Measure a step, with the compiler's kernels and the fused ones, and the floor of its products."""
    if fake:
        return {"skipped": "measures a device"}
    how, width = uncompiled_if_it_must(), table_width()
    result: dict[str, Any] = {"compiled": not how}
    counted = TrainingStep(LaneState(default_config(), width, torch.device("meta")), compile=False)
    with Products() as products:
        counted()
    by_hand = ((p, "fused") for p in ("float32", "tf32", "tf32x3"))
    for precision, kernels in (*((p, "compiled") for p in PRECISIONS), *by_hand):
        stack = full_stack(width, precision=precision, numerics={**how.get("numerics", {}), "kernels": kernels})
        with product_precision(precision):
            times = [seconds_of(stack._step, 20) for _ in range(5)]
        began = time.perf_counter()
        stack._evaluate(range(width))
        evaluation = time.perf_counter() - began
        floor = min(product_seconds(products, precision) for _ in range(3))
        result[f"{precision}, {kernels}, {width} lanes"] = {
            "ms a step": [round(1e3 * t, 3) for t in times],
            "ms of its products": round(1e3 * floor, 3),
            "evaluation ms": round(1e3 * evaluation, 2),
        }
        if precision == "float32" and kernels == "compiled":
            for _, seat in (seated := stack._seated()[:8]):
                seat.run.config.eval.metrics = ["fourier", "circuit", "logits"]
            began = time.perf_counter()
            for lane, seat in seated:
                stack._metrics(lane, seat)
            result["ms of a lane's measurements"] = round(1e3 * (time.perf_counter() - began) / len(seated), 2)
        print(json.dumps(result), flush=True)
        del stack
    return result


def sweep(fake: bool) -> dict[str, Any]:
    """Train the seeds of two full stacks, with set-up, refilling, evaluation and results."""
    width = 4 if fake else table_width()
    over: dict[str, Any] = {} if fake else {"precision": "tf32", "train": {"steps": 300}}
    jobs = [Job(run_id=str(s), config=load_config(settings(fake, seed=s, **over))) for s in range(2 * width)]
    began, marks = time.perf_counter(), []
    for event in train_stacked(jobs, lanes=width, stop=never, device="cpu" if fake else "cuda"):
        if isinstance(event, RunResult):
            marks.append(time.perf_counter() - began)
    result: dict[str, Any] = {"seeds": len(marks), "seconds": marks[-1], "second half": marks[-1] - marks[width - 1]}
    if not fake:
        estimate = memory_of(default_config(**over), width).total
        result |= {"memory": torch.cuda.max_memory_allocated(), "estimate": estimate}
    return result


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
        words = ["--batch", "8", "--steps", "40", "--out", folder]
        done = subprocess.run([*measured, *words], check=True, stdout=subprocess.PIPE, text=True)
        return {"page": done.stdout[-3500:]}


STAGES: Final[Mapping[str, tuple[Callable[[bool], dict[str, Any]], float]]] = {
    "environment": (environment, 40),
    "capture": (capture, 60),
    "tests": (tests, 100),
    "equal-lanes": (equal_lanes, 100),
    "step": (step, 120),
    "sweep": (sweep, 100),
    "gpt": (gpt, 90),
}
"""Every stage and its limit in seconds; later stages can use the time that earlier ones leave."""


def run_stage(name: str, limit: float, out: Path, words: Sequence[str] = ()) -> dict[str, Any]:
    """Run one stage in a process of its own; at its limit, kill it with the processes that it started."""
    began, log = time.monotonic(), out / f"{name}.log"
    cache = {f"{kind}_CACHE_DIR": str(out / "compile-cache" / kind) for kind in ("TORCHINDUCTOR", "TRITON")}
    place = {**os.environ, **cache, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with log.open("wb") as output:
        command = [sys.executable, "-m", "benchmarks.device_day", name, *words]
        process = subprocess.Popen(
            command, cwd=ROOT, env=place, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            state = "failed" if process.wait(limit) else "done"
        except subprocess.TimeoutExpired:
            state = "out of time"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("{")]
    result = json.loads(lines[-1]) if lines else None
    return {"name": name, "state": state, "seconds": round(time.monotonic() - began, 2), "result": result}


def run_day(names: Sequence[str], out: Path, seconds: float = DAY, words: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Run the stages and return what came of each; a stage gets its limit, or the time that is left if it is less."""
    end, outcomes = time.monotonic() + seconds, []
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        limit = min(STAGES[name][1], end - time.monotonic())
        outcomes.append(run_stage(name, limit, out, words) if limit > 1 else {"name": name, "state": "not begun"})
        day = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "stages": outcomes}
        (out / "device-day.tmp").write_text(json.dumps(day, indent=1))
        (out / "device-day.tmp").replace(out / "device-day.json")
        print(f"{name:12} {outcomes[-1]['state']}", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_day", description=__doc__)
    parser.add_argument("stage", nargs="?", choices=STAGES, help="run this stage in this process")
    parser.add_argument("--out", type=Path, default=Path("results/device-day"))
    parser.add_argument("--seconds", type=float, default=DAY, help="for all stages; the default is nine minutes")
    parser.add_argument("--only", nargs="*", default=list(STAGES), choices=STAGES, metavar="STAGE")
    parser.add_argument("--fake", action="store_true", help="small and on the processor: tries the stages")
    arguments = parser.parse_args()
    if arguments.stage:
        print(json.dumps(STAGES[arguments.stage][0](arguments.fake)), flush=True)
        return 0
    words = ["--fake"] if arguments.fake else []
    outcomes = run_day(arguments.only, arguments.out.resolve(), arguments.seconds, words)
    return 0 if all(outcome["state"] == "done" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
