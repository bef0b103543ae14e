"""The first ten minutes on a GPU: ``python -m benchmarks.device_day``. Needs Python with CUDA torch and numpy.

Runs the stages one after the other, each in its own process with a time limit, with one compile cache, for nine
minutes in all. ``device-day.json`` under ``--out`` is rewritten after each stage, so that an interruption keeps the
earlier results. ``--fake`` runs small stages on the processor, to try them without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from benchmarks.confined import Run, run_confined

DAY: Final = 540.0
"""Seconds for all stages."""
TAIL: Final = 4000
"""Number of characters of a stage's output that are kept."""
RESERVE: Final = 2**20
"""Bytes reserved at the start for the result file, in case a stage fills the disk."""
MARGIN: Final = 8.0
"""Seconds reserved for killing the last stage and writing the file."""
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
    """``done``, ``failed``, ``out of time``, ``out of memory``, ``interrupted`` or ``not begun``."""
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
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", ""), stand_ins()])),
    }
    record = Record(out)
    outcomes: list[Outcome] = []
    record.write(outcomes)
    with interruptions() as interrupted:
        for stage in day:
            limit = min(stage.limit, end - time.monotonic() - margin)
            outcomes.append(run_stage(stage, limit, environment, interrupted))
            record.write(outcomes)
    record.close(outcomes)
    return outcomes


def stand_ins() -> str:
    """Return the folder with the replacement of SciPy, or an empty text if SciPy is installed."""
    return "" if importlib.util.find_spec("scipy") else str(ROOT / "benchmarks" / "stand_ins")


def run_stage(
    stage: Stage, limit: float, environment: dict[str, str], interrupted: Callable[[], bool] = lambda: False
) -> Outcome:
    """Run one stage; at its limit, kill it with every process that it started."""
    if limit < 1 or interrupted():
        return Outcome(stage.name, "not begun", 0.0, stage.limit)
    began = time.monotonic()
    try:
        run = run_confined(stage.command, limit, cwd=ROOT, environment=environment, interrupted=interrupted)
    except OSError as error:  # no memory for another process, no such program
        run = Run("failed", None, f"{type(error).__name__}: {error}")
    seconds = round(time.monotonic() - began, 2)
    return Outcome(stage.name, run.state, seconds, stage.limit, run.status, last_json(run.text), run.text[-TAIL:])


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Catch SIGINT, SIGTERM and SIGHUP; yield a function that returns whether one came."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    held = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


def last_json(text: str) -> Any:
    """Return the JSON object of the last line that is one; None if there is none."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            value = json.loads(line, parse_constant=str)  # NaN and infinity are not JSON
            if isinstance(value, dict):
                return value
    return None


class Record:
    """The result file, which is replaced by a rename and so is always complete."""

    def __init__(self, out: Path) -> None:
        self.target = out / "device-day.json"
        self.reserve = out / "device-day.reserve"
        self.problem = ""
        with self.noted():
            out.mkdir(parents=True, exist_ok=True)
            self.reserve.write_bytes(bytes(RESERVE))

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.problem = f"{type(error).__name__}: {error}"

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Write the outcomes; on a full disk, into the reserved space."""
        self.problem = ""
        with self.noted():
            self._write(outcomes)
        if self.problem:
            with self.noted():
                self.reserve.unlink(missing_ok=True)
                self._write(outcomes)
                self.problem = ""

    def _write(self, outcomes: Sequence[Outcome]) -> None:
        unfinished = self.target.with_suffix(".tmp")
        try:
            with unfinished.open("w") as file:
                file.write(text_of(outcomes))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self.target)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise

    def close(self, outcomes: Sequence[Outcome]) -> None:
        """Remove the reserve; print the outcomes if they could not be written."""
        with contextlib.suppress(OSError):
            self.reserve.unlink(missing_ok=True)
        if self.problem:
            print(f"{self.target} could not be written ({self.problem}); the day in one line:")
            print(json.dumps(json.loads(text_of(outcomes))))


def text_of(outcomes: Sequence[Outcome]) -> str:
    """Return the content of the result file."""
    day = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "stages": [asdict(o) for o in outcomes]}
    return json.dumps(day, indent=1)


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
