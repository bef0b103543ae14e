"""Restricted and excluded loss by the final weights' key frequencies, against a direct calculation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grok.arithmetic import outcome
from grok.arithmetic.engine import THRESHOLD, add_final_losses
from grok.arithmetic.task import FIRST_NUMBER, Vocabulary, split
from grok.arithmetic.weights import initial_parameters
from grok.checkpoints import load_checkpoint, load_weights, run_folder
from grok.config import ArithmeticConfig
from grok.execute import execute
from grok.records import CurvePoint
from grok.store import open_store
from tests.arithmetic.cases import tiny
from tests.arithmetic.test_model_parity import reference


def generator_of(p: int) -> int:
    """Return a number whose powers are all nonzero residues."""
    return next(g for g in range(2, p) if len({pow(g, i, p) for i in range(p - 1)}) == p - 1)


def direct(
    config: ArithmeticConfig, final: dict[str, Tensor], weights: dict[str, Tensor]
) -> tuple[list[int], float, float]:
    """Return (key frequencies, restricted, excluded loss) by projections on cos and sin of w_k (a ± b), one by one."""
    task, vocabulary = config.task, Vocabulary.of(config.task)
    p, sign = task.modulus, 1 if task.operation in ("x+y", "x*y") else -1
    numbers = list(range(p))
    if task.operation in ("x*y", "x/y"):
        numbers = [pow(generator_of(p), i, p) for i in range(p - 1)]
    n = len(numbers)
    result = {
        "x+y": lambda a, b: (a + b) % p,
        "x-y": lambda a, b: (a - b) % p,
        "x*y": lambda a, b: a * b % p,
        "x/y": lambda a, b: a * pow(b, -1, p) % p,
    }[task.operation]

    def logits(parameters: dict[str, Tensor]) -> np.ndarray:
        words = [
            [{"a": a + FIRST_NUMBER, "b": b + FIRST_NUMBER}.get(w, w) for w in vocabulary.layout]  # type: ignore[call-overload]
            for a in numbers
            for b in numbers
        ]
        with torch.no_grad():
            model = reference(config, {name: t.double() for name, t in parameters.items()})
            return np.asarray(model(torch.tensor(words))[:, -1].numpy())

    places = [(i, j) for i in range(n) for j in range(n)]
    directions = {}
    for k in range(1, n // 2 + 1):
        waves = [np.array([f(2 * math.pi * k * (i + sign * j) / n) for i, j in places]) for f in (math.cos, math.sin)]
        directions[k] = [w / np.linalg.norm(w) for w in waves if np.linalg.norm(w) > 1e-6]
    at_the_end = logits(final)
    strength = {k: np.linalg.norm([w @ at_the_end for w in waves]) for k, waves in directions.items()}
    keys = [k for k, s in strength.items() if s >= THRESHOLD * max(strength.values())]
    now = logits(weights)
    key_part = sum(np.outer(w, w @ now) for k in keys for w in directions[k])

    def loss(outputs: np.ndarray, answers: dict[tuple[int, int], int]) -> float:
        losses = []
        for row, (i, j) in zip(outputs, places, strict=True):
            if (numbers[i], numbers[j]) in answers:
                answer = answers[numbers[i], numbers[j]] + FIRST_NUMBER
                losses.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[answer])
        return float(np.mean(losses))

    everything = {(a, b): result(a, b) for a in numbers for b in numbers}
    train, _ = split(task, config.stream_seeds().split)
    seen = {(int(a), int(b)): int(c) for a, b, c in zip(train.a, train.b, train.answer, strict=True)}
    return keys, loss(now.mean(0) + key_part, everything), loss(now - key_part, seen)


@pytest.mark.parametrize(
    ("operation", "modulus", "more"),
    [
        ("x+y", 11, {}),
        ("x-y", 13, {"label_noise": 0.2}),
        ("x*y", 13, {"train_fraction": 0.3}),
        ("x/y", 13, {"sequence": "a b ="}),
    ],
)
def test_both_losses_equal_projections_one_by_one(operation: str, modulus: int, more: dict[str, Any]) -> None:
    config = tiny(task={"operation": operation, "modulus": modulus, **more}, precision="float64")
    final = initial_parameters(config, torch.float64)
    early = {name: 3 * t for name, t in final.items()}
    curve = [CurvePoint(step=step) for step in (0, 8, 24)]
    keys = add_final_losses(config, curve, final, [(8, early), (9, early)])
    assert [bool(point.metrics) for point in curve] == [False, True, True]
    for point, weights in ((curve[1], early), (curve[2], final)):
        expected_keys, restricted, excluded = direct(config, final, weights)
        assert keys == expected_keys
        assert point.metrics["final_restricted_loss"] == pytest.approx(restricted, abs=1e-9)
        assert point.metrics["final_excluded_loss"] == pytest.approx(excluded, abs=1e-9)


@pytest.mark.parametrize("keep", [True, False])
def test_a_sweep_measures_the_weights_that_it_kept(keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "GENERALISED_VAL_ACC", 0.0)  # so that 24 steps are enough
    checkpoint = {"keep_every": 16 if keep else 0}
    saved = {"save": "final", "checkpoint": checkpoint, "store": {"path": str(tmp_path / "S")}, "executor": "inline"}
    config = tiny(eval={"metrics": ["circuit"]}, **saved)
    assert execute([config]).exit_status == 0
    store = open_store(tmp_path / "S")
    (run,) = store.run_ids()
    curve = store.curves().set_index("step")["metrics"]
    measured = {int(step) for step, text in curve.items() if "final_excluded_loss" in text}
    assert measured == ({16, 24} if keep else set())
    assert curve.str.contains("restricted_loss").all()
    if keep:
        folder = run_folder(tmp_path / "S", run)
        kept = {n.removeprefix("parameters."): t for n, t in load_checkpoint(folder, 16).tensors.items()}
        weights = {n: t for n, t in kept.items() if n in load_weights(folder, "final")}
        _, _, excluded = direct(config, load_weights(folder, "final"), weights)
        assert json.loads(curve[16])["final_excluded_loss"] == pytest.approx(excluded, rel=1e-4)
