"""The roofline of a GPU, from a count of the generated code: ``python -m benchmarks.roofline`` writes docs/roofline.md.

``--count FILE`` replaces the count in ``benchmarks/generated_count.json`` by FILE, which has the output of
``python -m benchmarks.generated count``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, Final

COUNT: Final = Path(__file__).with_name("generated_count.json")
PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "roofline.md"
SEEDS, STEPS, EVERY = 2073, 3000, 100
DEVICES: Final = {
    "H100 SXM": {"float32": 67e12, "tf32": 494.5e12, "bandwidth": 3.35e12},
    "H200 SXM": {"float32": 67e12, "tf32": 494.5e12, "bandwidth": 4.8e12},
}
"""Peak operations per second (dense) and bytes per second, from the makers' data sheets."""
REACHED: Final = 0.9
"""Share of its peak bandwidth that a device's memory reaches in practice."""
BEFORE: Final = {"kernels": 240, "megabytes": 165}
"""Launches of a step, and megabytes per lane-step by the compiler's estimate, before the step was one graph."""


def parts(count: dict[str, Any]) -> list[tuple[str, int, float, float]]:
    """Return (name, launches, operations, bytes) of each part of a step of all lanes."""
    step, update = count["graphs"]["step"], count["graphs"]["update"]
    return [
        ("matrix products", step["products"], step["flops"], step["product bytes"]),
        ("kernels of loss and gradients", step["kernels"], 0, step["kernel bytes"]),
        ("sums over shared rows", step["row operations"], 0, step["row bytes"]),
        ("AdamW", update["kernels"], 0, update["kernel bytes"]),
    ]


def minutes(count: dict[str, Any], device: str, precision: str) -> tuple[float, float]:
    """Return the minutes of (steps, evaluations) for all seeds, if products and kernels run one after the other.

    The time of a product is that of its operations at the peak rate, or of its bytes if that is longer.
    """
    rates = DEVICES[device]
    bandwidth = REACHED * rates["bandwidth"]

    def seconds(graph: dict[str, Any]) -> float:
        products = max(graph["flops"] / rates[precision], graph["product bytes"] / bandwidth)
        return float(products + (graph["kernel bytes"] + graph["row bytes"]) / bandwidth)

    graphs = count["graphs"]
    fillings = math.ceil(SEEDS / count["width"])
    steps = fillings * STEPS * (seconds(graphs["step"]) + seconds(graphs["update"]))
    evaluations = fillings * (STEPS / EVERY) * count["evaluation passes"] * seconds(graphs["evaluation"])
    return steps / 60, evaluations / 60


MEASURED: Final = ((264, "float32", 22.5), (264, "float64", 31.2), (24, "float32", 3.2), (8, "float32", 1.7))
"""Lanes, precision and milliseconds a step on an H200: the sum of the runs' seconds over the steps of their stack."""


def page(count: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    width, rows = count["width"], parts(count)
    total = sum(row[3] for row in rows)
    lines = [
        "# Roofline of the GPU path",
        "",
        "Estimates of a device's time, counted from the code that the compiler generates for it; only the last section "
        f"is measured. The default regime at {width} lanes, float32, torch {count['torch']}. `python -m "
        "benchmarks.generated count` makes the count; it needs torch's CUDA build but no device. A test compares this "
        "page with the count.",
        "",
        "## A step",
        "",
        "| part | launches | GFLOP | GB | MB a lane |",
        "|---|---|---|---|---|",
        *[f"| {n} | {k} | {f / 1e9:.0f} | {b / 1e9:.2f} | {b / width / 1e6:.1f} |" for n, k, f, b in rows],
        f"| **all** | {sum(row[1] for row in rows)} | {sum(row[2] for row in rows) / 1e9:.0f} | {total / 1e9:.2f} | "
        f"**{total / width / 1e6:.1f}** |",
        "",
        "A byte counts once for each kernel that reads or writes it. Of a buffer only the elements that the kernel's "
        "indices reach count. Data that two kernels share in the cache count twice, so a device can be a little "
        "faster.",
        "",
        f"Earlier, a step had about {BEFORE['kernels']} launches and about {BEFORE['megabytes']} MB per lane. That "
        "number of bytes is the compiler's estimate under torch 2.11, which counts in another way, so the saving is "
        "not exact: it is probably near 7%. The changes since then:",
        "",
        "- Loss and gradients are one graph.",
        "- Kernels that use shared rows gather them, so that the gathered rows are not written to memory.",
        "- Norms store the values that their gradients need.",
        "- Weight gradients have the weights' layout, so that the update reads both in order.",
        "- The head's product has rows of 240 words instead of 234, as the fast kernels require.",
        "- Every kernel has one layout, chosen by a rule.",
        "",
        "## What to expect",
        "",
        f"Minutes for {SEEDS} seeds of {STEPS} steps in {math.ceil(SEEDS / width)} fillings of {width} lanes, with an "
        f"evaluation every {EVERY} steps, one kernel after another, at {REACHED:.0%} of the bandwidth and the peak "
        "rate of products.",
        "",
        "| device | precision | steps | evaluations | all |",
        "|---|---|---|---|---|",
    ]
    for device in DEVICES:
        for precision in ("float32", "tf32"):
            steps, evaluations = minutes(count, device, precision)
            lines.append(f"| {device} | {precision} | {steps:.1f} | {evaluations:.1f} | {steps + evaluations:.1f} |")
    lines += [
        "",
        "In practice products reach 60 to 80% of their peak, so float32 probably takes a third longer and TF32 a tenth "
        "longer. The goals on an H200 are 5 minutes in float32 and 2 in TF32; this design misses both. TF32 in 2 "
        "minutes needs at most 65 MB per lane. These changes would reach the goals:",
        "",
        "- the MLP as one kernel that recomputes its hidden layer in the backward pass (saves about 11 GB per step),",
        "- attention with its gathers and sums as one kernel (saves about 6 GB),",
        "- bias, residual and norm as epilogues of the products,",
        "- float32 products as three TF32 products (peak about 165 instead of 67 TFLOP/s).",
        "",
        "Such kernels need a device to measure them.",
        "",
        "## Measured",
        "",
        "An H200 trained most runs of [the diary's regime](../results/diary/README.md) on 2026-11-23 with torch "
        "2.11.0+cu130, with an evaluation every 250 steps. The store of that page has the seconds of each run.",
        "",
        "| lanes | precision | milliseconds a step, evaluations included |",
        "|---|---|---|",
        *[f"| {lanes} | {precision} | {ms} |" for lanes, precision, ms in MEASURED],
        "",
        "So "
        f"{SEEDS} seeds take {MEASURED[0][2] * STEPS * math.ceil(SEEDS / width) / 60e3:.1f} minutes in float32: "
        "about 40% more than the estimate above, which would be 6.4 with so few evaluations. "
        "A process needs 50 s before its first step, "
        "25 s if the kernels are compiled already. TF32 and bf16 have not been measured.",
        "",
        "To measure more: `python -m benchmarks.device_day`.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roofline", description=__doc__)
    parser.add_argument("--count", type=Path, help="a new count, from python -m benchmarks.generated count")
    arguments = parser.parse_args()
    if arguments.count:
        count = json.loads(arguments.count.read_text())
        COUNT.write_text(json.dumps(count, indent=1) + "\n")
    PAGE.write_text(page(json.loads(COUNT.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
