"""A group of runs in a worker: what its report says of the store."""

from __future__ import annotations

from pathlib import Path

from grok.execute.groups import Group, prepare_runs
from grok.execute.worker import WorkerSettings, run_group
from grok.store import Provenance, StoreWriter
from grok.store.contract import example_rows


def test_damage_that_a_worker_puts_right_is_in_its_report(tmp_path: Path) -> None:
    store, (first, second) = tmp_path / "S", example_rows(range(2))
    with StoreWriter(store) as writer:
        writer.commit([second])
        (victim,) = set((store / "runs").glob("*.parquet")) - {store / "runs" / "empty.parquet"}
        writer.commit([first])
    victim.write_bytes(victim.read_bytes()[:-50])
    settings = WorkerSettings(
        store_path=str(store), live_path=str(store / "live" / "x"), flush_seconds=30.0, device="cpu", lanes=None,
        retry_failed=False, provenance=Provenance.collect(), parent=None,
    )  # fmt: skip
    report = run_group(Group(tuple(prepare_runs([first.config]))), settings)
    assert report.stored == [first.result.run_id]
    assert len(report.notes) == 1
    assert report.notes[0].startswith(f"Repaired: moved shard {victim.stem} to quarantine")
