"""Which runs of a store form a crossed design: each seed of one stream is combined with several of the others.

Source: Shin, Hooi and Faloutsos 2016 (densest block of a sparse tensor by peeling).
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def crossed(codes: Ints) -> Flags:
    """Return the largest set of rows of ``codes`` (n, factors), as flags (n,), that is crossed.

    In a crossed set each level of a factor is combined with two or more levels of every other factor. Rows
    that break this are removed until none does.
    """
    kept = np.ones(len(codes), dtype=bool)
    while kept.any():
        bad = np.zeros(len(codes), dtype=bool)
        for a, b in permutations(range(codes.shape[1]), 2):
            pairs = np.unique(codes[kept][:, [a, b]], axis=0)
            levels, met = np.unique(pairs[:, 0], return_counts=True)
            bad |= kept & np.isin(codes[:, a], levels[met < 2])
        if not bad.any():
            break
        kept &= ~bad
    return kept


def densest(codes: Ints) -> Flags:
    """Return the rows of ``codes`` (n, factors), as flags (n,), of the crossed design with most cells per level.

    A store can have a grid and other runs that share some of its levels; a mean over both would mix
    two designs. So the levels with the smallest share of their possible cells are removed one by one.
    Of the designs on the way, the one with most different cells per level is returned (of equal ones
    the largest). All flags are False if no rows are crossed.
    """
    cells, where = np.unique(codes, axis=0, return_inverse=True)
    where = where.reshape(-1)
    kept = crossed(cells)
    best, most = np.zeros(len(cells), dtype=bool), 0.0
    while kept.any():
        levels = [np.unique(column, return_counts=True) for column in cells[kept].T]
        sizes = np.array([len(values) for values, _ in levels])
        density = float(kept.sum() / sizes.sum())
        if density > most + 1e-9:
            best, most = kept.copy(), density
        filled = [counts.min() / (np.prod(sizes) / size) for (_, counts), size in zip(levels, sizes, strict=True)]
        thin = int(np.argmin(filled))
        if filled[thin] == 1:
            break  # a full grid: removing a level would lower its cells per level
        values, counts = levels[thin]
        kept &= ~np.isin(cells[:, thin], values[counts == counts.min()])
        kept[kept] = crossed(cells[kept])
    return np.asarray(best[where])


def filled(codes: Ints) -> tuple[int, int]:
    """Return the number of different cells in ``codes`` (n, factors), and that of the full grid of their levels."""
    return len(np.unique(codes, axis=0)), int(np.prod([len(np.unique(column)) for column in codes.T]))
