"""The day on a device ends in its time with a whole file, whatever its stages do."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.device_day import NAMES, Stage, last_json, run_day, stages
from benchmarks.device_stages import STAGES, equal_lanes


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def test_whatever_a_stage_does_the_day_goes_on_and_ends_in_time(tmp_path: Path) -> None:
    mark = tmp_path / "outlived"
    child = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    day = [
        Stage("good", 20, script("print('a word'); print('{\"x\": 1}'); print('and more')")),
        Stage("dies", 20, script("import os; print('{\"half\": 1}', flush=True); os.kill(os.getpid(), 9)")),
        Stage("hangs", 1.5, script(f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {child!r}])")),
        Stage("long", 60, script("import time; time.sleep(60)")),
        Stage("late", 60, script("print(1)")),
    ]
    began = time.monotonic()
    outcomes = run_day(day, tmp_path, seconds=7)
    assert time.monotonic() - began < 9
    assert [o.state for o in outcomes] == ["done", "failed", "out of time", "out of time", "not begun"]
    assert outcomes[0].result == {"x": 1} and outcomes[1].result == {"half": 1}
    written = json.loads((tmp_path / "device-day.json").read_text())["stages"]
    assert [stage["name"] for stage in written] == ["good", "dies", "hangs", "long", "late"]
    time.sleep(0.5)
    assert not mark.exists()  # the child of the stage that hung went with it


def test_the_file_is_whole_after_every_stage(tmp_path: Path) -> None:
    seen = f"import json; print(len(json.load(open({str(tmp_path / 'device-day.json')!r}))['stages']))"
    outcomes = run_day([Stage(str(n), 20, script(seen)) for n in range(3)], tmp_path)
    assert [o.tail.strip() for o in outcomes] == ["0", "1", "2"]


def test_every_stage_has_a_limit_and_a_function() -> None:
    assert [name for name, _ in NAMES] == list(STAGES) == [stage.name for stage in stages(fake=True)]
    assert last_json("no json\n[1]\n") is None


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
