"""``grok list`` and the filters that it shares with ``grok show``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import listing
from grok.commands.words import matching
from grok.store import Purpose, Purposes, StoreWriter
from tests.analysis.simulate import census, row, write

FRAME = pd.DataFrame(
    {
        "seed": [8, 80, 3],
        "class": ["super", "normal", "super"],
        "val accuracy": [0.99, 0.1, 1.0],
        "generalised": pd.array([500, None, 2500], "Int64"),
        "run": ["3f2a", "90bc", "3f77"],
        "design": ["sweep member, branch parent", "sweep member", "unknown"],
    }
)


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["seed=8"], [0]),
        (["class=SUPER"], [0, 2]),
        (["gen<2000"], [0]),
        (["generalised>=500", "val_acc>0.995"], [2]),
        (["run=3f"], [0, 2]),
        (["design=branch"], [0]),
        (["normal"], [1]),
        (["norm", "seed=8"], []),
        ([], [0, 1, 2]),
    ],
)
def test_rows_satisfy_all_filters(words: list[str], rows: list[int]) -> None:
    assert list(np.flatnonzero(matching(FRAME, words))) == rows


@pytest.fixture
def store(tmp_path: Path) -> str:
    rows = [row(truth) for truth in census(6, np.random.default_rng(0))]
    ids = [r.result.run_id for r in rows]
    with StoreWriter(tmp_path / "S") as writer:
        writer.record_design(Purposes("sweep", [Purpose(unit={"seed": n}) for n in range(4)]).named(ids[:4]))
        writer.commit(rows)
    return str(tmp_path / "S")


def test_every_run_is_listed_with_its_purpose(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert listing.main([store, "--json"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {r["seed"]: r["design"] for r in rows} == {n: "sweep member" if n < 4 else "unknown" for n in range(6)}
    assert listing.main([store, "design=unknown", "--csv"]) == 0
    assert [line.split(",")[1] for line in capfd.readouterr().out.splitlines()] == ["seed", "4", "5"]
    assert listing.main([store, "role=member"]) == 0
    assert "4 of 6 runs" in capfd.readouterr().out


def test_on_another_task_the_classes_are_early_and_late(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = str(write(census(20, np.random.default_rng(0), steps=20_000, task__modulus=97), tmp_path / "S"))
    assert listing.main([store, "--json"]) == 0
    classes = {json.loads(line)["class"] for line in capfd.readouterr().out.splitlines()}
    assert "late" in classes and classes <= {"early", "late", "not within 20,000 steps"}
