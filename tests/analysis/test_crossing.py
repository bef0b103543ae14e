"""The crossed design in a store is found whole, and nothing beside it is taken for a part of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from analysis.statistics.estimate import generator
from analysis.statistics.variance_shares import crossed, densest, filled


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


def test_other_crosses_beside_the_grid_stay_out() -> None:
    cells = grid(range(6), range(6), range(6))
    # split and init go together here: only the order is crossed with them
    together = np.array([[50 + s, 50 + s, 500 + o] for s in range(16) for o in range(8)])
    # a proper but thin cross that shares two splits and two inits of the grid
    thin = np.array([[s, i, 900 + o] for s in range(2) for i in range(2) for o in range(40)])
    for beside in (together, thin, np.concatenate([together, thin])):
        found = densest(np.concatenate([cells, beside]))
        assert found[: len(cells)].all()
        assert not found[len(cells) :].any()
    assert not crossed(together).any()
    assert densest(thin).all()


@pytest.mark.parametrize("keep", [0.15, 0.5])
def test_a_sampled_grid_stays_whole(keep: float) -> None:
    rng = generator(f"sampled cross {keep}")
    cells = grid(range(12), range(12), range(12))
    cells = cells[rng.random(len(cells)) < keep]
    assert densest(cells).all()


def test_confounded_seeds_are_no_cross() -> None:
    assert not densest(np.arange(30)[:, None] * np.ones(3, dtype=np.int64)).any()
    assert not densest(np.array([[s, s, o] for s in range(5) for o in range(5)])).any()
    assert not densest(np.zeros((0, 3), dtype=np.int64)).any()
