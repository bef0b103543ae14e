"""Seeds per hour of the default regime, against a plain training loop: ``python -m benchmarks.seeds``.

All contenders stay alive and take turns in rounds, so that a noisy machine affects all of them; the
results are ratios. Writes a dated page under ``results/benchmarks/``. Takes about ten minutes on two
cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contenders import OurLanes, PlainLoop, VmapLanes
from benchmarks.harness import Contender, rotated, write
from benchmarks.seeds_page import page
from benchmarks.seeds_profile import profiled
from benchmarks.settings import default_config
from grok.arithmetic.engine import train
from grok.arithmetic.rows import RowPlan, matrix_flops
from grok.arithmetic.task import Vocabulary
from grok.config import ArithmeticConfig
from grok.numerics import onednn_product, onednn_weight_gradient
from grok.records import Job

VMAP_LANES = 4
PLANNED = 2000

Regime = dict[str, Any]
"""Changes of the default regime's settings."""


def contender(kind: str, config: ArithmeticConfig, seed: int, lanes: int) -> Any:
    """Return a contender of the kind ``plain``, ``plain, our memory``, ``vmap`` or ``ours``."""
    if kind.startswith("plain"):
        return PlainLoop(config, seed, our_memory=kind != "plain")
    return VmapLanes(config, seed, lanes) if kind == "vmap" else OurLanes(config, seed, lanes)


class Served:
    """A contender in its own process, warmed up."""

    def __init__(self, kind: str, threads: int, seed: int, lanes: int, regime: Regime) -> None:
        torch.set_num_threads(threads)
        made = contender(kind, default_config(**regime), seed, lanes)
        for _ in range(5):
            made.step()
        self.step = made.step
        self.phases: dict[str, float] = {}
        if kind == "ours":
            self.evaluate, self.forward = made.evaluate, made.forward
            made.evaluate()
            made.forward()
            made.phases = self.phases = dict.fromkeys(made.phases, 0.0)

    def end(self) -> dict[str, Any]:
        return {"phases": self.phases}


def team(kind: str, processes: int, threads: int, lanes: int = 1, *, regime: Regime) -> Contender:
    """Return processes that run one contender at the same time, one seed or stack of seeds each."""
    return Contender(Served, [(kind, threads, i * lanes, lanes, regime) for i in range(processes)])


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


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return each kind's median over the rounds."""
    return {kind: statistics.median(seconds[kind] for seconds in rounds) for kind in rounds[0]}


def floor_of(flops: int, rates: dict[str, float]) -> float:
    """Return the seconds of a step's products at these rates: a third of them forward, the rest for gradients."""
    return flops / 3 / 1e9 * sum(1 / rate for rate in rates.values())


def flops_of(config: ArithmeticConfig) -> int:
    """Return the operations of one step's matrix products with shared prefixes."""
    return matrix_flops(
        RowPlan.of(config.task),
        batch_size=config.train.batch_size,
        layers=config.model.layers,
        d_model=config.model.d_model,
        d_ff=config.model.d_ff or 4 * config.model.d_model,
        vocab_size=Vocabulary.of(config.task).size,
    )


def measure(rounds: int, steps: int, regime: Regime, cores: int) -> dict[str, Any]:
    """Run all contenders in turns; return the measurements, times in seconds."""
    config = default_config(**regime)
    alone, ours = team("ours", 1, 1, regime=regime), team("ours", cores, 1, regime=regime)
    teams = {
        f"plain loop, one process, {cores} threads": team("plain", 1, cores, regime=regime),
        f"plain loop, {cores} processes": team("plain", cores, 1, regime=regime),
        f"plain loop, {cores} processes, memory as ours": team("plain, our memory", cores, 1, regime=regime),
        f"torch.func.vmap, {VMAP_LANES} lanes, {cores} processes": team("vmap", cores, 1, VMAP_LANES, regime=regime),
        "this project, one process": alone,
        f"this project, {cores} processes": ours,
    }
    rates: list[dict[str, float]] = []
    together: list[dict[str, float]] = []
    """The same while every core computes such products."""
    evaluation, forward = [], []
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        for i in range(rounds):
            rates.append(product_rates(regime))
            together += pool.map(product_rates, [regime] * cores, chunksize=1)
            for name in rotated(list(teams), i):
                teams[name].times.append(teams[name].run(max(2, steps // 4) if "vmap" in name else steps))
            evaluation.append(ours.run(2, "evaluate"))
            forward.append(ours.run(steps, "forward"))
    flops, rate, rate_together = flops_of(config), medians(rates), medians(together)
    results: dict[str, Any] = {
        "flops": flops,
        "rates": rate,
        "floor": floor_of(flops, rate),
        "rates, all cores": rate_together,
        "floor, all cores": floor_of(flops, rate_together),
        "step": statistics.median(ours.times),
        "step alone": statistics.median(alone.times),
        "contenders": {},
    }
    for name, one in teams.items():
        last, lanes = one.end(), len(one.pipes) * (VMAP_LANES if "vmap" in name else 1)
        seconds, memory = [t / lanes for t in one.times], max(process["memory"] for process in last)
        results["contenders"][name] = {"seconds per lane-step": seconds, "memory": memory, "lanes": lanes}
        if one is ours:
            results["phases"] = phases_of_a_step(last[0]["phases"], results["step"], statistics.median(forward))
    results["evaluation"], results["every"] = statistics.median(evaluation), config.eval.every
    return results


def phases_of_a_step(clocked: dict[str, float], step: float, forward: float) -> dict[str, float]:
    """Return the seconds of a step by phase, from the measured shares and the time of a separate forward pass."""
    total = sum(clocked.values())
    shares = {phase: step * seconds / total for phase, seconds in clocked.items()}
    return {
        "data": shares["data"],
        "forward": forward,
        "backward": shares["forward and backward"] - forward,
        "optimiser": shares["optimiser"],
    }


def scaling(steps: int, regime: Regime, cores: int) -> list[dict[str, Any]]:
    """Return the cost of a lane-step by number of lanes and processes, model, modulus and batch."""
    rows: list[dict[str, Any]] = []

    def add(what: str, lanes: int = 1, processes: int = 1, **over: Any) -> None:
        merged = {**regime, **{k: {**regime.get(k, {}), **v} for k, v in over.items()}}
        ours = team("ours", processes, 1, lanes, regime=merged)
        seconds = min(ours.run(max(2, steps // lanes)) for _ in range(3)) / lanes
        memory = max(process["memory"] for process in ours.end())
        rows.append({"what": what, "seconds": seconds, "flops": flops_of(default_config(**merged)), "memory": memory})

    add("the regime: one lane, one process")
    for processes in range(2, cores + 1):
        add(f"{processes} processes", processes=processes)
    for lanes in (2, 8):
        add(f"{lanes} lanes in turns in one process", lanes=lanes)
    config = default_config(**regime)
    for factor in (0.5, 2):
        d, ff = int(factor * config.model.d_model), int(factor * (config.model.d_ff or 4 * config.model.d_model))
        add(f"d_model {d}", model={"d_model": d, "d_ff": ff})
    for modulus in (59, 97):
        add(f"modulus {modulus}", task={"modulus": modulus})
    add(f"{config.model.layers - 1} layers", model={"layers": config.model.layers - 1})
    add(f"batch {config.train.batch_size // 4}", train={"batch_size": config.train.batch_size // 4})
    return rows


def run_lengths(lengths: Sequence[int], regime: Regime) -> list[dict[str, Any]]:
    """Return the seconds of whole runs of several lengths in one lane, including evaluations."""
    rows = []
    for steps in lengths:
        config = default_config(**{**regime, "train": {**regime.get("train", {}), "steps": steps}})
        start = time.perf_counter()
        for _ in train([Job(run_id="0", config=config)]):
            pass
        rows.append({"steps": steps, "seconds": time.perf_counter() - start})
    return rows[1:]  # the first run compiles


def start_up(regime: Regime) -> dict[str, float]:
    """Return the seconds from the command to the plan of ``PLANNED`` seeds, and to the end of a run's first step.

    The second time includes the run's evaluations before and after that step.
    """
    settings = [f"{group}.{k}={v}" for group, over in regime.items() for k, v in over.items()]
    with tempfile.TemporaryDirectory() as folder:
        store = f"store.path={folder}/store"
        command = [sys.executable, "-m", "grok.run"]
        start = time.time()
        plan = [*command, "-m", f"seed=range(0,{PLANNED})", "dry_run=true", store, *settings]
        subprocess.run(plan, check=True, capture_output=True)
        planned = time.time() - start
        start = time.time()
        one = [*command, "train.steps=1", "numerics.compile=false", "device=cpu", store, *settings]
        subprocess.run(one, check=True, capture_output=True)
        from grok.store import open_store

        run = open_store(f"{folder}/store").runs().iloc[0]
    return {"planning": planned, "first step": float(run.started_at.timestamp() + run.seconds - start)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seeds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of a contender in a round")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 200, 800], help="lengths of whole runs")
    parser.add_argument("--regime", type=json.loads, default={}, help="changes of the default regime, as JSON")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args(arguments)
    results = measure(options.rounds, options.steps, options.regime, options.cores)
    results["profile"] = profiled(options.steps, options.regime)
    results["scaling"] = scaling(options.steps, options.regime, options.cores)
    results["run lengths"] = run_lengths([2, *options.lengths], options.regime)
    results["start-up"] = start_up(options.regime)
    write(options.out, "seeds", page(results, options.regime), results)


if __name__ == "__main__":
    main()
