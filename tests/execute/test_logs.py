"""A sweep's runs in logs beside the store: a row per run while it trains, whoever trained it, and never at its cost."""

import json
from pathlib import Path

import pytest

from grok.config import identify
from grok.execute.export import RunLogs
from grok.execute.groups import PlannedRun
from grok.plugins import activate, code_of
from grok.store import StoreWriter, open_store
from grok.store.provenance import rerun_command
from tests.arithmetic.cases import tiny
from tests.doors.conftest import TINY, Door
from tests.doors.conftest import door as door
from tests.plugins.conftest import Write
from tests.plugins.conftest import write as write
from tests.store.contract import example_rows, failed

SINK = """
import json

class Lines:
    "A file of JSON lines a run."
    def __init__(self, run_id, settings, folder="lines", broken=False):
        import os
        if broken:
            raise OSError("the server is gone")
        os.makedirs(folder, exist_ok=True)
        self.file = open(f"{folder}/{run_id}", "x")
        self.put(settings)
    def put(self, record):
        self.file.write(json.dumps(record) + "\\n")
    def write(self, values, step):
        self.put({"step": step, **values})
    def finish(self, result):
        self.put({"status": result.status})
    def close(self):
        self.file.close()
"""
LOGGED = (*TINY[2:], "-m", "seed=0,1", "store.path=S", "log.plugin._target_=mine.Lines")


@pytest.fixture(autouse=True)
def _mine(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(mine=SINK)
    monkeypatch.chdir(tmp_path)


def lines(run_id: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(f"lines/{run_id}").read_text().splitlines()]


def names(folder: str) -> list[str]:
    return [file.name for file in Path(folder).iterdir()]


def test_where_a_run_is_logged_is_no_part_of_it() -> None:
    logged = tiny(log={"tensorboard": "tb", "plugin": {"_target_": "mine.Lines"}})
    assert identify(logged) == identify(tiny())
    assert rerun_command(logged) == rerun_command(tiny())


def test_every_run_of_a_sweep_is_in_a_log_of_ones_own(door: Door) -> None:
    ended = door(*LOGGED, "executor=inline")
    assert ended.status == 0, ended
    store = open_store("S")
    rows = store.runs().set_index("run_id")
    for run_id in rows.index:
        settings, *points, end = lines(run_id)
        assert settings["seed"] == rows["seed"][run_id] and settings["store"] == str(Path("S").resolve())
        curve = store.curves([run_id])
        assert [point["step"] for point in points] == list(curve["step"])
        assert points[-1]["val/loss"] == curve["val_loss"].iloc[-1]
        assert end == {"status": "completed"}
    assert set(rows["own_code"].isna()) == {True}, "a log moves no run"
    assert "2 stored, 0 duplicates, 0 to train" in door(*LOGGED, "executor=inline").out


def test_runs_are_written_while_others_train() -> None:
    """What is committed is there at the next look; a failed row of before, or what is not planned, never is."""
    config = tiny(log={"plugin": {"_target_": "mine.Lines"}})
    activate(code_of(".", ["mine.Lines"]))
    rows = example_rows(range(3))
    runs = [PlannedRun(config, row.identity) for row in rows[:2]]
    with StoreWriter("S") as writer:
        writer.commit([failed(rows[0])])
        logs = RunLogs(open_store("S"), runs, lambda line: None)
        logs._write()
        assert not Path("lines").exists()
        writer.commit(rows[:1])
        logs._write()
        assert names("lines") == [rows[0].identity.run_id]
        writer.commit(rows[1:])
        logs._write()
        logs._write()
        assert set(names("lines")) == {row.identity.run_id for row in rows[:2]}
    assert lines(rows[0].identity.run_id)[-1] == {"status": "completed"}


def test_a_stored_run_that_named_a_log_imports_nothing(door: Door, write: Write) -> None:
    assert door(*LOGGED, "executor=inline").status == 0
    write(mine="raise SystemExit('imported')")
    run_id = min(open_store("S").run_ids())
    ended = door("--again", run_id, "--store", "S")
    assert (ended.status, ended.last[:9]) == (0, "same bits"), ended
