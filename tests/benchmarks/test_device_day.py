"""The day on a device ends in its time with a whole file, whatever its stages do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device_day import NAMES, Stage, run_day


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def written(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "device-day.json").read_text())["stages"]
    return found


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
def test_the_day_runs_on_a_fake_device(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.device_day", "--fake", "--out", str(tmp_path), "--seconds", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / "device-day.json").read_text()
    day = json.loads((tmp_path / "device-day.json").read_text())["stages"]
    assert [stage["name"] for stage in day] == [name for name, _ in NAMES]
    assert day[1]["result"]["same bits captured and queued"] is True
