"""Simulated stores with a known truth, as the pandas frames that ``open_store`` gives.

The curves have the shape of grokking: accuracy rises around the run's time, validation
loss climbs before a slow generalisation and not before a fast one, the weight norm
falls before a slow one and after a fast one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from grok.config import flatten, identify, load_config

INT_COLUMNS = ("memorised_step", "grokked_step", "val_loss_peak_step", "weight_norm_peak_step", "branch_step")
NUMERICS = "cpu/plain/float32/1 thread/torch 2.13.0"


@dataclass
class Truth:
    """One simulated run: its overrides, its true time to generalise (steps) and its regime."""

    overrides: dict[str, Any]
    time: float
    fast: bool = False
    status: str = "completed"
    numerics: str = NUMERICS
    metrics: dict[str, float] = field(default_factory=dict)


def nested(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted overrides into the nested mapping that ``load_config`` takes."""
    root: dict[str, Any] = {}
    for name, value in dotted.items():
        here = root
        *parents, last = name.split(".")
        for parent in parents:
            here = here.setdefault(parent, {})
        here[last] = value
    return root


def curve(truth: Truth, steps: np.ndarray) -> pd.DataFrame:
    """Return the evaluations of one run at ``steps``."""
    s, t = steps.astype(float), truth.time
    acc = 1 / (1 + np.exp(-np.log(np.maximum(s, 1.0) / t) / 0.08) / 99)  # 0.99 at s = t
    if truth.fast:
        loss = np.where(s < t, 5.4 - 0.3 * s / t, 0.02)
        norm = np.where(s < 1.3 * t, 40 + 25 * np.minimum(1, s / t), 65 - 20 * np.minimum(1, (s - 1.3 * t) / t))
    else:
        peak = 0.35 * t
        loss = np.where(s < peak, 5.4 + 7 * s / peak, np.maximum(0.02, 12.4 * (1 - (s - peak) / (t * 0.7))))
        norm = np.where(s < 0.5 * t, 40 + 28 * np.minimum(1, s / (0.4 * t)), 68 - 30 * np.minimum(1, (s - 0.5 * t) / t))
    train = 5.4 * np.exp(-s / 120)
    return pd.DataFrame(
        {
            "step": steps,
            "train_loss": np.where(s > 0, train, np.nan),
            "train_acc": np.where(s > 0, 1 - np.exp(-s / 120), np.nan),
            "val_loss": loss,
            "val_acc": acc,
            "weight_norm": norm,
            "lr": 1e-3,
        }
    )


def simulate(truths: Sequence[Truth]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the frames (runs, curves) of simulated runs."""
    rows, curves = [], []
    for truth in truths:
        config = load_config(nested(truth.overrides))
        ids, seeds, flat = identify(config), config.stream_seeds(), flatten(config)
        budget, every = flat["train.steps"], flat["eval.every"]
        at = np.unique(np.append(np.arange(0, budget + 1, every), budget))
        evals = curve(truth, at)
        if truth.status == "diverged":
            evals = evals[evals["step"] <= budget // 2]
            evals.loc[evals.index[-1], ["val_loss", "val_acc"]] = np.nan
        seen = evals.loc[evals["val_acc"] >= 0.99, "step"]
        last = evals.iloc[-1]
        past = evals[evals["step"] > 0]
        rows.append(
            {
                "run_id": ids.run_id,
                "trajectory_id": ids.trajectory_id,
                "config_id": ids.config_id,
                "parent_run_id": None,
                "branch_step": None,
                "mode": "arithmetic",
                "seed": config.seed,
                "seed_split": seeds.split,
                "seed_init": seeds.init,
                "seed_order": seeds.order,
                "replicate": config.replicate,
                "status": truth.status,
                "stop_reason": "steps" if truth.status == "completed" else "not_finite",
                "error": None,
                "steps": int(last["step"]),
                **{k: last[k] for k in ("train_loss", "train_acc", "val_loss", "val_acc", "weight_norm")},
                "weight_norm_all": last["weight_norm"] + 20,
                "weights_hash": ids.trajectory_id + truth.numerics,
                "memorised_step": _first(past, past["train_loss"] < 0.05),
                "grokked_step": int(seen.iloc[0]) if len(seen) and truth.status == "completed" else None,
                "val_loss_peak_step": int(past.loc[past["val_loss"].idxmax(), "step"]),
                "weight_norm_peak_step": int(past.loc[past["weight_norm"].idxmax(), "step"]),
                "seconds": budget * 0.02,
                "host": "simulated",
                "device": "cpu",
                "numerics": truth.numerics,
                "git_commit": "0" * 40,
                "git_dirty": False,
                "torch_version": "2.13.0",
                "started_at": pd.Timestamp("2026-01-01", tz="UTC"),
                **{f"config.{name}": value for name, value in flat.items()},
            }
        )
        evals.insert(0, "run_id", ids.run_id)
        curves.append(evals)
    runs = pd.DataFrame(rows)
    for name in INT_COLUMNS:
        runs[name] = runs[name].astype("Int64")
    for name in [c for c in runs if c.startswith("config.seeds.") and c != "config.seeds.layers"]:
        runs[name] = runs[name].astype("Int64")
    return runs, pd.concat(curves, ignore_index=True)


def _first(evals: pd.DataFrame, where: pd.Series) -> int | None:
    hit = evals.loc[where, "step"]
    return int(hit.iloc[0]) if len(hit) else None


def mixture_times(n: int, rng: np.random.Generator, fast_share: float = 0.07) -> tuple[np.ndarray, np.ndarray]:
    """Return times of a log-normal mixture (fast around 2,200 steps, slow around 11,000) and who is fast."""
    fast = rng.random(n) < fast_share
    return np.exp(np.where(fast, rng.normal(np.log(2200), 0.25, n), rng.normal(np.log(11_000), 0.2, n))), fast


def census(n: int, rng: np.random.Generator, steps: int = 3000, every: int = 100, **overrides: Any) -> list[Truth]:
    """Return ``n`` random seeds of one condition."""
    times, fast = mixture_times(n, rng)
    given = {k.replace("__", "."): v for k, v in overrides.items()}
    return [
        Truth({"seed": i, "train.steps": steps, "eval.every": every, **given}, float(t), bool(f))
        for i, (t, f) in enumerate(zip(times, fast, strict=True))
    ]
