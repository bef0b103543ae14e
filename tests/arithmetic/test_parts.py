"""The parts of a run: equations, order of batches, initial weights, and the times of events."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grok.arithmetic.outcome import event_times, peak
from grok.arithmetic.task import S5, BatchOrder, all_equations, answers, split
from grok.arithmetic.weights import initial_parameters, parameter_shapes
from grok.config import ArithmeticConfig, load_config
from grok.config.arithmetic import (
    MODULAR_OPERATIONS,
    NEVER_BY_ZERO,
    OPERATIONS,
    PERMUTATION_OPERATIONS,
    S5_ORDER,
    TaskConfig,
)
from grok.numerics import move_by_ulps
from grok.records import CurvePoint
from grok.streams import STREAMS, Stream, layer_seeds
from tests.arithmetic.cases import tiny

PRIMES = (2, 3, 5, 7, 11, 13, 31)


def divide(x: int, y: int, p: int) -> int:
    """Return the one z with z * y = x modulo p, by trying them all."""
    (z,) = [z for z in range(p) if (z * y - x) % p == 0]
    return z


BRUTE_FORCE: dict[str, Callable[[int, int, int], int]] = {
    "x+y": lambda x, y, p: (x + y) % p,
    "x-y": lambda x, y, p: (x - y) % p,
    "x*y": lambda x, y, p: (x * y) % p,
    "x/y": divide,
    "x^2+y^2": lambda x, y, p: (x * x + y * y) % p,
    "x^2+xy+y^2": lambda x, y, p: (x * x + x * y + y * y) % p,
    "x^2+xy+y^2+x": lambda x, y, p: (x * x + x * y + y * y + x) % p,
    "x^3+xy": lambda x, y, p: (x * x * x + x * y) % p,
    "x^3+xy^2+y": lambda x, y, p: (x * x * x + x * y * y + y) % p,
    "x/y if y odd else x-y": lambda x, y, p: divide(x, y, p) if y % 2 else (x - y) % p,
}


@pytest.mark.parametrize("operation", MODULAR_OPERATIONS)
@pytest.mark.parametrize("p", PRIMES)
def test_modular_operation(operation: str, p: int) -> None:
    task = TaskConfig(operation=operation, modulus=p)
    table = all_equations(task)
    pairs = [(x, y) for x in range(p) for y in range(p) if y or operation not in NEVER_BY_ZERO]
    assert len(table) == task.examples()
    assert list(zip(table.a.tolist(), table.b.tolist(), strict=True)) == pairs
    assert table.answer.tolist() == [BRUTE_FORCE[operation](x, y, p) for x, y in pairs]


@pytest.mark.parametrize("operation", MODULAR_OPERATIONS)
def test_no_integer_overflows_at_the_largest_modulus(operation: str) -> None:
    p = 4093  # the largest prime that task.modulus takes
    pairs = [(p - 1 - 7 * i, p - 1 - 13 * i) for i in range(12)]
    found = answers(operation, *np.array(pairs).T, p)
    assert found.tolist() == [BRUTE_FORCE[operation](x, y, p) for x, y in pairs]


@pytest.mark.parametrize("operation", PERMUTATION_OPERATIONS)
def test_product_in_s5(operation: str) -> None:
    def times(f: tuple[int, ...], g: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(f[g[i]] for i in range(5))

    def inverse(f: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(f.index(i) for i in range(5))

    table = all_equations(TaskConfig(operation=operation, modulus=S5_ORDER))
    assert len(table) == S5_ORDER**2
    for (f, g), answer in zip(itertools.product(S5, S5), table.answer, strict=True):
        product = {"ab": times(f, g), "aba^-1": times(times(f, g), inverse(f)), "aba": times(times(f, g), f)}
        assert S5[answer] == product[operation]


@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from(PRIMES[2:]),
    st.floats(0.1, 0.9),
    st.integers(0, 2**63 - 1),
    st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=60, deadline=None)
def test_a_split_is_one(operation: str, p: int, fraction: float, seed: int, noise: float) -> None:
    p = S5_ORDER if operation in PERMUTATION_OPERATIONS else p
    task = TaskConfig(operation=operation, modulus=p, train_fraction=fraction, label_noise=noise)
    train, val = split(task, seed)
    table = all_equations(task)
    both = sorted(zip([*train.a, *val.a], [*train.b, *val.b], strict=True))
    assert both == list(zip(table.a, table.b, strict=True))
    truth = {(a, b): c for a, b, c in zip(table.a, table.b, table.answer, strict=True)}
    assert all(truth[a, b] == c for a, b, c in zip(val.a, val.b, val.answer, strict=True))
    wrong = sum(truth[a, b] != c for a, b, c in zip(train.a, train.b, train.answer, strict=True))
    assert wrong <= round(noise * len(train))
    assert noise == 0 or len(train) < 30 or wrong > 0


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_an_epoch_sees_every_example_once(n: int, batch_size: int, seed: int, epoch: int) -> None:
    batch_size = min(batch_size, n)
    order = BatchOrder(n, batch_size, seed=seed)
    per_epoch = -(-n // batch_size)
    batches = [order.batch(epoch * per_epoch + i + 1).tolist() for i in range(per_epoch)]
    assert sorted(itertools.chain(*batches)) == list(range(n))
    assert [len(b) for b in batches[:-1]] == [batch_size] * (per_epoch - 1)
    for step in range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1):
        padded, size = order.padded_batch(step)
        assert len(padded) == batch_size and padded[:size].tolist() == batches[(step - 1) % per_epoch]


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 9))
def test_the_order_is_a_function_of_the_step_alone(steps: list[int], switch: int) -> None:
    order = BatchOrder(40, 16, seed=3, switch=(switch, 8))
    for step in steps:  # whatever was asked before
        plain = BatchOrder(40, 16, seed=3 if step <= switch else 8)
        assert order.batch(step).tolist() == plain.batch(step).tolist()


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 3, 2], 2),
        ([1, 3, 2.9], None),  # not fallen far enough
        ([3, 2, 1], 1),
        ([1, 2, 3], None),  # still climbing
        ([], None),
        ([NAN], None),
        ([3, INF], None),
        ([1, 3, NAN, 2], 2),
        ([2, 2, 2], None),
    ],
)
def test_peak(values: list[float], expected: int | None) -> None:
    assert peak(range(1, len(values) + 1), values, 0.1)[0] == expected


def test_event_times_of_a_slow_run() -> None:
    curve = [
        CurvePoint(step=100 * i, train_acc=ta, train_loss=tl, val_acc=va, val_loss=vl, weight_norm=wn)
        for i, (ta, tl, va, vl, wn) in enumerate(
            [(0.1, 4.0, 0.0, 5.0, 40.0), (0.99, 0.3, 0.0, 9.0, 60.0), (1.0, 0.2, 0.1, 12.0, 66.0),
             (1.0, 0.1, 0.97, 2.0, 65.8), (1.0, 0.1, 1.0, 0.1, 65.0)], 1,
        )
    ]  # fmt: skip
    assert event_times(curve) == {
        "memorised_step": 200,
        "memorised_loss_step": 300,
        "grokked_step": 400,
        "grokked_for_good_step": 400,
        "val_acc_dips": 0,
        "val_loss_peak_step": 300,
        "weight_norm_peak_step": 300,
        "weight_norm_fall_step": 500,
    }


@pytest.mark.parametrize(
    ("accuracy", "reached", "good", "fell"),
    [
        ([0.1, 0.2], None, None, 0),
        ([0.1, 0.96, 0.97], 2, 2, 0),
        ([0.96, 0.97, 0.5, 0.96], 1, 4, 1),  # reached once, and for good only after the fall
        ([0.96, 0.97, 0.5, 0.4, 0.99, 0.3], 1, None, 2),  # ends under the threshold
        ([0.96, 0.5, 0.97, 0.97], 3, 3, 0),  # one good evaluation is not yet generalised
        ([0.99, 0.99, NAN], 1, None, 1),
        ([], None, None, 0),
    ],
)
def test_reached_once_is_told_from_for_good(
    accuracy: list[float], reached: int | None, good: int | None, fell: int
) -> None:
    found = event_times([CurvePoint(step=i, val_acc=a) for i, a in enumerate(accuracy, 1)])
    assert (found["grokked_step"], found["grokked_for_good_step"], found["val_acc_dips"]) == (reached, good, fell)


def changed(one: ArithmeticConfig, other: ArithmeticConfig) -> set[str]:
    a, b = initial_parameters(one), initial_parameters(other)
    return {n for n in a if not torch.equal(a[n], b[n])}


def drawn(config: ArithmeticConfig) -> set[str]:
    """Return the tensors that draw randomness: the rest starts constant."""
    constant = [n for n in parameter_shapes(config) if "norm" in n or n.endswith(("qkv.bias", "out.bias"))]
    return set(parameter_shapes(config)) - set(constant)


def test_reseeding_a_block_changes_only_its_tensors() -> None:
    base = tiny()
    block = {n for n in drawn(base) if n.startswith("blocks.1.")}
    assert changed(base, tiny(seeds={"layers": {"blocks.1": 77}})) == block
    one = tiny(seeds={"layers": {"blocks.1.mlp.up.weight": 77}})
    assert changed(base, one) == {"blocks.1.mlp.up.weight"}


def test_reseeding_init_changes_every_drawn_tensor_and_no_other() -> None:
    assert changed(tiny(), tiny(seeds={"init": 5})) == drawn(tiny())
    for stream in set(STREAMS) - {"init"}:
        assert changed(tiny(), tiny(seeds={stream: 5})) == set()


def test_a_further_layer_moves_no_tensor() -> None:
    two, three = initial_parameters(tiny()), initial_parameters(tiny(model={"layers": 3}))
    assert all(torch.equal(two[n], three[n]) for n in two)


def test_the_longest_match_wins() -> None:
    names = ["blocks.1.mlp.up.weight", "blocks.1.mlp.down.weight", "blocks.10.mlp.up.weight", "head.weight"]
    seeds = layer_seeds(names, {"blocks.1.mlp": 2, "blocks": 1, "blocks.1.mlp.up.weight": 3}, 0)
    assert seeds == dict(zip(names, (3, 2, 1, 0), strict=True))


def test_laws_are_torch_defaults() -> None:
    config = load_config({"mode": "arithmetic"})
    assert isinstance(config, ArithmeticConfig)
    ours = initial_parameters(config)
    generator = torch.random.get_rng_state()
    theirs = {
        "blocks.0.attention.qkv.weight": nn.MultiheadAttention(128, 4).in_proj_weight,
        "blocks.0.attention.out.weight": nn.MultiheadAttention(128, 4).out_proj.weight,
        "blocks.0.mlp.up.weight": nn.Linear(128, 512).weight,
        "blocks.0.mlp.down.weight": nn.Linear(512, 128).weight,
        "blocks.0.mlp.down.bias": nn.Linear(512, 128).bias,
        "head.weight": nn.Linear(128, 234).weight,
        "token_embedding.weight": nn.Embedding(234, 128).weight,
    }
    torch.random.set_rng_state(generator)
    for name, parameter in theirs.items():
        tensor = parameter.detach()
        n = tensor.numel()
        assert math.isclose(ours[name].std().item(), tensor.std().item(), rel_tol=6 / math.sqrt(n))
        if "embedding" not in name:
            assert math.isclose(ours[name].abs().max(), tensor.abs().max(), rel_tol=12 / n + 1e-3 + 6 / n)


def test_perturbation_is_ulp_sized() -> None:
    base = initial_parameters(tiny())
    moved = initial_parameters(tiny(perturb={"ulps": 1}))
    for name, tensor in base.items():
        gap = (moved[name].double() - tensor.double()).abs()
        one_ulp = (torch.nextafter(tensor, tensor * 2) - tensor).abs().double()
        assert (gap <= one_ulp * 1.0001).all()
        assert bool((gap > 0).any()) == (name in drawn(tiny()))
        if name in drawn(tiny()):  # each tensor by draws of its own
            stream = Stream("perturb", tiny().stream_seeds().perturb).at(name)
            assert torch.equal(moved[name], move_by_ulps(tensor, 1, stream))


def test_moving_by_ulps_keeps_signs_and_zero() -> None:
    values = torch.tensor([0.0, 1e-45, -1e-45, 1.0, -1.0, -0.0])
    moved = move_by_ulps(values.repeat(50), 3, Stream("perturb", 1)).view(50, 6)
    assert (moved.signbit() == values.signbit()).all()
    assert moved.isfinite().all()  # the bits below a zero's are those of NaN, whose sign is 0, too
    assert (moved[:, [0, 5]] == 0).all()
    assert (moved[:, 3] != 1.0).any()
