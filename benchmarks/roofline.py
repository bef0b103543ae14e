"""The roofline of a GPU, from a count of the generated code: ``python -m benchmarks.roofline`` prints its tables.

``docs/internals.md`` has them. ``--count FILE`` replaces the count in ``benchmarks/generated_count.json`` by FILE,
which has the output of ``python -m benchmarks.generated count``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import table

COUNT: Final = Path(__file__).with_name("generated_count.json")
SEEDS, STEPS, EVERY = 2073, 3000, 100
DEVICES: Final = {
    "H100 SXM": {"float32": 67e12, "tf32": 494.5e12, "bandwidth": 3.35e12},
    "H200 SXM": {"float32": 67e12, "tf32": 494.5e12, "bandwidth": 4.8e12},
}
"""Peak operations per second (dense) and bytes per second, from the makers' data sheets."""
REACHED: Final = 0.9
"""Share of its peak bandwidth that a device's memory reaches in practice."""


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


def tables(count: dict[str, Any]) -> tuple[str, str]:
    """Return the parts of a step, and the minutes to expect of each device, as Markdown tables."""
    width, rows = count["width"], parts(count)
    total = sum(row[3] for row in rows)
    step = [(n, k, f"{f / 1e9:.0f}", f"{b / 1e9:.2f}", f"{b / width / 1e6:.1f}") for n, k, f, b in rows]
    launches, flops = sum(row[1] for row in rows), sum(row[2] for row in rows) / 1e9
    step.append(("**all**", launches, f"{flops:.0f}", f"{total / 1e9:.2f}", f"**{total / width / 1e6:.1f}**"))
    expected = []
    for device in DEVICES:
        for precision in ("float32", "tf32"):
            steps, evaluations = minutes(count, device, precision)
            expected.append((device, precision, f"{steps:.1f}", f"{evaluations:.1f}", f"{steps + evaluations:.1f}"))
    pages = (
        table(("part", "launches", "GFLOP", "GB", "MB a lane"), step),
        table(("device", "precision", "steps", "evaluations", "all"), expected),
    )
    return "\n".join(pages[0][:-1]), "\n".join(pages[1][:-1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roofline", description=__doc__)
    parser.add_argument("--count", type=Path, help="a new count, from python -m benchmarks.generated count")
    arguments = parser.parse_args()
    if arguments.count:
        count = json.loads(arguments.count.read_text())
        COUNT.write_text(json.dumps(count, indent=1) + "\n")
    print("\n\n".join(tables(json.loads(COUNT.read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
