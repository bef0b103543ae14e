"""The first ten minutes on a GPU: ``python -m benchmarks.device_day``. Needs the project's packages and CUDA torch.

Runs the stages one after the other, each in its own process with a time limit, with one compile cache, for nine
minutes in all. ``device-day.json`` under ``--out`` is rewritten after each stage, so that an interruption keeps the
earlier results. ``--fake`` runs small stages on the processor, to try them without a GPU.
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
"""Number of characters of a stage's output that are kept."""
READ: Final = 2**18
"""Number of bytes at the end of a stage's output that are searched for its result."""
MARGIN: Final = 8.0
"""Seconds reserved for killing the last stage and writing the file."""
ROOT: Final = Path(__file__).resolve().parent.parent
NAMES: Final = (
    ("environment", 40),
    ("capture", 60),
    ("tests", 100),
    ("equal-lanes", 100),
    ("step", 120),
    ("sweep", 100),
    ("gpt", 90),
)
"""Every stage and its limit in seconds; later stages can use the time that earlier ones leave."""


@dataclass(frozen=True)
class Stage:
    name: str
    limit: float
    command: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The end of a stage: ``result`` is the JSON object in its last such line, ``tail`` the end of its output."""

    name: str
    state: str
    """``done``, ``failed``, ``out of time``, ``interrupted`` or ``not begun``."""
    seconds: float
    limit: float
    status: int | None = None
    """The process's exit status: minus the number of the signal that ended it."""
    result: Any = None
    tail: str = ""


def stages(*, fake: bool, only: Sequence[str] = ()) -> list[Stage]:
    """Return the day's stages in order."""
    how = ["--fake"] if fake else []
    module = [sys.executable, "-m", "benchmarks.device_stages"]
    return [Stage(name, limit, (*module, name, *how)) for name, limit in NAMES if not only or name in only]


def run_day(day: Sequence[Stage], out: Path, *, seconds: float = DAY, margin: float = MARGIN) -> list[Outcome]:
    """Run the stages and return their outcomes; ``device-day.json`` is complete after every stage.

    ``seconds`` is for all stages: a stage gets its limit, or the time left before ``margin`` if it is less. An
    interruption ends the stage and the day.
    """
    end = time.monotonic() + seconds
    cache = out / "compile-cache"
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }
    outcomes: list[Outcome] = []
    write(outcomes, out)
    held = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for stage in day:
            limit = min(stage.limit, end - time.monotonic() - margin)
            interrupted = any(outcome.state == "interrupted" for outcome in outcomes)
            if limit < 1 or interrupted:
                outcomes.append(Outcome(stage.name, "not begun", 0.0, stage.limit))
            else:
                outcomes.append(run_stage(stage, limit, environment))
            write(outcomes, out)
    finally:
        signal.signal(signal.SIGTERM, held)
    return outcomes


def run_stage(stage: Stage, limit: float, environment: dict[str, str]) -> Outcome:
    """Run one stage; at its limit, kill it with the processes that it started."""
    began, state, status = time.monotonic(), "failed", None
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                stage.command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:  # no memory for another process, no such program
            return Outcome(stage.name, state, 0.0, stage.limit, tail=f"{type(error).__name__}: {error}")
        try:
            status = process.wait(limit)
            state = "failed" if status else "done"
        except subprocess.TimeoutExpired:
            state = "out of time"
        except KeyboardInterrupt:
            state = "interrupted"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - READ))
        text = output.read().decode(errors="replace")
    seconds = round(time.monotonic() - began, 2)
    return Outcome(stage.name, state, seconds, stage.limit, status, last_json(text), text[-TAIL:])


def last_json(text: str) -> Any:
    """Return the JSON object of the last line that is one; None if there is none."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            value = json.loads(line, parse_constant=str)  # NaN and infinity are not JSON
            if isinstance(value, dict):
                return value
    return None


def write(outcomes: Sequence[Outcome], out: Path) -> None:
    """Replace the result file by a rename, so that it is always complete; print what cannot be written."""
    day = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "stages": [asdict(o) for o in outcomes]}
    try:
        out.mkdir(parents=True, exist_ok=True)
        unfinished = out / "device-day.tmp"
        unfinished.write_text(json.dumps(day, indent=1))
        unfinished.replace(out / "device-day.json")
    except OSError as error:
        print(f"{out / 'device-day.json'} could not be written ({error}); the day in one line:")
        print(json.dumps(day))


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
    print(f"the day's file: {arguments.out / 'device-day.json'}")
    return 0 if all(outcome.state == "done" for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
