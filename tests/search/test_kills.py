"""A study makes the same trials however often it is killed, and however many work on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeps.search.record import StudyRecord
from tests.search.world import Killed, World, trials

STUDIES: dict[str, dict[str, Any]] = {
    "tpe": {"sampler": {"name": "tpe", "startup": 4}},
    "random": {"sampler": {"name": "random"}},
    "grid": {"sampler": {"name": "grid", "points": 3}},
    "nsga2": {"sampler": {"name": "nsga2", "population": 4}, "objectives": ["median_time", "compute"]},
    "wilcoxon": {"sampler": {"startup": 3}, "seeds": 6, "pruner": {"name": "wilcoxon", "first_seeds": 2, "p": 0.3}},
}


class Fuse:
    """Raises before or after the n-th change of any study's record."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        self.changes = 0
        for name in ("add", "note", "report", "end"):
            monkeypatch.setattr(StudyRecord, name, self._guarded(getattr(StudyRecord, name)))

    def _guarded(self, change: Any) -> Any:
        def guarded(*given: Any, **named: Any) -> Any:
            if self.left <= 0:
                raise Killed
            self.left -= 1
            self.changes += 1
            return change(*given, **named)

        return guarded


FAST = ("tpe", "grid")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in FAST)) for kind in STUDIES]
)
def test_killed_anywhere_it_makes_the_same_trials(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse = Fuse(monkeypatch)
    study = {"trials": 9, **STUDIES[kind]}
    whole = World(tmp_path / "whole").run(study)
    assert len(whole) == 9
    if kind == "wilcoxon":
        assert any(trial[1] == "PRUNED" for trial in whole)
    changes, world = fuse.changes, World(tmp_path / "killed")
    deaths = 0
    while True:  # killed again and again, each time a little later
        fuse.left = 8 + deaths % 3
        try:
            again = world.run(study)
        except Killed:
            deaths += 1
            continue
        break
    assert deaths >= changes // 12
    assert again == whole
    assert len(world.trained) == len(set(world.trained)), "a stored run was trained again"


def test_a_longer_study_begins_with_the_shorter_one(tmp_path: Path) -> None:
    short = World(tmp_path / "short")
    first = short.run({"trials": 6})
    assert short.run({"trials": 12})[:6] == first
    assert short.run({"trials": 12}) == World(tmp_path / "other").run({"trials": 12})


def test_two_processes_on_one_study(tmp_path: Path) -> None:
    """A second one that comes at any moment finds the same next trials, and the record takes each once."""
    alone = World(tmp_path / "alone").run({"trials": 6})
    world = World(tmp_path / "both")
    first, second = world.search({"trials": 6}), world.search({"trials": 6})
    here, there = first.record(), second.record()
    plain_train = world.train

    def train_while_the_other_finishes(settings: Any, design: Any) -> bool:
        second.train = plain_train
        assert second.run(there)
        return plain_train(settings, design)

    first.train = train_while_the_other_finishes
    assert first.run(here)
    assert trials(here) == trials(there) == alone


def test_the_journal_survives_a_torn_last_line(tmp_path: Path) -> None:
    world = World(tmp_path / "torn")
    first = world.run({"trials": 3})
    journal = tmp_path / "torn" / "search" / "test.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code":8,"worker_id":"x","tri')
    assert world.run({"trials": 6})[:3] == first
    assert world.run({"trials": 6}) == World(tmp_path / "other").run({"trials": 6})
