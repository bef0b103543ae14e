"""The day on a device ends in its time with a whole file, whatever its stages do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device_day import NAMES, Stage, run_day
from benchmarks.device_stages import equal_lanes


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def written(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "device-day.json").read_text())["stages"]
    return found


@pytest.mark.slow
def test_whatever_a_stage_does_the_day_goes_on_and_ends_in_time(tmp_path: Path) -> None:
    day = [
        Stage("good", 20, script("print('a word'); print('{\"x\": 1}'); print('and more')")),
        Stage("dies", 20, script("import os; print('{\"half\": 1}', flush=True); os.kill(os.getpid(), 9)")),
        Stage("is not there", 20, ("/no/such/program",)),
        Stage("hangs", 1, script("import time; time.sleep(60)")),
        Stage("long", 60, script("import time; time.sleep(60)")),
        Stage("late", 60, script("print(1)")),
    ]
    outcomes = run_day(day, tmp_path, seconds=20, margin=0.5)
    assert [o.state for o in outcomes] == ["done", "failed", "failed", "out of time", "out of time", "not begun"]
    assert outcomes[0].result == {"x": 1} and outcomes[1].result == {"half": 1} and outcomes[1].status == -9
    assert [stage["name"] for stage in written(tmp_path)] == [stage.name for stage in day]


def test_the_file_is_whole_after_every_stage(tmp_path: Path) -> None:
    seen = f"import json; print(len(json.load(open({str(tmp_path / 'device-day.json')!r}))['stages']))"
    outcomes = run_day([Stage(str(n), 20, script(seen)) for n in range(3)], tmp_path)
    assert [o.tail.strip() for o in outcomes] == ["0", "1", "2"]
    assert [file.name for file in tmp_path.iterdir()] == ["device-day.json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_stage_and_the_day_with_what_is_known(tmp_path: Path, number: int) -> None:
    stop = (
        f"import os, time; print('{{\"half\": 1}}', flush=True); os.kill(os.getppid(), {int(number)}); time.sleep(60)"
    )
    outcomes = run_day([Stage("one", 20, script(stop)), Stage("two", 20, script("print(1)"))], tmp_path)
    assert [(stage["state"], stage["result"]) for stage in written(tmp_path)] == [
        ("interrupted", {"half": 1}),
        ("not begun", None),
    ]
    assert outcomes[0].seconds < 10


@pytest.mark.slow
def test_no_process_of_a_stage_outlives_it(tmp_path: Path) -> None:
    mark = tmp_path / "outlived"
    child = f"import time; time.sleep(0.8); open({str(mark)!r}, 'w')"
    leaves = f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {child!r}])"
    assert run_day([Stage("one", 20, script(leaves))], tmp_path)[0].state == "done"
    time.sleep(1.2)
    assert not mark.exists()


@pytest.mark.slow
def test_one_seed_in_every_lane_ends_with_one_set_of_bits() -> None:
    """100 steps on the processor, float32 and bfloat16 products; on a device the day does it at full width."""
    for outcome in equal_lanes(True).values():
        assert outcome["lanes"] == 6 and outcome["different ends"] == 1


@pytest.mark.slow
def test_the_day_runs_on_a_fake_device(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.device_day", "--fake", "--out", str(tmp_path), "--seconds", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / "device-day.json").read_text()
    day = json.loads((tmp_path / "device-day.json").read_text())["stages"]
    assert [stage["name"] for stage in day] == [name for name, _ in NAMES]
    assert day[1]["result"]["same bits captured and queued"] is True
