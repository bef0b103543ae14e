"""Simulated stores with a known truth, written by the store's own code.

The curves have the shape of grokking: accuracy rises around the run's time, validation
loss climbs before a slow generalisation and not before a fast one, the weight norm
falls before a slow one and after a fast one. Event times follow the engine's own
definitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.observations import Observations
from grok.arithmetic.outcome import event_times
from grok.config import identify, load_config
from grok.records import CurvePoint, RunResult
from grok.store import Provenance, Row, StoreWriter
from grok.store.reader import to_pandas
from grok.store.rows import to_shard

NUMERICS = "cpu/plain/float32/1 thread/torch 2.13.0"
MACHINE = Provenance(
    git_commit="0" * 40,
    git_dirty=False,
    host="simulated",
    grok_version="0",
    torch_version="2.13.0",
    python_version="3.11",
    numpy_version="2.4",
)


@dataclass
class Truth:
    """One simulated run: its overrides, its true time to generalise (steps) and its regime."""

    overrides: dict[str, Any]
    time: float
    fast: bool = False
    status: str = "completed"
    numerics: str = NUMERICS


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted overrides into the nested mapping that ``load_config`` takes."""
    root: dict[str, Any] = {}
    for name, value in dotted.items():
        if isinstance(value, dict):
            root.setdefault(name.split(".")[0], {})[name.split(".")[1]] = value
            continue
        here = root
        *parents, last = name.split(".")
        for parent in parents:
            here = here.setdefault(parent, {})
        here[last] = value
    return root


def curve(truth: Truth, steps: Sequence[int]) -> list[CurvePoint]:
    """Return the evaluations of one run at ``steps``; validation accuracy is 0.95 at the run's time."""
    s, t = np.asarray(steps, dtype=float), truth.time
    acc = 1 / (1 + np.maximum(s / t, 1e-3) ** (-1 / 0.08) / 19)
    if truth.fast:
        loss = np.where(s < t, 5.4 - 0.3 * s / t, 0.02)
        norm = np.where(s < 1.3 * t, 40 + 25 * np.minimum(1, s / t), 65 - 20 * np.minimum(1, (s - 1.3 * t) / t))
    else:
        peak = 0.35 * t
        loss = np.where(s < peak, 5.4 + 7 * s / peak, np.maximum(0.02, 12.4 * (1 - (s - peak) / (t * 0.7))))
        norm = np.where(s < 0.5 * t, 40 + 28 * np.minimum(1, s / (0.4 * t)), 68 - 30 * np.minimum(1, (s - 0.5 * t) / t))
    train = 5.4 * np.exp(-s / 120)
    return [
        CurvePoint(
            step=int(k),
            train_loss=float(train[i]) if k else float("nan"),
            train_acc=float(1 - np.exp(-k / 120)) if k else float("nan"),
            val_loss=float(loss[i]),
            val_acc=float(acc[i]),
            weight_norm=float(norm[i]),
            weight_norm_all=float(norm[i] + 20),
            lr=1e-3,
            block_norms={
                "blocks.0": float(norm[i] * 0.7),
                "blocks.1": float(norm[i] * 0.6),
                "head": float(norm[i] * 0.4),
            },
        )
        for i, k in enumerate(steps)
    ]


def row(truth: Truth) -> Row:
    """Return the store's row of one simulated run."""
    config = load_config(nested(truth.overrides))
    identity = identify(config)
    budget, every = config.train.steps, config.eval.every  # type: ignore[attr-defined]
    points = curve(truth, sorted({*range(0, budget + 1, every), budget}))
    if config.train.stop_when_generalised:  # type: ignore[attr-defined]
        seen = [p.step for p in points if p.val_acc >= 0.95][:2]  # two evaluations in a row, not before the horizon
        points = [p for p in points if len(seen) < 2 or p.step <= max(3000, seen[1])]
    if truth.status == "diverged":
        points = points[: len(points) // 2 + 1]
        points[-1].val_loss = points[-1].val_acc = float("nan")
    result = RunResult(
        run_id=identity.run_id,
        status=truth.status,
        stop_reason="steps" if truth.status == "completed" else "not_finite",
        steps=points[-1].step,
        weights_hash=f"{identity.trajectory_id}{truth.numerics}",
        seconds=budget * 0.02,
        numerics=truth.numerics,
        started_at=1.7e9,
        curve=points,
    )
    for name, step in (event_times(points) if truth.status == "completed" else {}).items():
        setattr(result, name, step)
    return Row(result, config, identity, MACHINE)


def simulate(truths: Sequence[Truth]) -> Observations:
    """Return what a store of these runs would hold, without writing one."""
    shard = to_shard([row(t) for t in truths])
    runs, curves, steps = (to_pandas(kind, shard.table(kind)) for kind in ("runs", "curves", "steps"))
    return Observations(runs, curves, steps, path=Path("simulated"))


def write(truths: Sequence[Truth], path: Path) -> Path:
    """Write a store of simulated runs."""
    with StoreWriter(path) as writer:
        writer.commit([row(t) for t in truths])
    return path


def mixture_times(n: int, rng: np.random.Generator, fast_share: float = 0.07) -> tuple[np.ndarray, np.ndarray]:
    """Return times of a log-normal mixture (fast around 2,200 steps, slow around 11,000) and who is fast."""
    fast = rng.random(n) < fast_share
    return np.exp(np.where(fast, rng.normal(np.log(2200), 0.25, n), rng.normal(np.log(11_000), 0.2, n))), fast


def census(n: int, rng: np.random.Generator, steps: int = 3000, every: int = 100, **overrides: Any) -> list[Truth]:
    """Return ``n`` random seeds of one condition; ``optim__lr=...`` overrides ``optim.lr``."""
    times, fast = mixture_times(n, rng)
    given = {k.replace("__", "."): v for k, v in overrides.items()}
    return [
        Truth({"seed": i, "train.steps": steps, "eval.every": every, **given}, float(t), bool(f))
        for i, (t, f) in enumerate(zip(times, fast, strict=True))
    ]


def crossed(
    sizes: tuple[int, int, int], rng: np.random.Generator, components: Mapping[str, float], replicates: int = 2
) -> list[Truth]:
    """Return a split × init × order grid whose log times have the given variance components, around 3,000 steps."""
    names = ("split", "init", "order")
    effects = {
        label: rng.normal(0, np.sqrt(v), [sizes[names.index(n)] for n in label.split(" × ")])
        for label, v in components.items()
        if label != "chaos"
    }
    truths = []
    for cell in itertools.product(*map(range, sizes)):
        base = np.log(3000)
        for label, effect in effects.items():
            base += float(effect[tuple(cell[names.index(n)] for n in label.split(" × "))])
        for r in range(replicates):
            t = float(np.exp(base + rng.normal(0, np.sqrt(components.get("chaos", 0.0)))))
            seeds = {f"seeds.{name}": 100 + level for name, level in zip(names, cell, strict=True)}
            given = {**seeds, "perturb.ulps": 1, "seeds.perturb": r, "train.steps": 20_000, "eval.every": 100}
            truths.append(Truth(given, t, fast=t < 1500))
    return truths
