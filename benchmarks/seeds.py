"""Seeds per hour of the default regime, against a plain training loop: ``python -m benchmarks.seeds``.

All contenders stay alive and take turns in rounds, so that a noisy machine affects all of them; the
results are ratios. Writes a dated page under ``results/benchmarks/``. Takes about ten minutes on two
cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contenders import PEERS, OurLane, PlainLoop
from benchmarks.harness import Contender, heading, table, write
from benchmarks.settings import default_config
from grok.arithmetic.rows import RowPlan, step_flops
from grok.config import ArithmeticConfig
from grok.execute.worker import keep_freed_memory, use_large_pages
from grok.numerics import choose_path, onednn_product, onednn_weight_gradient, processor_model

Regime = dict[str, Any]
"""Changes of the default regime's settings."""
SEED_STEPS = 3000
"""Steps of one seed in the number of seeds per hour."""


KINDS: dict[str, Callable[[ArithmeticConfig, int], Any]] = {"plain": PlainLoop, "ours": OurLane, **PEERS}


class Served:
    """A contender in its own process, warmed up; all have the allocator settings of this project's workers.

    A contender of one thread stays on one core, because JAX takes no number of threads.
    """

    def __init__(self, kind: str, threads: int, seed: int, regime: Regime) -> None:
        keep_freed_memory()
        use_large_pages()
        torch.set_num_threads(threads)
        if threads == 1:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[seed % len(cores)]})
        made = KINDS[kind](default_config(**regime), seed)
        for _ in range(5):
            made.step()
        self.step, self.lanes = made.step, made.lanes
        if kind == "ours":
            self.evaluate = made.evaluate
            made.evaluate()

    def end(self) -> dict[str, Any]:
        return {"lanes": self.lanes}


def team(kind: str, processes: int, threads: int, *, regime: Regime) -> Contender:
    """Return processes that run one contender at the same time, one seed each."""
    return Contender(Served, [(kind, threads, i, regime) for i in range(processes)])


def product_rates(regime: Regime) -> dict[str, float]:
    """Return the best single-thread rate, in GFLOP/s, of each kind of product at the step's largest shapes."""
    torch.set_num_threads(1)
    config = default_config(**regime)
    plan = RowPlan.of(config.task)
    batch, d, ff = config.train.batch_size, config.model.d_model, config.model.d_ff or 4 * config.model.d_model
    rows = sum(plan.sizes(1, batch))
    best: dict[str, float] = {}
    for r, k, n in (
        (sum(plan.sizes(0, batch)), d, 3 * d),
        (rows, d, ff),
        (rows, ff, d),
        (rows, d, 2 * d),
        (batch, d, ff),
    ):
        generator = torch.Generator().manual_seed(0)
        x, w, g = (torch.randn(s, generator=generator) for s in ((r, k), (n, k), (r, n)))
        ways: dict[str, list[Callable[[], Tensor]]] = {
            kind: [partial(product, left, right, None) for product in (F.linear, onednn_product)]
            for kind, (left, right) in {
                "forward": (x, w), "input gradient": (g, w.t()), "weight gradient": (g.t(), x.t())
            }.items()
        }  # fmt: skip
        ways["weight gradient"].append(partial(onednn_weight_gradient, g, x))
        for kind, products in ways.items():
            for product in products:
                seconds = []
                for _ in range(18):
                    start = time.perf_counter()
                    product()
                    seconds.append(time.perf_counter() - start)
                best[kind] = max(best.get(kind, 0.0), 2 * r * k * n / min(seconds) / 1e9)
    return best


def measure(rounds: int, steps: int, regime: Regime, cores: int) -> dict[str, Any]:
    """Run all contenders in turns; return the measurements, times in seconds."""
    config = default_config(**regime)
    ours = team("ours", cores, 1, regime=regime)
    teams = {
        f"plain loop, one process, {cores} threads": team("plain", 1, cores, regime=regime),
        f"plain loop, {cores} processes": team("plain", cores, 1, regime=regime),
        **{
            f"{kind}, {cores} processes": team(kind, cores, 1, regime=regime)
            for kind in PEERS
            if not kind.startswith("JAX") or find_spec("jax")
        },
        f"this project, {cores} processes": ours,
    }
    rates: list[dict[str, float]] = []
    evaluation = []
    for i in range(rounds):
        rates.append(product_rates(regime))
        first = i % len(teams)  # each round begins with another contender
        for one in [*teams.values()][first:] + [*teams.values()][:first]:
            one.times.append(one.run(steps))
        evaluation.append(ours.run(2, "evaluate"))
    flops = step_flops(config)
    rate = {kind: statistics.median(of_round[kind] for of_round in rates) for kind in rates[0]}
    results: dict[str, Any] = {
        "flops": flops,
        "rates": rate,
        "floor": flops / 3 / 1e9 * sum(1 / r for r in rate.values()),  # a third forward, the rest for gradients
        "step": statistics.median(ours.times),
        "contenders": {},
    }
    for name, one in teams.items():
        last = one.end()
        lanes = sum(process["lanes"] for process in last)
        seconds, memory = [t / lanes for t in one.times], max(process["memory"] for process in last)
        results["contenders"][name] = {"seconds per lane-step": seconds, "memory": memory, "lanes": lanes}
    results["evaluation"], results["every"] = statistics.median(evaluation), config.eval.every
    return results


def page(results: dict[str, Any], regime: Regime) -> str:
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seeds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of a contender in a round")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--regime", type=json.loads, default={}, help="changes of the default regime, as JSON")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args(arguments)
    results = measure(options.rounds, options.steps, options.regime, options.cores)
    write(options.out, "seeds", page(results, options.regime), results)


if __name__ == "__main__":
    main()
