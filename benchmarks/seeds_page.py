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
    parts = {
        "Targets": targets,
        "The floor": floor,
    }
    lines = [
        *heading(
            "Seeds an hour at the default regime",
            processor_model(),
            f"{os.cpu_count()} cores",
            f"products: {choose_path('auto', 'float32')}",
            f"Command: `make bench`.{over}",
        ),
        f"Medians of {rounds} rounds in which all contenders take turns; in brackets the smallest and largest ratio of "
        f"a round. A seed has {SEED_STEPS:,} steps, without evaluations.",
        "",
        *contenders(results["contenders"]),
    ]
    for title, part in parts.items():
        lines += [f"## {title}", "", *part(results)]
    return "\n".join(lines)


def contenders(entries: dict[str, Any]) -> list[str]:
    base = next(iter(entries.values()))["seconds per lane-step"]
    rows = []
    for name, entry in entries.items():
        times = entry["seconds per lane-step"]
        seconds, ratios = statistics.median(times), [b / s for b, s in zip(base, times, strict=True)]
        times_base = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        hour = f"{3600 / (SEED_STEPS * seconds):.0f}"
        rows.append((name, f"{1e3 * seconds:.1f}", hour, times_base, f"{entry['memory']:.0f}"))
    head = ("contender", "ms a lane-step", "seeds an hour", "times the plain loop", "MiB a process")
    return table(head, rows)


def evaluation_share(results: dict[str, Any]) -> float:
    """Return the evaluations' share of the time with the regime's evaluation interval."""
    evaluation: float = results["evaluation"] / (results["evaluation"] + results["every"] * results["step"])
    return evaluation


def baselines(results: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return, by name of a plain loop, how many times as fast this project is, and its products alone would be.

    The first is the median over rounds. Each plain loop uses all cores: by threads of one process or by processes.
    """
    *_, ours = results["contenders"].values()
    times = ours["seconds per lane-step"]
    return {
        name: (
            statistics.median(b / s for b, s in zip(entry["seconds per lane-step"], times, strict=True)),
            statistics.median(entry["seconds per lane-step"]) * ours["lanes"] / results["floor"],
        )
        for name, entry in results["contenders"].items()
        if name.startswith("plain loop")
    }


def targets(results: dict[str, Any]) -> list[str]:
    ratios, (*_, ours) = baselines(results), results["contenders"].values()
    share = results["floor"] / results["step"]
    rows = [
        *((f"times the {name}", "10", f"{ratio:.2f}", ratio >= 10) for name, (ratio, _) in ratios.items()),
        ("share of the floor", "at least 60%", f"{100 * share:.0f}%", share >= 0.6),
        (
            "evaluation, share of the time",
            "< 15%",
            f"{100 * evaluation_share(results):.1f}%",
            evaluation_share(results) < 0.15,
        ),
        ("memory of a worker", "< 1.5 GB", f"{ours['memory']:.0f} MiB", ours["memory"] * 2**20 < 1.5e9),
    ]
    verdicts = [(*row, "reached" if met else "**missed**") for *row, met in rows]
    lines = table(("what", "target", "here", ""), verdicts)
    if any(ratio < 10 for ratio, _ in ratios.values()):
        bounds = "; ".join(f"{bound:.1f} times as fast as the {name}" for name, (_, bound) in ratios.items())
        lines += [
            f"A lane-step that takes only the time of its matrix products at the best rate would, on this machine, be "
            f"{bounds}. Where that is below 10, no program that computes these products in this precision can reach "
            "the target.",
            "",
        ]
    return lines


def floor(results: dict[str, Any]) -> list[str]:
    rates = ", ".join(f"{kind} {rate:.0f}" for kind, rate in results["rates"].items())
    alone, both = results["floor"], results["floor, all cores"]
    return [
        f"A step needs {results['flops'] / 1e9:.3f} GFLOP of matrix products with shared prefixes. Best rates of any "
        f"path at these shapes on one core, in GFLOP/s: {rates}. Floor: {1e3 * alone:.1f} ms a step. "
        f"Ours: {1e3 * results['step']:.1f} ms, **{100 * alone / results['step']:.0f}% of the floor**.",
        "",
        *table(
            ("at work", "floor, ms", "ours, ms", "share"),
            [
                (what, f"{1e3 * least:.1f}", f"{1e3 * ours:.1f}", f"{100 * least / ours:.0f}%")
                for what, least, ours in (
                    ("one process, the other cores idle", alone, results["step alone"]),
                    ("all cores, against the floor of one", alone, results["step"]),
                    ("all cores, against the floor while all cores multiply", both, results["step"]),
                )
            ],
        ),
    ]
