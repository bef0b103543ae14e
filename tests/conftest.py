"""What every test gets: one computing thread, and global random generators that refuse to be used."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def no_global_randomness(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make every global generator raise, and check afterwards that torch's was not moved."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a global random generator was used")

    for name in ("seed", "rand", "randn", "randint", "random", "permutation", "shuffle", "choice", "normal", "uniform"):
        monkeypatch.setattr(np.random, name, refuse)
    for name in ("seed", "random", "randint", "shuffle", "choice", "sample", "gauss", "uniform", "randrange"):
        monkeypatch.setattr(random, name, refuse)
    monkeypatch.setattr(torch, "manual_seed", refuse)
    monkeypatch.setattr(torch, "seed", refuse)
    before = torch.random.get_rng_state().clone()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "torch's global generator was moved"
