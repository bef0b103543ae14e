"""SIGKILL at every touch of a file: nothing finished is lost, nothing is counted twice, and it goes on."""

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from grok.store import StoreWriter, open_store
from grok.store.designs import KEY, keys_of
from grok.store.schema import TABLES
from grok.streams import Stream
from tests.store.contract import assert_contract, contents, example_rows, read_raw
from tests.store.kill_child import ACTIONS, STUDY, plan, prepare


def run_child(path: Path, action: str, last: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.store.kill_child", str(path), action, str(last)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def count_touches(tmp_path: Path, action: str) -> int:
    prepare(str(tmp_path / "count"), action)
    done = run_child(tmp_path / "count", action, 0)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def undisturbed(path: Path, seeds: range, planned: range = range(0), retired: bool = False) -> Path:
    with StoreWriter(path) as writer:
        plan(writer, planned)
        writer.commit(example_rows(seeds))
        if retired:
            writer.retire_design(STUDY, "a try")
    return path


def reference_of(path: Path, action: str) -> Path:
    seeds, planned = SEEDS[action]
    return undisturbed(path, range(seeds), range(planned), action in ("retire", "merge"))


Held = tuple[set[str], set[tuple[object, ...]]]


def held(path: Path, action: str) -> Held:
    """Return the completed runs and the keys of the designs."""
    if action == "make":
        return set(), set()
    return set(open_store(path).run_ids("completed")), set(keys_of(open_store(path).designs_table()))


def assert_nothing_lost(path: Path, before: Held, where: str) -> None:
    """Before anything is put right, nothing that was completed is out of a reader's sight, and nothing is doubled.

    A failed row may still stand beside the row that replaces it: the new one is written first.
    """
    completed, planned = before
    assert open_store(path).run_ids("completed") >= completed, where
    raw = [row["run_id"] for row in read_raw(path, "runs") if row["status"] != "failed"]
    assert len(set(raw)) == len(raw), where
    points = open_store(path).curves(list(completed))
    assert set(points["run_id"]) == completed, where
    rows = [tuple(row[name] for name in KEY) for row in read_raw(path, "designs")]
    assert len(set(rows)) == len(rows), where
    assert set(rows) >= planned, where


def go_on(path: Path, action: str, reference: Path, where: str) -> None:
    """Do ``action`` again, and compare with the undisturbed store."""
    if action in ("commit", "replace"):
        with StoreWriter(path) as writer:
            plan(writer, range(8 if action == "commit" else 4))
            writer.commit(example_rows(range(8 if action == "commit" else 4)))
    else:
        ACTIONS[action](str(path))
    assert_contract(path)
    for kind in TABLES:
        assert contents(path, kind).equals(contents(reference, kind)), where


def kill_and_go_on(path: Path, action: str, last: int, reference: Path) -> None:
    """Kill ``action`` at touch ``last``, look, do it again, and compare with the undisturbed store."""
    prepare(str(path), action)
    before = held(path, action)
    killed = run_child(path, action, last)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    where = f"{action} killed at touch {last}"
    if action != "make":
        assert_nothing_lost(path, before, where)
    elif (path / "store.json").exists():
        store = open_store(path)
        assert not store.run_ids() and not store.designs_table().num_rows and store.curves().empty, where
    if action == "replace":  # the next opening removes the failed rows that were replaced, and keeps a copy of them
        StoreWriter(path).close()
        raw = [row["run_id"] for row in read_raw(path, "runs")]
        assert len(set(raw)) == len(raw), where
    go_on(path, action, reference, where)
    aside = [row for file in (path / "quarantine").glob("runs-*") for row in pq.read_table(file).to_pylist()]
    assert all(action == "replace" for row in aside), where
    assert {row["run_id"] for row in aside} <= set(open_store(path).run_ids("completed")), where
    assert not list((path / "quarantine").glob("designs-*")), where


SEEDS = {
    "make": (0, 0), "commit": (8, 8), "replace": (4, 4), "compact": (4, 4), "plan": (4, 5), "retire": (4, 4),
    "merge": (6, 6),
}  # fmt: skip
"""By action the number of runs, and of planned ones, in the end."""


@pytest.mark.parametrize("action", ["commit"])  # at every touch of every action: the slow test
def test_a_few_kills(tmp_path: Path, action: str) -> None:
    touches = count_touches(tmp_path, action)
    reference = reference_of(tmp_path / "reference", action)
    for i in Stream("kills", 0).at(action).integers(1, touches):
        kill_and_go_on(tmp_path / f"S{i}", action, int(i) + 1, reference)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_a_kill_at_every_touch(tmp_path: Path, action: str) -> None:
    touches = count_touches(tmp_path, action)
    reference = reference_of(tmp_path / "reference", action)
    for last in range(1, touches + 1):
        kill_and_go_on(tmp_path / f"S{last}", action, last, reference)
