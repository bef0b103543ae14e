"""A group of runs in a worker: what its report says of the store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from grok import run
from grok.execute.groups import Group, prepare_runs
from grok.execute.worker import WorkerSettings, run_group
from grok.store import Provenance, StoreWriter
from grok.store.contract import example_rows
from tests.doors.conftest import TINY


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


def test_the_inline_executor_leaves_the_threads_of_its_process(tmp_path: Path) -> None:
    torch.set_num_threads(2)  # a worker computes with one
    assert run.main(["-m", *TINY, "executor=inline", f"store.path={tmp_path / 'S'}"]) == 0
    assert torch.get_num_threads() == 2


def test_a_worker_prints_a_warning_in_one_line(tmp_path: Path) -> None:
    program = "import warnings; from grok.execute import worker; worker.run_group = lambda *a: R(); R = type('R', (), {"
    program += "'device_lost': False}); worker.run_group_in_worker(None, None); warnings.warn('two\\nlines')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stderr == "warning: two lines\n"
