"""The thread of a worker: it stores finished runs and gives signs of life while the engine is silent."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from grok.execute import live
from grok.execute.live import Ledger
from grok.store import StoreWriter, open_store
from grok.store.contract import example_row


def test_a_row_that_is_dropped_is_not_said_to_be_stored(tmp_path: Path) -> None:
    """Another sweep stored its run meanwhile: its checkpoints belong to the row that stays."""
    stored: list[str] = []
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit([example_row(0)])
        with Ledger(writer, 30.0, lambda row: stored.append(row.result.run_id)) as late:
            late.add(example_row(0))
            late.add(example_row(1))
    assert stored == [example_row(1).result.run_id]


def test_a_silent_engine_stops_neither_the_store_nor_the_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TICK", 0.01)
    monkeypatch.setattr(live, "HEARTBEAT", 0.01)
    row = example_row(0)
    stored: list[str] = []
    with StoreWriter(tmp_path / "S") as writer:
        writer.claim([row.result.run_id])
        (beat,) = (tmp_path / "S" / "leases").glob("*.beat")
        first = beat.read_text()
        with Ledger(writer, 0.05, lambda row: stored.append(row.result.run_id)) as silent:
            silent.add(row)
            latest = time.monotonic() + 60  # a busy machine may be slow, and without the thread neither ever comes
            while not (stored and beat.read_text() != first):
                assert time.monotonic() < latest, "no row, or no sign of life"
                time.sleep(0.01)
            assert open_store(tmp_path / "S").run_ids() == {row.result.run_id} == set(stored)
