"""Every operation against brute-force integer arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.arithmetic.task import S5, Vocabulary, all_equations, answers, split
from grok.config.arithmetic import (
    MODULAR_OPERATIONS,
    NEVER_BY_ZERO,
    OPERATIONS,
    PERMUTATION_OPERATIONS,
    S5_ORDER,
    TaskConfig,
)

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


def test_the_default_has_234_tokens_and_24753_training_examples() -> None:
    task = TaskConfig()
    assert Vocabulary.of(task).size == 234
    assert Vocabulary.of(task).length == 5
    assert task.train_examples() == 24753
    assert task.train_examples() % 512 == 177


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
