"""The crossed design in a store is found whole, and nothing beside it is taken for a part of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis.statistics.estimate import generator
from analysis.statistics.variance_shares import densest, filled


def grid(*levels: range) -> np.ndarray:
    return np.array(list(itertools.product(*levels)), dtype=np.int64)


def test_a_grid_is_found_among_random_seeds_and_scans() -> None:
    cells = np.repeat(grid(range(6), range(6), range(6)), 2, axis=0)
    random = np.arange(100, 160)[:, None] * np.ones(3, dtype=np.int64)
    scan = np.array([[0, 0, 1000 + i] for i in range(300)])
    codes = np.concatenate([random, cells, scan])
    found = densest(codes)
    assert found.tolist() == [False] * 60 + [True] * len(cells) + [False] * 300
    assert filled(codes[found]) == (216, 216)


@pytest.mark.parametrize("keep", [0.15, 0.5])
def test_a_sampled_grid_stays_whole(keep: float) -> None:
    rng = generator(f"sampled cross {keep}")
    cells = grid(range(12), range(12), range(12))
    cells = cells[rng.random(len(cells)) < keep]
    assert densest(cells).all()
