"""The first ten minutes on a GPU: ``python -m benchmarks.device_day``; needs python3 with torch for CUDA and numpy.

Runs stage after stage, each in a process of its own with a limit, all with one compile cache, for nine minutes in all.
``device-day.json`` under ``--out`` is written anew after each, so that whatever ends the day leaves what was measured.
``--fake`` runs the stages small and on the processor, to try them where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

DAY: Final = 540.0
"""Seconds for all stages."""
TAIL: Final = 4000
"""Characters of a stage's output that are kept."""
ROOT: Final = Path(__file__).resolve().parent.parent
NAMES: Final = (
    ("environment", 40),
    ("capture", 60),
    ("tests", 100),
    ("equal-lanes", 100),
    ("step", 120),
    ("profile", 60),
    ("sweep", 100),
    ("widths", 90),
    ("gpt", 90),
)
"""Every stage and its limit in seconds; what fast ones leave over is for the later ones."""


@dataclass(frozen=True)
class Stage:
    name: str
    limit: float
    command: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a stage: ``result`` is the JSON of the last line that it printed, ``tail`` the end of the rest."""

    name: str
    state: str
    """``done``, ``failed``, ``out of time`` or ``not begun``."""
    seconds: float
    limit: float
    result: Any = None
    tail: str = ""


def stages(*, fake: bool, only: Sequence[str] = ()) -> list[Stage]:
    """Return the day's stages in order."""
    how = ["--fake"] if fake else []
    module = [sys.executable, "-m", "benchmarks.device_stages"]
    return [Stage(name, limit, (*module, name, *how)) for name, limit in NAMES if not only or name in only]


def run_day(day: Sequence[Stage], out: Path, *, seconds: float = DAY) -> list[Outcome]:
    """Run the stages and return their outcomes; ``device-day.json`` is whole after every one.

    ``seconds`` is for all of them: a stage gets its limit or what is left, whichever is less.
    """
    end = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    cache = out / "compile-cache"
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }
    outcomes: list[Outcome] = []
    write(outcomes, out)
    for stage in day:
        limit = min(stage.limit, end - time.monotonic() - 2)
        outcomes.append(run_stage(stage, limit, environment))
        write(outcomes, out)
    return outcomes


def run_stage(stage: Stage, limit: float, environment: dict[str, str]) -> Outcome:
    """Run one stage; at its limit it is killed with every process that it started."""
    if limit < 1:
        return Outcome(stage.name, "not begun", 0.0, stage.limit)
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        process = subprocess.Popen(
            stage.command, stdout=printed, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            state = "done" if process.wait(timeout=limit) == 0 else "failed"
        except subprocess.TimeoutExpired:
            state = "out of time"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        text = printed.read()
    return Outcome(stage.name, state, round(time.monotonic() - began, 2), stage.limit, last_json(text), text[-TAIL:])


def last_json(text: str) -> Any:
    """Return the last line that is a JSON object, None where there is none."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                return value
    return None


def write(outcomes: Sequence[Outcome], out: Path) -> None:
    """Write the day's file, whole or not at all."""
    day = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "stages": [asdict(o) for o in outcomes]}
    target = out / "device-day.json"
    unfinished = target.with_suffix(".tmp")
    unfinished.write_text(json.dumps(day, indent=1))
    unfinished.replace(target)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_day", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/device-day"))
    parser.add_argument("--seconds", type=float, default=DAY, help="for all stages; the default is nine minutes")
    parser.add_argument("--only", nargs="*", default=[], choices=[name for name, _ in NAMES], metavar="STAGE")
    parser.add_argument("--fake", action="store_true", help="small and on the processor: tries the stages")
    arguments = parser.parse_args()
    day = stages(fake=arguments.fake, only=arguments.only)
    outcomes = run_day(day, arguments.out.resolve(), seconds=arguments.seconds)
    for outcome in outcomes:
        print(f"{outcome.name:12} {outcome.state:12} {outcome.seconds:6.1f} s of {outcome.limit:g}")
    print(f"written: {arguments.out / 'device-day.json'}")
    return 0 if all(outcome.state == "done" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
