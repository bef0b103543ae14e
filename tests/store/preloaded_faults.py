"""System calls of the store's writers that fail: ``python -m tests.store.preloaded_faults [--faults N] [--out DIR]``.

A library that is preloaded into this process (``faults.c``) lets one call on the store's files fail, or write half,
at a random place of one action. The action must succeed or be refused in one line, lose and double nothing, and end as
the undisturbed one when it is done again.

Appends one row for each fault to DIR/preloaded_faults.csv (default results/faults): given again, it goes on behind the
rows of the table until there are N.
"""

import argparse
import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pandas as pd
import torch

from grok.checkpoints import load_checkpoint, load_weights, save_checkpoint, save_weights
from grok.errors import GrokError
from grok.records import Checkpoint
from grok.store import open_store
from grok.store.merge import restore
from grok.streams import Stream
from tests.kills import append, machine
from tests.search.test_driver import World
from tests.store.contract import read_raw
from tests.store.kill_child import ACTIONS, prepare
from tests.store.test_foreign import put_aside
from tests.store.test_kills import assert_nothing_lost, go_on, held, reference_of, undisturbed

SHORT: Final = 0
KINDS: Final = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "EDQUOT": errno.EDQUOT, "short": SHORT}
RUN: Final = "abc"


def checkpoint(step: int) -> Checkpoint:
    """Return a state in which every tensor is ``step``."""
    tensors = {"w": torch.full((300, 40), float(step)), "b": torch.full((7,), float(step))}
    return Checkpoint(run_id=RUN, step=step, tensors=tensors, state={"n": step})


class Store:
    """An action on a store, compared with the undisturbed store."""

    def __init__(self, action: str, folder: Path) -> None:
        self.action, self.reference = action, reference_of(folder / f"reference-{action}", action)

    def prepare(self, path: Path) -> None:
        prepare(str(path), self.action)
        self.before = held(path, self.action)

    def act(self, path: Path) -> None:
        ACTIONS[self.action](str(path))

    def look(self, path: Path) -> None:
        if self.action != "make":
            assert_nothing_lost(path, self.before, self.action)

    def go_on(self, path: Path) -> None:
        go_on(path, self.action, self.reference, self.action)


class Restoring(Store):
    """Shards that come back from the quarantine."""

    def __init__(self, folder: Path) -> None:
        self.action, self.reference = "restore", undisturbed(folder / "reference-restore", range(6), range(4))

    def prepare(self, path: Path) -> None:
        undisturbed(path, range(6), range(4))
        put_aside(path)
        self.before = (set(), set())

    def act(self, path: Path) -> None:
        restore(path)

    def go_on(self, path: Path) -> None:
        ACTIONS["restore"] = restore
        go_on(path, "restore", self.reference, "restore")


class Checkpoints:
    """A checkpoint after an older one; or kept weights."""

    def __init__(self, of_weights: bool) -> None:
        self.of_weights = of_weights

    def prepare(self, path: Path) -> None:
        self._save(path, 3)

    def act(self, path: Path) -> None:
        self._save(path, 4)

    def look(self, path: Path) -> None:
        """The older or the newer one, whole."""
        assert self._read(path) in (3, 4)

    def go_on(self, path: Path) -> None:
        self._save(path, 4)
        assert self._read(path) == 4

    def _save(self, path: Path, step: int) -> None:
        if self.of_weights:
            save_weights(path, "final", checkpoint(step).tensors)
        else:
            save_checkpoint(path, checkpoint(step))

    def _read(self, path: Path) -> int:
        if self.of_weights:
            tensors = load_weights(path, "final")
        else:
            loaded = load_checkpoint(path)
            assert loaded is not None and loaded.state["n"] == loaded.step
            tensors = dict(loaded.tensors)
        values = {float(value) for tensor in tensors.values() for value in tensor.flatten().unique()}
        assert len(values) == 1 and tensors["w"].shape == (300, 40), values
        return int(values.pop())


class Searching:
    """A search that goes on: journal, designs and rows of its runs, which are simulated."""

    def __init__(self, folder: Path) -> None:
        self.begun = World(folder / "reference-search").run({"trials": 3})
        self.whole = World(folder / "reference-search").run({"trials": 6})

    def prepare(self, path: Path) -> None:
        World(path).run({"trials": 3})
        self.stored = open_store(path).run_ids("completed")

    def act(self, path: Path) -> None:
        World(path).run({"trials": 6})

    def look(self, path: Path) -> None:
        raw = [row["run_id"] for row in read_raw(path, "runs")]
        assert len(set(raw)) == len(raw) and set(raw) >= set(self.stored)

    def go_on(self, path: Path) -> None:
        """The trials of the undisturbed search, and no run is trained that was stored."""
        stored, world = set(open_store(path).run_ids("completed")), World(path)
        assert world.run({"trials": 6}) == self.whole and self.whole[:3] == self.begun
        assert not stored & set(world.trained)


Work = Store | Checkpoints | Searching


class Library:
    """The preloaded library."""

    def __init__(self) -> None:
        self.calls = ctypes.CDLL(None)
        self.calls.faults_disarm.restype = ctypes.c_long

    @contextmanager
    def fault(self, path: Path, number: int, kind: int, *, lasting: bool = False) -> Iterator[Callable[[], int]]:
        """Let call ``number`` under ``path`` fail (0: none); the function that is yielded counts the calls."""
        self.calls.faults_arm(os.fsencode(path), ctypes.c_long(number), kind, int(lasting))
        try:
            yield lambda: int(self.calls.faults_disarm())
        finally:
            self.calls.faults_disarm()


def preload(folder: Path) -> None:
    """Start this process again with the library, if it is not loaded."""
    if hasattr(ctypes.CDLL(None), "faults_arm"):
        return
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    command = [sys.executable, "-m", "tests.store.preloaded_faults", *sys.argv[1:]]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


def trial(library: Library, work: Work, path: Path, number: int, kind: int, lasting: bool) -> str:
    """Return how the action with a fault ended: ``done``, ``refused``, or the words of what is wrong."""
    work.prepare(path)
    with library.fault(path, number, kind, lasting=lasting):
        try:
            work.act(path)
            end = "done"
        except (GrokError, OSError):
            end = "refused"
        except Exception:
            return f"traceback: {traceback.format_exc()}"
    try:
        work.look(path)
        if end == "done" and isinstance(work, Store):
            run_ids = [row["run_id"] for row in read_raw(path, "runs")]
            assert len(set(run_ids)) == len(run_ids), "there twice"
        work.go_on(path)
    except Exception:
        return f"wrong after {end}: {traceback.format_exc()}"
    return end


def main() -> int:
    """Try the faults; return 1 if any did harm."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("results/faults"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    table = arguments.out / "preloaded_faults.csv"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        preload(folder)
        library = Library()
        works: dict[str, Work] = {action: Store(action, folder) for action in ACTIONS}
        works |= {"restore": Restoring(folder), "checkpoint": Checkpoints(False), "weights": Checkpoints(True)}
        works["search"] = Searching(folder)
        calls = {}
        for action, work in works.items():
            work.prepare(folder / f"count-{action}")
            with library.fault(folder / f"count-{action}", 0, 0) as count:
                work.act(folder / f"count-{action}")
                calls[action] = count()
        here = machine()
        for i in range(len(table.read_text().splitlines()) - 1 if table.exists() else 0, arguments.faults):
            action = list(works)[i % len(works)]
            draw = Stream("faults", 0).at(action, i)
            # an interruption that lasts is none: Python would call again for ever
            kind = list(KINDS)[int(draw.integers(1, len(KINDS))[0])]
            number, lasting = int(draw.at("call").integers(1, calls[action])[0]) + 1, i % 4 == 3 and kind != "EINTR"
            began, path = time.perf_counter(), folder / f"S{i}"
            end = trial(library, works[action], path, number, KINDS[kind], lasting)
            row = {"action": action, "fault": kind, "call": number, "of": calls[action], "lasting": lasting,
                   "end": end.partition(":")[0], "seconds": round(time.perf_counter() - began, 2), **here}  # fmt: skip
            append(table, row)
            if end not in ("done", "refused"):
                print(f"{action}, {kind} at call {number} of {calls[action]}{', lasting' * lasting}: {end}", flush=True)
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(f"{path}-other", ignore_errors=True)
    ends = Counter(pd.read_csv(table)["end"])
    print(", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
    return int(not ends.keys() <= {"done", "refused"})


if __name__ == "__main__":
    sys.exit(main())
