"""A run that goes on from a checkpoint says under which code it was trained, all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import grok.store.provenance
from grok.execute import worker
from grok.execute.groups import Group, prepare_runs
from grok.execute.worker import Lineage, WorkerSettings, run_group
from grok.records import Checkpoint, Job
from grok.store import StoreWriter, open_store
from grok.store.contract import MACHINE
from tests.execute.conftest import tiny


def train(folder: Path, patch: pytest.MonkeyPatch, commit: str | None, dirty: bool | None, *, dies: bool) -> None:
    """Train one run under ``commit``; one that dies leaves the checkpoint of half the way."""
    real = worker.keep_checkpoint

    def last_deed(*words: Any) -> None:
        real(*words)
        raise RuntimeError("the power goes")

    with patch.context() as inside:
        inside.setattr(grok.store.provenance, "git_state", lambda: (commit, dirty))
        if dies:
            inside.setattr(worker, "keep_checkpoint", last_deed)
        settings = WorkerSettings(
            store_path=str(folder / "S"), live_path=str(folder / "live"), flush_seconds=30.0, device="cpu", lanes=None,
            retry_failed=False, provenance=replace(MACHINE, git_commit=commit, git_dirty=dirty), parent=None,
        )  # fmt: skip
        StoreWriter(folder / "S").close()
        report = run_group(Group(tuple(prepare_runs([tiny(checkpoint={"every": 3})]))), settings)
    assert report.fatal is None
    assert (report.error is not None) is dies


@pytest.mark.parametrize(
    ("began", "ended", "said"),
    [
        (("a" * 40, False), ("b" * 40, False), ("a" * 40 + " | " + "b" * 40, False)),
        (("a" * 40, True), ("b" * 40, False), ("a" * 40 + " | " + "b" * 40, True)),
        (("a" * 40, False), ("a" * 40, False), ("a" * 40, False)),
        ((None, None), ("b" * 40, False), ("unknown | " + "b" * 40, None)),
        ((None, None), (None, None), (None, None)),
    ],
)
def test_a_row_names_every_code_that_trained_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: Any, ended: Any, said: Any
) -> None:
    train(tmp_path, monkeypatch, *began, dies=True)
    train(tmp_path, monkeypatch, *ended, dies=False)
    (row,) = open_store(tmp_path / "S").table("runs", None, ["git_commit", "git_dirty"]).to_pylist()
    assert (row["git_commit"], row["git_dirty"]) == said


def lineage(checkpoint: Checkpoint | None, commit: str = "c") -> Lineage:
    job = Job(run_id="run", config=tiny(), resume=checkpoint)
    return Lineage(replace(MACHINE, git_commit=commit), [job])


def test_three_sittings_are_three_names() -> None:
    checkpoint: Checkpoint | None = None
    for commit in ("a", "b", "a", "c"):
        sitting = lineage(checkpoint, commit)
        checkpoint = sitting.marked(Checkpoint(run_id="run", step=1, tensors={}, state={}))
    assert sitting.of("run").git_commit == "a | b | c"
    assert sitting.of("another").git_commit == "c"


def test_a_checkpoint_without_word_of_its_code_is_gone_on_from() -> None:
    sitting = lineage(Checkpoint(run_id="run", step=1, tensors={}, state={}))
    assert sitting.of("run") == sitting.present
