"""The page of ``benchmarks.seeds`` in Markdown."""

from __future__ import annotations

import os
import statistics
from typing import Any

from benchmarks.harness import heading, table
from grok.numerics import choose_path, processor_model

SEED_STEPS = 3000
"""Steps of one seed in the number of seeds per hour."""


def page(results: dict[str, Any], regime: dict[str, Any]) -> str:
    """Return the page of ``results``; ``regime`` has the changes of the default regime."""
    rounds = len(next(iter(results["contenders"].values()))["seconds per lane-step"])
    over = f" Changes of the default regime: `{regime}`." if regime else ""
    lines = [
        *heading(
            "Seeds an hour at the default regime",
            processor_model(),
            f"{os.cpu_count()} cores",
            f"products: {choose_path('auto', 'float32')}",
            f"Command: `make bench`.{over}",
        ),
        f"Medians of {rounds} rounds in which all contenders take turns; in brackets the smallest and largest ratio of "
        f"a round. A seed has {SEED_STEPS:,} steps, without evaluations. All run under the allocator settings of this "
        "project's workers (freed memory kept, large pages). *Careful*: the last layer only where the answer is read, "
        "compiled, a fused optimiser. Of vmap: 8 lanes a process. *Floor*: as many times as fast would be the matrix "
        "products alone at the best rate (below). The peers leave out an epoch's last, partial batch."
        + ("" if "JAX jit" in str(results["contenders"]) else " JAX is not installed: its rows are missing."),
        "",
        *contenders(results),
        *("## Targets", "", *targets(results)),
        *("## The floor", "", *floor(results)),
    ]
    return "\n".join(lines)


def contenders(results: dict[str, Any]) -> list[str]:
    entries, (*_, ours) = results["contenders"], results["contenders"].values()
    rows = []
    for name, entry in entries.items():
        times = entry["seconds per lane-step"]
        seconds = statistics.median(times)
        ratios = [t / o for t, o in zip(times, ours["seconds per lane-step"], strict=True)]
        ours_is = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        bound = f"{seconds * ours['lanes'] / results['floor']:.1f}"
        hour = f"{3600 / (SEED_STEPS * seconds):.0f}"
        rows.append((name, f"{1e3 * seconds:.1f}", hour, ours_is, bound, f"{entry['memory']:.0f}"))
    head = ("contender", "ms a lane-step", "seeds an hour", "this project, times as fast", "floor", "MiB a process")
    return table(head, rows)


def targets(results: dict[str, Any]) -> list[str]:
    *_, ours = results["contenders"].values()
    share, least = results["floor"] / results["step"], 0.75 if processor_model().startswith("AMD") else 0.6
    evaluation = results["evaluation"] / (results["evaluation"] + results["every"] * results["step"])
    rows = [
        ("share of the floor", f"at least {least:.0%}", f"{share:.0%}", share >= least),
        ("evaluation, share of the time", "< 10%", f"{evaluation:.1%}", evaluation < 0.1),
        ("memory of a worker", "< 1.2 GB", f"{ours['memory']:.0f} MiB", ours["memory"] * 2**20 < 1.2e9),
    ]
    verdicts = [(*row, "reached" if met else "**missed**") for *row, met in rows]
    return table(("what", "target", "here", ""), verdicts)


def floor(results: dict[str, Any]) -> list[str]:
    rates = ", ".join(f"{kind} {rate:.0f}" for kind, rate in results["rates"].items())
    least, ours = results["floor"], results["step"]
    return [
        f"A step needs {results['flops'] / 1e9:.3f} GFLOP of matrix products with shared prefixes. Best rates of any "
        f"path at these shapes on one core, in GFLOP/s: {rates}. Floor: {1e3 * least:.1f} ms a step. "
        f"Ours, on all cores: {1e3 * ours:.1f} ms, **{100 * least / ours:.0f}% of the floor**.",
        "",
    ]
