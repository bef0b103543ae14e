"""Stacked lanes on a CUDA device: ``python -m benchmarks.device``; ``--estimate`` counts the floors without a device.

Measures, in rounds in which all contenders take turns: lane-steps per second by lane width and
precision, with and without captured graphs and compilation; the share of the matrix-product floor,
measured in the same rounds at the same shapes; the time of evaluations, orders and seats; a whole small
sweep. Projects the time of 2,073 seeds of 3,000 steps. Writes a dated page under ``results/benchmarks/``.
"""

from __future__ import annotations

import argparse
import functools
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.counts import Counts, counts_of, update_bytes
from benchmarks.harness import heading, table, write
from benchmarks.settings import default_config
from grok.arithmetic.gpu import train_stacked
from grok.arithmetic.gpu.engine import USABLE, WIDTHS, Seat, Stack, lane_width, lanes_in, memory_of
from grok.numerics import product_precision
from grok.records import Job, RunResult
from grok.runs import never

SEEDS, STEPS = 2073, 3000
TARGETS = {"float32": 5.0, "tf32": 2.0}
"""Minutes for all seeds on an H200."""
H200 = {"float32": 67e12, "tf32": 494.5e12, "bf16": 989e12, "bandwidth": 4.8e12}
"""Peak operations a second (dense) and bytes a second of an H200 SXM, from its data sheet."""
ROUNDS, PER_ROUND, ORDERED_SEEDS = 5, 20, 8
PRECISIONS = ("float32", "tf32", "bf16")


def waves(width: int) -> int:
    """Return how many times a stack is filled to train all seeds."""
    return math.ceil(SEEDS / width)


def estimate(width: int) -> str:
    """Return, as Markdown, estimates of an H200's floors from counted operations and bytes."""
    config = default_config()
    step, evaluation, passes = counts_of(config, width)
    every, memory = config.eval.every, memory_of(config, width)
    n = waves(width) * STEPS
    least = step.product_bytes + update_bytes(config, width)
    share = evaluation.flops * passes / (every * step.flops)

    def minutes(amount: float, rate: float) -> str:
        return f"{amount * n / rate / 60:.1f}"

    return "\n".join(
        [
            f"Estimate, nothing measured: {SEEDS} seeds of {STEPS} steps on an H200 at its peak rates, width {width}.",
            "",
            f"- A step of one lane: {step.flops / width / 1e9:.3f} GFLOP of products in {sum(step.products.values())} "
            f"batched products. All lanes: {step.flops / 1e9:.0f} GFLOP.",
            f"- Bytes of a step of all lanes: {least / 1e9:.1f} GB if only products and the update touched memory; "
            f"{step.bytes / 1e9:.1f} GB if each of its {step.kernels} operations runs separately.",
            f"- An evaluation of all lanes every {every} steps: {100 * share:.1f}% of the operations.",
            f"- Memory: {memory.state / 1e9:.2f} GB of buffers, {memory.step / 1e9:.2f} for a step, "
            f"{memory.evaluation / 1e9:.2f} for an evaluation.",
            "",
            *table(
                ("minutes for all seeds", "float32", "tf32"),
                [
                    (what, *(minutes(amount, H200[rate]) for rate in rates))
                    for what, amount, rates in (
                        ("products at the peak rate", step.flops, ("float32", "tf32")),
                        ("bytes, products and update alone", least, ("bandwidth", "bandwidth")),
                        ("bytes, every operation separately", step.bytes, ("bandwidth", "bandwidth")),
                    )
                ],
            ),
        ]
    )


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

    def orders(self) -> float:
        """Return the seconds, on host and device, to make the orders of one epoch of all lanes."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        self.stack._order = [None] * self.stack.width
        self.stack._shuffle()
        torch.cuda.synchronize()
        return time.perf_counter() - began

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


def measure(widths: list[int]) -> dict[str, Any]:
    """Return the measurements of every precision and width."""
    config = default_config()
    table = lane_width(config, torch.device("cuda"))
    memory = torch.cuda.get_device_properties(0).total_memory
    results: dict[str, Any] = {"table width": table, "fitting": lanes_in(config, memory), "rows": []}
    for width in sorted({*widths, table}):
        stacks = len(PRECISIONS) + (2 if width == table else 0)
        if stacks * memory_of(config, width).total > USABLE * memory:
            results.setdefault("left out", []).append(width)  # all contenders must fit at once
            continue
        counts, _, _ = counts_of(config, width)
        contenders = {(p, "graph, compiled"): Contender(width, precision=p) for p in PRECISIONS}
        if width == table:
            contenders["float32", "graph, not compiled"] = Contender(width, numerics={"compile": False})
            contenders["float32", "queued, compiled"] = Contender(width, graphs=False)
        floors: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for precision in PRECISIONS:
                floors.setdefault(precision, []).append(product_seconds(counts, precision))
            for contender in contenders.values():
                contender.times.append(seconds_of(contender.step, PER_ROUND))
        for (precision, how), contender in contenders.items():
            step, floor = statistics.median(contender.times), statistics.median(floors[precision])
            evaluation = statistics.median(contender.evaluate() for _ in range(ROUNDS))
            orders = statistics.median(contender.orders() for _ in range(ROUNDS))
            epochs = STEPS / contender.stack.seats[0].run.order.batches_per_epoch  # type: ignore[union-attr]
            # an upper bound: the engine prepares seats while the device works
            wave = STEPS * step + STEPS / config.eval.every * evaluation + epochs * orders + width * contender.seat
            whole = waves(width) * wave
            results["rows"].append(
                {
                    "precision": precision,
                    "how": how,
                    "width": width,
                    "step": step,
                    "steps": contender.times,
                    "lane-steps a second": width / step,
                    "products": floor,
                    "share of the floor": floor / step,
                    "rate": counts.flops / step,
                    "evaluation": evaluation,
                    "evaluation share": evaluation / (evaluation + config.eval.every * step),
                    "orders share": orders * epochs / (STEPS * step),
                    "seat": contender.seat,
                    "set up": contender.set_up,
                    "minutes": whole / 60,
                }
            )
        results.setdefault("counts", {})[width] = {"flops": counts.flops, "bytes": counts.bytes}
        del contenders, contender
        gc.collect()  # a stack and its captured graphs refer to each other
        torch.cuda.empty_cache()
    return results


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


def page(results: dict[str, Any], sweeps: dict[str, dict[str, float]]) -> str:
    """Return the benchmark page as Markdown."""
    name, width, left_out = torch.cuda.get_device_name(0), results["table width"], results.get("left out", [])
    lines = [
        *heading(
            f"Stacked lanes on {name}", name, f"CUDA {torch.version.cuda}", "Command: `python -m benchmarks.device`."
        ),
        f"The default regime; medians of {ROUNDS} rounds of {PER_ROUND} steps in which all contenders take turns. The "
        "floor is the time of only the step's batched products, at the same shapes and strides, measured in the same "
        f"rounds. Projected: {SEEDS} seeds of {STEPS} steps with an evaluation every 100 steps, orders and seating, "
        "one after the other, on one device.",
        "",
    ]
    head = "precision, path, lanes, ms a step, lane-steps a second, TFLOP/s, share of the floor, evaluation, orders"
    lines += table(
        (*head.split(", "), "projected minutes"),
        [
            (
                r["precision"],
                r["how"],
                f"{r['width']}{' (table)' if r['width'] == width else ''}",
                f"{1e3 * r['step']:.2f}",
                f"{r['lane-steps a second']:.0f}",
                f"{r['rate'] / 1e12:.1f}",
                f"{100 * r['share of the floor']:.0f}%",
                f"{100 * r['evaluation share']:.1f}%",
                f"{100 * r['orders share']:.1f}%",
                f"{r['minutes']:.1f}",
            )
            for r in results["rows"]
        ],
    )
    if left_out:
        lines += [f"Left out, because their stacks do not fit into memory at once: widths {left_out}.", ""]
    lines += ["## Against the targets", ""]
    for precision, target in TARGETS.items():
        rows = [r for r in results["rows"] if (r["precision"], r["how"]) == (precision, "graph, compiled")]
        row = min(rows, key=lambda r: abs(r["width"] - width))
        verdict = "reached" if row["minutes"] < target else f"missed by {row['minutes'] - target:.1f} minutes"
        lines.append(
            f"- {precision}: {row['minutes']:.1f} minutes with {row['width']} lanes, target {target:g}: {verdict}."
        )
    lines += [
        "",
        "## A small sweep from start to end",
        "",
        *table(
            ("precision", "seeds", "steps", "seconds", "seconds of the second half", "GB at the peak", "GB estimated"),
            [
                (
                    precision,
                    s["seeds"],
                    s["steps"],
                    f"{s['seconds']:.1f}",
                    f"{s['second half']:.1f}",
                    f"{s['memory'] / 1e9:.1f}",
                    f"{s['memory estimate'] / 1e9:.1f}",
                )
                for precision, s in sweeps.items()
            ],
        ),
        "The first half includes compilation and capture; the second half is the time of each refilled stack.",
        "",
        "## Floors by count",
        "",
        estimate(width),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--estimate", action="store_true", help="count operations and bytes; needs no device")
    parser.add_argument("--widths", type=int, nargs="*", default=[66, 132, 264, 528, 1056])
    parser.add_argument("--sweep-steps", type=int, default=300, help="steps of the small sweep's runs")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    arguments = parser.parse_args()
    if arguments.estimate:
        print(estimate(WIDTHS["NVIDIA H200"]))
        return 0
    if not torch.cuda.is_available():
        print(
            f"This measures a CUDA device, and torch {torch.__version__} sees none: run it on a machine with one, "
            "or use --estimate",
            file=sys.stderr,
        )
        return 2
    results = measure(arguments.widths)
    if not results["rows"]:
        print("No width fits five times into this device's memory: set smaller ones with --widths", file=sys.stderr)
        return 2
    sweeps = {p: whole_sweep(results["table width"], p, arguments.sweep_steps) for p in PRECISIONS}
    write(arguments.out, "device", page(results, sweeps), results | {"sweeps": sweeps})
    return 0


if __name__ == "__main__":
    sys.exit(main())
