"""Interventions and measurements against their formulas, by hand and one by one."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic import outcome
from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.measures import (
    THRESHOLD,
    add_final_losses,
    circuit_metrics,
    effective_rank,
    logit_metrics,
    measured,
    neurons_of,
    wave_sample,
)
from grok.arithmetic.optimizer import orthogonal_gradients, stable_logits
from grok.arithmetic.program import Program
from grok.arithmetic.rows import Batch
from grok.arithmetic.task import FIRST_NUMBER, Equations, Vocabulary, all_equations, split
from grok.arithmetic.weights import initial_parameters
from grok.checkpoints import load_checkpoint, load_weights, run_folder
from grok.config import ArithmeticConfig, identify
from grok.config.arithmetic import TaskConfig
from grok.execute import execute
from grok.records import CurvePoint
from grok.store import open_store
from tests.arithmetic.cases import curve, results, tiny
from tests.arithmetic.test_model_parity import reference


def numbers_of(config: ArithmeticConfig) -> list[int]:
    """Return the numbers in the order of the operation's group."""
    p = config.task.modulus
    if config.task.operation not in ("x*y", "x/y"):
        return list(range(p))
    root = next(g for g in range(2, p) if len({pow(g, i, p) for i in range(p - 1)}) == p - 1)
    return [pow(root, i, p) for i in range(p - 1)]


def words(config: ArithmeticConfig, pairs: list[tuple[int, int]]) -> Tensor:
    """Return the words of the equations of these operands."""
    layout = Vocabulary.of(config.task).layout
    numbers = [{"a": a + FIRST_NUMBER, "b": b + FIRST_NUMBER} for a, b in pairs]
    return torch.tensor([[of.get(w, w) for w in layout] for of in numbers])  # type: ignore[call-overload]


def direct(
    config: ArithmeticConfig, final: dict[str, Tensor], weights: dict[str, Tensor]
) -> tuple[list[int], float, float]:
    """Return (key frequencies, restricted, excluded loss) by projections on cos and sin of w_k (a ± b), one by one."""
    task, numbers = config.task, numbers_of(config)
    p, n, sign = task.modulus, len(numbers), 1 if task.operation in ("x+y", "x*y") else -1
    result = {
        "x+y": lambda a, b: (a + b) % p,
        "x-y": lambda a, b: (a - b) % p,
        "x*y": lambda a, b: a * b % p,
        "x/y": lambda a, b: a * pow(b, -1, p) % p,
    }[task.operation]

    def logits(parameters: dict[str, Tensor]) -> np.ndarray:
        with torch.no_grad():
            model = reference(config, {name: t.double() for name, t in parameters.items()})
            return np.asarray(model(words(config, [(a, b) for a in numbers for b in numbers]))[:, -1].numpy())

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
    train_set, _ = split(config.task, config.stream_seeds().split)
    logits = Program(config).logits
    keys = add_final_losses(config.task, train_set, curve, final, [(8, early), (9, early)], logits)
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


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6))
def test_stablemax_is_its_formula(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    s = torch.tensor([v + 1 if v >= 0 else 1 / (1 - v) for v in values], dtype=torch.float64)
    found = -F.cross_entropy(stable_logits(x)[None], torch.tensor([0]))
    assert math.isclose(found, math.log(s[0] / s.sum()), rel_tol=1e-9, abs_tol=1e-9)


def test_orthogonal_gradients_are_and_keep_their_norm() -> None:
    parameters = initial_parameters(tiny(), torch.float64)
    gradients = {n: torch.sin(torch.arange(p.numel(), dtype=p.dtype)).view_as(p) for n, p in parameters.items()}
    for name, g in orthogonal_gradients(parameters, gradients).items():
        w = parameters[name]
        assert abs(float((w * g).sum())) < 1e-9 * float(w.norm() * g.norm() + 1)
        assert math.isclose(g.norm(), gradients[name].norm(), rel_tol=1e-9)


def test_norm_clamp_holds_the_norm() -> None:
    (found,) = results(tiny(optim={"norm_clamp": 0.5}, save="init", eval={"every": 3}))
    start = math.sqrt(sum(float(p.double().square().sum()) for p in found.tensors["init"].values()))
    assert [p.weight_norm_all for p in found.curve] == pytest.approx([0.5 * start] * 8, rel=1e-5)


def test_each_intervention_is_another_run_and_moves_it() -> None:
    overs: list[dict[str, Any]] = [
        {"optim": {"orthogonal_gradient": True}},
        {"optim": {"norm_clamp": 1.0}},
        {"train": {"loss": "stablemax"}},
        {"optim": {"grokfast": "ema"}},
        {"precision": "float64"},
        {"precision": "bf16"},
    ]
    configs = [tiny(), *(tiny(**over) for over in overs)]
    made = results(*configs)
    assert {result.status for result in made} == {"completed"}
    assert len({result.weights_hash for result in made}) == len({identify(c).trajectory_id for c in configs}) == 7


def test_the_coupling_is_the_bug_it_shows() -> None:
    cadences = [{"every": 2}, {"every": 4}, {"every": 4, "passes": 2}]
    coupled = [tiny(eval={**c, "couple_order": True}) for c in cadences]
    plain = [tiny(eval=c) for c in cadences]
    assert len({r.weights_hash for r in results(*coupled)}) == 3
    assert len({r.weights_hash for r in results(*plain)}) == 1
    assert len({identify(c).trajectory_id for c in coupled}) == 3
    assert len({identify(c).trajectory_id for c in plain}) == 1
    # nothing was evaluated in the first epoch (3 batches), so the first steps are the same
    late = results(tiny(eval={"every": 24, "couple_order": True}), tiny(eval={"every": 1}))
    assert curve(late[0])[24] == curve(late[1])[24]


@pytest.mark.parametrize("operation", ["x+y", "x-y", "x*y", "x/y"])
def test_a_circuit_made_by_hand_is_found(operation: str) -> None:
    """Logits that are cosines of (log a ± log b - log c) at five frequencies are all kept, or all excluded."""
    config = tiny(task={"operation": operation, "modulus": 31}, eval={"metrics": ["fourier", "head", "rank"]})
    order, keys = torch.tensor(numbers_of(config)), [1, 4, 7, 9, 12]
    n = len(order)
    place = torch.zeros(31, dtype=torch.float64)
    place[order] = torch.arange(n, dtype=torch.float64)
    embedding = torch.zeros(FIRST_NUMBER + 31, 2 * len(keys), dtype=torch.float64)
    for i, k in enumerate(keys):
        angle = 2 * math.pi * k * place / n
        embedding[FIRST_NUMBER:, 2 * i], embedding[FIRST_NUMBER:, 2 * i + 1] = angle.cos(), angle.sin()
    parameters, table = {"token_embedding.weight": embedding}, all_equations(config.task)

    def logits(equations: Equations) -> Tensor:
        a, b = place[torch.from_numpy(equations.a)], place[torch.from_numpy(equations.b)]
        sign = 1 if operation in ("x+y", "x*y") else -1
        gap = (a + sign * b)[:, None] - place[None, :]
        waves = sum((2 * math.pi * k * gap / n).cos() for k in keys)
        assert isinstance(waves, Tensor)
        numbers = torch.zeros(len(equations), FIRST_NUMBER + 31, dtype=torch.float64)
        numbers[:, FIRST_NUMBER:] = 20 * waves
        if n < 31:
            numbers[:, FIRST_NUMBER] = -100  # the answer 0 never occurs among nonzero operands
        return numbers

    tied = measured(config, parameters, table, logits)
    assert tied["fourier_top5"] == tied["head_top5"] == pytest.approx(1, abs=1e-2)  # 0 has no logarithm: it is outside
    assert tied["embedding_rank"] == pytest.approx(2 * len(keys), abs=0.3)
    assert math.isnan(effective_rank(embedding / 0))
    one_wave = measured(config, {**parameters, "head.weight": embedding[:, :2]}, table, logits)
    assert one_wave["head_gini"] > tied["head_gini"] + 0.1
    assert one_wave["head_rank"] == pytest.approx(2, abs=0.05) and one_wave["embedding_rank"] == tied["embedding_rank"]
    nonzero = np.flatnonzero((table.a > 0) & (table.b > 0)) if n < 31 else np.arange(len(table))
    inside = table.take(nonzero)
    full = F.cross_entropy(logits(inside), torch.from_numpy(inside.answer) + FIRST_NUMBER)
    circuit = circuit_metrics(parameters, config.task, logits)
    assert full < 0.1
    assert circuit["restricted_loss"] == pytest.approx(float(full), abs=1e-6)
    assert circuit["excluded_loss"] > 3


@pytest.mark.parametrize(
    ("operation", "modulus", "model"),
    [("x+y", 11, {}), ("x/y", 13, {"norm": "pre", "activation": "relu", "tied": True}), ("x*y", 67, {"layers": 1})],
)
def test_neurons_equal_fits_one_by_one(operation: str, modulus: int, model: dict[str, Any]) -> None:
    config = tiny(task={"operation": operation, "modulus": modulus}, model=model, precision="float64")
    weights = {name: 3 * p + 0.1 * p.cos() for name, p in initial_parameters(config, torch.float64).items()}
    weights["final_norm.weight"] = torch.arange(16).double().sin()
    numbers, sign = np.array(numbers_of(config)), -1 if operation == "x/y" else 1
    n, (i, j) = len(numbers), wave_sample(len(numbers), sign)[0].numpy()
    network, seen = reference(config, weights), []
    for block in network.blocks:
        block.mlp.down.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][:, -1].numpy()))
    with torch.no_grad():
        network(words(config, list(zip(numbers[i].tolist(), numbers[j].tolist(), strict=True))))
        answers = block.mlp.down.weight.T
        for norm in [block.norm2] * (config.model.norm == "post") + [network.final_norm]:
            answers = (answers - answers.mean(1, keepdim=True)) * norm.weight
        answers = (answers @ network.head.weight[numbers + FIRST_NUMBER].T).numpy()
    for found, h in zip(neurons_of(config, weights), seen, strict=True):
        for neuron in range(0, h.shape[1], 5):
            y, fits = h[:, neuron] - h[:, neuron].mean(), []
            for k in range(1, n // 2 + 1):
                x = 2 * np.pi * k / n * np.array([i, sign * j, i + sign * j, i - sign * j])
                waves = np.concatenate([np.cos(x), np.sin(x), np.ones((1, len(i)))]).T
                fit = np.linalg.lstsq(waves, y, rcond=1e-9)[0]
                fits.append((1 - ((y - waves @ fit) ** 2).sum() / (y**2).sum(), k, fit))
            explained, k, fit = max(fits, key=lambda one: one[0])
            assert (found.frequency[neuron], found.explained[neuron]) == (k, pytest.approx(explained, abs=1e-9))
            expected = [(found.a, fit[0] + 1j * fit[4]), (found.b, fit[1] + 1j * fit[5])]
            if found.out is not None:
                expected.append((found.out, answers[neuron] @ np.exp(2j * np.pi * k * np.arange(n) / n)))
            for phase, wave in expected:
                assert np.exp(1j * float(phase[neuron])) == pytest.approx(wave / abs(wave), abs=1e-9)


@pytest.mark.parametrize("operation", ["x+y", "x-y", "x*y", "x/y"])
def test_neurons_made_by_hand_are_found(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six neurons are waves, one is half noise, one constant; two have other phases than their answers."""
    model = {"layers": 1, "d_model": 8, "d_ff": 8, "norm": "none", "final_norm": False}
    config = tiny(task={"operation": operation, "modulus": 71}, model=model, eval={"metrics": ["neurons"]})
    numbers, place = torch.tensor(numbers_of(config)), torch.zeros(FIRST_NUMBER + 71, dtype=torch.float64)
    place[FIRST_NUMBER + numbers] = 2 * math.pi * torch.arange(len(numbers)).double() / len(numbers)
    k, a = torch.tensor([3, 3, 3, 9, 9, 20, 20, 20]), torch.arange(8).double()
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=4096))
    weights = initial_parameters(config, torch.float64)
    weights["head.weight"] = (k * place[:, None] - 3.5 * a - 0.5 * math.pi * (a > 3)).cos()
    for neurons in (torch.arange(8), torch.tensor([7, 2, 0, 1, 6, 5, 3, 4])):

        def answers(model: LaneModel, _: object, batch: Batch, __: object, neurons: Tensor = neurons) -> None:
            x, y = place[batch.a, None], (-1 if operation in ("x-y", "x/y") else 1) * place[batch.b, None]
            h = 5 + (k * x - a).cos() + (k * y - 2.5 * a).cos() / 2 + (k * (x + y)).cos() + (k * (x - y)).sin()
            h[:, 6] += h[:, 6].std() * noise
            h[:, 7] = 5 + 1e-9 * h[:, 7]
            model.kept.append(h[:, neurons])

        monkeypatch.setattr(LaneModel, "answers", answers)
        weights["blocks.0.mlp.down.weight"] = torch.eye(8).double()[:, neurons]
        assert measured(config, weights, all_equations(config.task), lambda _: torch.empty(0)) == {
            "neurons_0_explained": pytest.approx(1, abs=1e-12), "neurons_0_tuned": 6 / 8, "neurons_0_frequencies": 3,
            "neurons_0_at_3": 3, "neurons_0_at_9": 2, "neurons_0_at_20": 1,
            "neurons_0_symmetry": pytest.approx((1.5 * a[:6]).cos().mean()),
            "neurons_0_alignment": pytest.approx(4 / 6),
        }  # fmt: skip
        (found,) = neurons_of(config, weights)
        assert found.explained.sort().values[:2].tolist() == [0, pytest.approx(0.5, abs=0.03)]


def test_softmax_collapse_is_seen() -> None:
    equations = all_equations(TaskConfig(operation="x+y", modulus=5))
    logits = torch.zeros(25, 16)
    logits[:10, 3] = 200.0
    found = logit_metrics(equations, lambda _: logits)
    assert found["softmax_collapse"] == pytest.approx(0.4)
