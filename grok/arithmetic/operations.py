"""The operations of the tables, as exact integer arithmetic over arrays.

Source: Power et al. 2022, "Grokking: generalization beyond overfitting on small
algorithmic datasets", appendix A.1.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from grok.config.arithmetic import DIVISIONS, PERMUTATION_OPERATIONS, is_prime
from grok.errors import ConfigError

Integers = NDArray[np.int64]
S5: Final = tuple(itertools.permutations(range(5)))
"""The 120 permutations of five elements; a permutation's number is its place in this lexicographic list."""


def inverse(x: Integers, p: int) -> Integers:
    """Return the inverse of each ``x`` modulo the prime ``p``; 0 for 0."""
    table = np.zeros(p, dtype=np.int64)
    table[1:] = [pow(i, -1, p) for i in range(1, p)]
    return table[x]


_MODULAR: Final[dict[str, Callable[[Integers, Integers, int], Integers]]] = {
    "x+y": lambda x, y, p: x + y,
    "x-y": lambda x, y, p: x - y,
    "x*y": lambda x, y, p: x * y,
    "x/y": lambda x, y, p: x * inverse(y, p),
    "x^2+y^2": lambda x, y, p: x**2 + y**2,
    "x^2+xy+y^2": lambda x, y, p: x**2 + x * y + y**2,
    "x^2+xy+y^2+x": lambda x, y, p: x**2 + x * y + y**2 + x,
    "x^3+xy": lambda x, y, p: x**3 + x * y,
    "x^3+xy^2+y": lambda x, y, p: x**3 + x * y**2 + y,
    "x/y if y odd else x-y": lambda x, y, p: np.where(y % 2 == 1, x * inverse(y, p), x - y),
}
MODULAR_SLOTS: Final = tuple(_MODULAR)[:9]
"""The nine operations that have a token of their own (see ``vocabulary``)."""


def answers(operation: str, a: Integers, b: Integers, n: int) -> Integers:
    """Return the answer of each equation ``a op b``, in ``[0, n)``; ``a``, ``b`` and the result have one shape.

    Raises:
        ConfigError: an unknown operation, or a division by a modulus that is not prime.
    """
    if operation in PERMUTATION_OPERATIONS:
        return _s5_table(operation)[a, b]
    if operation not in _MODULAR:
        raise ConfigError(f"operation {operation!r} is not known: expected one of {', '.join(_MODULAR)}")
    if operation in DIVISIONS and not is_prime(n):
        raise ConfigError(f"{operation!r} modulo {n}: division needs a prime modulus")
    return _MODULAR[operation](a, b, n) % n


def _s5_table(operation: str) -> Integers:
    """Return the 120 × 120 table of a product; permutations act from the right: (ab)(i) = a(b(i))."""
    elements = np.array(S5)
    number = {element: i for i, element in enumerate(S5)}
    inverses = np.argsort(elements, axis=1)

    def times(left: Integers, right: Integers) -> Integers:
        return np.take_along_axis(left, right, axis=-1)

    a, b = elements[:, None, :].repeat(120, 1), elements[None, :, :].repeat(120, 0)
    product = times(a, b)
    if operation == "aba^-1":
        product = times(product, inverses[:, None, :].repeat(120, 1))
    elif operation == "aba":
        product = times(product, a)
    return np.array([[number[tuple(e)] for e in row] for row in product.tolist()], dtype=np.int64)
