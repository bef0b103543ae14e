"""Seeds an hour at the default regime, against the seeds' own loop: ``python -m benchmarks.seeds``.

All contenders stay alive and take turns in rounds, so that a noisy machine treats them
alike; what counts are the ratios. Writes a dated page under ``results/benchmarks/``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.contenders import OurLane, PlainLoop, VmapLanes, default_config
from grok.arithmetic.products import choose_path, linear_onednn, processor_model
from grok.arithmetic.rows import RowPlan, matrix_flops
from grok.config import ArithmeticConfig

ROUNDS = 5
VMAP_LANES = 4


def serve(pipe: Connection, kind: str, threads: int, seed: int, over: dict[str, Any]) -> None:
    """Build one contender in this process, warm it up, then run what the pipe asks for."""
    torch.set_num_threads(threads)
    config = default_config(**over)
    contender: Any
    if kind == "plain":
        contender = PlainLoop(config, seed)
    elif kind == "vmap":
        contender = VmapLanes(config, seed, VMAP_LANES)
    else:
        contender = OurLane(config, seed)
    for _ in range(5):
        contender.step()
    if kind == "ours":
        contender.evaluate()
        contender.phases = dict.fromkeys(contender.phases, 0.0)
    pipe.send("ready")
    while True:
        what, count = pipe.recv()
        if what == "end":
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            pipe.send((memory, getattr(contender, "phases", {})))
            return
        start = time.perf_counter()
        for _ in range(count):
            getattr(contender, what)()
        pipe.send(time.perf_counter() - start)


class Team:
    """Processes that run one contender at the same time, one seed each."""

    def __init__(self, kind: str, processes: int, threads: int, lanes: int = 1, **over: Any) -> None:
        self.lanes = lanes * processes
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        for seed in range(processes):
            here, there = context.Pipe()
            context.Process(target=serve, args=(there, kind, threads, seed, over), daemon=True).start()
            self.pipes.append(here)
            assert here.recv() == "ready"  # one after the other: the first fills the compilation cache
        self.times: list[float] = []

    def run(self, count: int, what: str = "step") -> float:
        """Return the seconds that each of ``count`` steps took, all processes at work."""
        for pipe in self.pipes:
            pipe.send((what, count))
        return max(pipe.recv() for pipe in self.pipes) / count

    def end(self) -> tuple[float, dict[str, float]]:
        """Stop; return (largest memory of a process in MiB, seconds per phase of the first)."""
        for pipe in self.pipes:
            pipe.send(("end", 0))
        answers = [pipe.recv() for pipe in self.pipes]
        return max(memory for memory, _ in answers), answers[0][1]


def product_rates(config: ArithmeticConfig) -> dict[str, float]:
    """Return the best single-thread rate, in GFLOP/s, of each kind of product at the step's own largest shapes."""
    torch.set_num_threads(1)
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
        operands = {"forward": (x, w), "input gradient": (g, w.t()), "weight gradient": (g.t(), x.t())}
        for kind, (left, right) in operands.items():
            for product in (F.linear, linear_onednn):
                seconds = []
                for _ in range(18):
                    start = time.perf_counter()
                    product(left, right, None)
                    seconds.append(time.perf_counter() - start)
                best[kind] = max(best.get(kind, 0.0), 2 * r * k * n / min(seconds) / 1e9)
    return best


def measure(rounds: int, steps: int) -> dict[str, Any]:
    """Run all contenders in turns; return what was found."""
    cores = os.cpu_count() or 1
    config = default_config()
    teams = {
        f"plain loop, one process, {cores} threads": Team("plain", 1, cores),
        f"plain loop, {cores} processes": Team("plain", cores, 1),
        f"torch.func.vmap, {VMAP_LANES} lanes, {cores} processes": Team("vmap", cores, 1, VMAP_LANES),
        f"this project, {cores} processes": Team("ours", cores, 1),
    }
    ours = teams[f"this project, {cores} processes"]
    rates: dict[str, list[float]] = {}
    evaluation = []
    for _ in range(rounds):
        for kind, rate in product_rates(config).items():
            rates.setdefault(kind, []).append(rate)
        for name, team in teams.items():
            team.times.append(team.run(max(2, steps // 4) if "vmap" in name else steps))
        evaluation.append(ours.run(2, "evaluate"))
    flops = matrix_flops(
        RowPlan.of(config.task),
        batch_size=config.train.batch_size,
        layers=config.model.layers,
        d_model=config.model.d_model,
        d_ff=config.model.d_ff or 0,
        vocab_size=config.task.modulus + 11,
    )
    rate = {kind: statistics.median(values) for kind, values in rates.items()}
    floor = flops / 3 / 1e9 * sum(1 / r for r in rate.values())
    found: dict[str, Any] = {"flops": flops, "rates": rate, "floor": floor, "contenders": {}}
    evaluation_seconds = statistics.median(evaluation)
    for name, team in teams.items():
        memory, phases = team.end()
        seconds = [t / team.lanes for t in team.times]
        found["contenders"][name] = {"seconds per lane-step": seconds, "memory": memory, "lanes": team.lanes}
        if team is ours:
            found["phases"] = phases
            found["step"] = statistics.median(team.times)
    every = config.eval.every
    found["evaluation"] = evaluation_seconds
    found["evaluation share"] = evaluation_seconds / (evaluation_seconds + every * found["step"])
    return found


def scaling(steps: int) -> list[tuple[str, float, float]]:
    """Return (what, ms a step, GFLOP a step) of one lane as the model, the modulus and the batch grow."""
    rows = []
    cases: list[tuple[str, dict[str, Any]]] = [
        ("d_model 64", {"model": {"d_model": 64, "d_ff": 256}}),
        ("default", {}),
        ("d_model 256", {"model": {"d_model": 256, "d_ff": 1024}}),
        ("modulus 97", {"task": {"modulus": 97}}),
        ("1 layer", {"model": {"layers": 1}}),
        ("batch 128", {"train": {"batch_size": 128}}),
    ]
    for name, over in cases:
        team = Team("ours", 1, 1, **over)
        seconds = min(team.run(steps) for _ in range(3))
        team.end()
        config = default_config(**over)
        flops = matrix_flops(
            RowPlan.of(config.task),
            batch_size=config.train.batch_size,
            layers=config.model.layers,
            d_model=config.model.d_model,
            d_ff=config.model.d_ff or 0,
            vocab_size=config.task.modulus + 11,
        )
        rows.append((name, 1e3 * seconds, flops / 1e9))
    return rows


def page(found: dict[str, Any], scaled: list[tuple[str, float, float]], commit: str) -> str:
    """Return the benchmark page as Markdown."""
    contenders = found["contenders"]
    base = statistics.median(next(iter(contenders.values()))["seconds per lane-step"])
    base_rounds = next(iter(contenders.values()))["seconds per lane-step"]
    lines = [
        "# Seeds an hour at the default regime",
        "",
        f"{datetime.date.today()}, commit {commit}, {processor_model()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"products: {choose_path('auto', 'float32')}. Command: `make bench`.",
        "",
        f"Medians of {len(base_rounds)} rounds in which all contenders take turns; in brackets the smallest and "
        "largest ratio of a round. A seed is 3,000 steps, evaluation left out.",
        "",
        "| contender | ms a lane-step | seeds an hour | times the plain loop | MiB a process |",
        "|---|---|---|---|---|",
    ]
    for name, c in contenders.items():
        seconds = statistics.median(c["seconds per lane-step"])
        ratios = [b / s for b, s in zip(base_rounds, c["seconds per lane-step"], strict=True)]
        lines.append(
            f"| {name} | {1e3 * seconds:.1f} | {3600 / (3000 * seconds):.0f} | "
            f"{base / seconds:.2f} [{min(ratios):.2f}, {max(ratios):.2f}] | {c['memory']:.0f} |"
        )
    rates = ", ".join(f"{kind} {rate:.0f}" for kind, rate in found["rates"].items())
    total = sum(found["phases"].values())
    lines += [
        "",
        "## The floor",
        "",
        f"A step needs {found['flops'] / 1e9:.3f} GFLOP of matrix products with shared prefixes. Best rates of any "
        f"path at these shapes on one core, in GFLOP/s: {rates}. Floor: {1e3 * found['floor']:.1f} ms a step. "
        f"Ours: {1e3 * found['step']:.1f} ms, **{100 * found['floor'] / found['step']:.0f}% of the floor**.",
        "",
        "## Where a step's time goes",
        "",
        "| phase | share |",
        "|---|---|",
        *[f"| {phase} | {100 * seconds / total:.1f}% |" for phase, seconds in found["phases"].items()],
        "",
        f"An evaluation of the whole validation set takes {1e3 * found['evaluation']:.0f} ms: "
        f"{100 * found['evaluation share']:.1f}% of the time at the default cadence.",
        "",
        "## Cost against size",
        "",
        "| what | ms a step | GFLOP a step | GFLOP/s |",
        "|---|---|---|---|",
        *[f"| {name} | {ms:.1f} | {gflop:.2f} | {gflop / ms * 1e3:.0f} |" for name, ms, gflop in scaled],
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=20, help="steps of a contender in a round")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    arguments = parser.parse_args()
    found = measure(arguments.rounds, arguments.steps)
    scaled = scaling(arguments.steps)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    text = page(found, scaled, commit.stdout.strip() or "unknown")
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = arguments.out / f"{datetime.date.today()}-seeds"
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".json").write_text(json.dumps(found | {"scaling": scaled}, indent=1))
    print(text)


if __name__ == "__main__":
    main()
