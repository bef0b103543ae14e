"""The page of ``benchmarks.seeds`` in Markdown."""

from __future__ import annotations

import os
import re
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
        "Where a step's time goes": phases,
        "Profile of a step": profile,
        "Cost against size": sizes,
    }
    lines = [
        *heading(
            "Seeds an hour at the default regime",
            processor_model(),
            f"{os.cpu_count()} cores",
            f"products: {choose_path('auto', 'float32')}",
            f"Command: `make bench`.{over}",
        ),
        f"Medians of {rounds} rounds in which all contenders take turns; in brackets the smallest and "
        f'largest ratio of a round. A seed has {SEED_STEPS:,} steps, without evaluations. "Memory as ours" is the '
        "plain loop with the allocator settings of our workers (freed memory is kept, large pages).",
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
    share, start = results["floor"] / results["step"], results["start-up"]
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
        ("planning 2,000 seeds", "< 5 s", f"{start['planning']:.1f} s", start["planning"] < 5),
        (
            "command to the end of the first step, uncompiled",
            "< 3 s",
            f"{start['first step']:.1f} s",
            start["first step"] < 3,
        ),
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


def phases(results: dict[str, Any]) -> list[str]:
    evaluation = results["evaluation"] / results["every"]
    total = sum(results["phases"].values()) + evaluation
    rows = {**results["phases"], f"evaluation, every {results['every']} steps": evaluation}
    return [
        *table(
            ("phase", "ms a step", "share"),
            [(phase, f"{1e3 * seconds:.2f}", f"{100 * seconds / total:.1f}%") for phase, seconds in rows.items()],
        ),
        "A step computes forward and backward in one graph. Forward is measured separately, as a pass to the losses; "
        "backward is the rest of the step, so storing activations counts as backward. "
        f"An evaluation of the whole validation set takes {1e3 * results['evaluation']:.0f} ms.",
        "",
    ]


def profile(results: dict[str, Any]) -> list[str]:
    products = [row for row in results["profile"] if row["what"].startswith("product ")]
    rest = [row for row in results["profile"] if not row["what"].startswith("product ")]
    spent = sum(row["seconds"] for row in products)
    return [
        f"From torch's profiler, with one lane on the machine. Inside the step the matrix products take "
        f"{1e3 * spent:.1f} ms, {1e3 * (spent - results['floor']):+.1f} ms against the floor, because their operands "
        "are not in the nearest cache. The profiler slows the step down, mostly its Python code, so the lines need not "
        "add up to the step above.",
        "",
        *table(
            ("what", "calls a step", "ms a step"),
            [
                ("all matrix products", f"{sum(row['calls'] for row in products):.0f}", f"{1e3 * spent:.2f}"),
                *((row["what"], f"{row['calls']:.0f}", f"{1e3 * row['seconds']:.2f}") for row in rest),
            ],
        ),
        "The largest products:",
        "",
        *table(
            ("product", "calls a step", "ms a step", "GFLOP/s"),
            [
                (
                    row["what"].removeprefix("product "),
                    f"{row['calls']:.0f}",
                    f"{1e3 * row['seconds']:.2f}",
                    f"{row['calls'] * operations(row['what']) / row['seconds'] / 1e9:.0f}",
                )
                for row in products[:8]
            ],
        ),
    ]


def operations(product: str) -> int:
    """Return the operations of a product line ``product (m, k) x (k, n)``."""
    m, k, _, n, *_ = map(int, re.findall(r"\d+", product))
    return 2 * m * k * n


def sizes(results: dict[str, Any]) -> list[str]:
    return [
        *table(
            ("what", "ms a lane-step of a process", "GFLOP a step", "GFLOP/s", "MiB a process"),
            [
                (
                    row["what"],
                    f"{1e3 * row['seconds']:.1f}",
                    f"{row['flops'] / 1e9:.2f}",
                    f"{row['flops'] / row['seconds'] / 1e9:.0f}",
                    f"{row['memory']:.0f}",
                )
                for row in results["scaling"]
            ],
        ),
        "Each line is the smallest of three measurements, not in turns: it shows trends over sizes, not differences of "
        "a few percent.",
        "",
        "Whole runs in the engine, one lane, with their evaluations. The graphs are compiled already, but every run "
        "here traces them again and looks them up in the compiler's cache. This takes some seconds, once per worker:",
        "",
        *table(
            ("steps", "seconds", "ms a step"),
            [
                (row["steps"], f"{row['seconds']:.2f}", f"{1e3 * row['seconds'] / row['steps']:.1f}")
                for row in results["run lengths"]
            ],
        ),
    ]
