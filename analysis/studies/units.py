"""A repeated seed with its repeats, and all seeds with one kind of repeat."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.studies.hits import Hit


@dataclass(frozen=True)
class Unit:
    """One repeated seed."""

    name: str
    seeds: dict[str, int]
    """Seeds of the kept streams."""
    own: str | None
    """Its own run; None if it was named."""
    repeats: list[str]
    """Its judged repeats. No two share a redrawn seed or have equal bits."""
    others: list[str]
    """One run of each other seed for comparison."""
    others_words: str
    line: str = ""
    """Its line of descent: the first ancestor of its own run, by the records of ``grok branch --parents``. Cells of a
    crossed design with one seed in common are one line."""


@dataclass(frozen=True)
class Kind:
    """All candidates with one kind of repeat under one condition, and the controls."""

    name: str
    fixed: tuple[str, ...]
    change: str
    """What a repeat changes, in words."""
    condition: str
    """Values of the settings that differ between the store's conditions."""
    hit: Hit
    candidates: list[Unit]
    controls: list[Unit]
    rows: pd.DataFrame = field(repr=False)
    """All runs of the condition."""
    neither: list[Unit] = field(default_factory=list)
    """Seeds that a command chose, but no hits: no candidates, and not ordinary either."""


def distinct(codes: NDArray[np.int64], taken: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return flags (n,) of rows of ``codes`` (n, streams) that share no seed with each other or with ``taken``."""
    used = [set(column.tolist()) for column in taken.T]
    kept = np.zeros(len(codes), dtype=bool)
    for i, row in enumerate(codes.tolist()):
        if not any(seed in column for seed, column in zip(row, used, strict=True)):
            kept[i] = True
            for seed, column in zip(row, used, strict=True):
                column.add(seed)
    return kept
