"""The table of docs/internals.md: launches, operations and bytes of a step, from a count of generated code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.harness import table

COUNT: Final = Path(__file__).parents[1] / "generated_count.json"


def parts(count: dict[str, Any]) -> list[tuple[str, int, float, float]]:
    """Return (name, launches, operations, bytes) of each part of a step of all lanes."""
    step, update = count["graphs"]["step"], count["graphs"]["update"]
    return [
        ("matrix products", step["products"], step["flops"], step["product bytes"]),
        ("kernels of loss and gradients", step["kernels"], 0, step["kernel bytes"]),
        ("sums over shared rows", step["row operations"], 0, step["row bytes"]),
        ("AdamW", update["kernels"], 0, update["kernel bytes"]),
    ]


def page(count: dict[str, Any]) -> str:
    """Return the parts of a step as a Markdown table."""
    width, rows = count["width"], parts(count)
    total = sum(row[3] for row in rows)
    step = [(n, k, f"{f / 1e9:.0f}", f"{b / 1e9:.2f}", f"{b / width / 1e6:.1f}") for n, k, f, b in rows]
    launches, flops = sum(row[1] for row in rows), sum(row[2] for row in rows) / 1e9
    step.append(("**all**", launches, f"{flops:.0f}", f"{total / 1e9:.2f}", f"**{total / width / 1e6:.1f}**"))
    return "\n".join(table(("part", "launches", "GFLOP", "GB", "MB a lane"), step)[:-1])
