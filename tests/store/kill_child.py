"""A process that does one thing to a store and is killed by SIGKILL at its n-th touch of the store's files.

``python -m tests.store.kill_child STORE ACTION N``. What touches a file is taken from Python's own
audit events, so nothing of the store is replaced: the kill comes right before the n-th
open, rename, link or removal. With N = 0 nothing is killed and the number of touches is printed.
"""

import os
import signal
import sys
from collections.abc import Callable
from unittest.mock import patch

from grok.store import StoreWriter
from grok.store import writer as writer_module
from grok.store.merge import merge
from grok.store.upkeep import compact
from tests.store.contract import example_design, example_rows, failed

TOUCHES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "ctypes.dlsym")


STUDY = "study"
"""A design in several shards, as a search has."""


def plan(writer: StoreWriter, seeds: range) -> None:
    """Record a design of its own for each run, and one more batch of the study for each two."""
    run_ids = [row.result.run_id for row in example_rows(seeds)]
    for run_id in run_ids:
        writer.record_design(example_design([run_id]))
    for first in range(0, len(run_ids), 2):
        writer.record_design(example_design(run_ids[first : first + 2], kind="search", design_id=STUDY))


def commit(path: str) -> None:
    with StoreWriter(path) as writer:
        plan(writer, range(4, 8))
        writer.commit(example_rows(range(4, 8)))


def plan_again(path: str) -> None:
    """The small shards of designs are merged meanwhile."""
    with patch.object(writer_module, "SMALL", 4), StoreWriter(path) as writer:
        plan(writer, range(5))


def retire(path: str) -> None:
    with StoreWriter(path) as writer:
        writer.retire_design(STUDY, "a try")


def replace_failed(path: str) -> None:
    with StoreWriter(path) as writer:
        writer.commit(example_rows(range(4)))


def make(path: str) -> None:
    StoreWriter(path).close()


ACTIONS: dict[str, Callable[[str], object]] = {
    "make": make,
    "commit": commit,
    "replace": replace_failed,
    "compact": compact,
    "plan": plan_again,
    "retire": retire,
    "merge": lambda path: merge(path, [f"{path}-other"]),
}


def prepare(path: str, action: str) -> None:
    """Fill the store that ``action`` is done to."""
    if action == "make":
        return
    if action == "merge":  # rows that both have, abandoned in the other, and some that are new
        with StoreWriter(f"{path}-other") as writer:
            plan(writer, range(6))
            writer.retire_design(STUDY, "a try")
            writer.commit(example_rows(range(4, 6)))
    rows = example_rows(range(4))
    with StoreWriter(path) as writer:
        plan(writer, range(4))
        if action == "replace":
            writer.commit([failed(rows[0]), rows[1]])
            writer.commit([failed(rows[2]), failed(rows[3])])
        else:
            for row in rows:
                writer.commit([row])


def main() -> None:
    path, action, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
    touches = 0

    def touch(event: str, about: tuple[object, ...]) -> None:
        nonlocal touches
        # the exchange of two folders is a C call without an event of its own, but for looking its name up
        if event in TOUCHES and (event == "ctypes.dlsym" or path in str(about[0])):
            touches += 1
            if touches == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(touch)
    ACTIONS[action](path)
    print(touches)


if __name__ == "__main__":
    main()
