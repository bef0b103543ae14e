"""A process that does one thing to a store and is killed by SIGKILL at its n-th touch of the store's files.

``python kill_child.py STORE ACTION N``. What touches a file is taken from Python's own
audit events, so nothing of the store is replaced: the kill comes right before the n-th
open, rename, link or removal. With N = 0 nothing is killed and the number of touches is printed.
"""

import os
import signal
import sys
from collections.abc import Callable

from grok.store import StoreWriter
from grok.store.compact import compact
from grok.store.testing import example_rows, failed

TOUCHES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "ctypes.dlsym")


def commit(path: str) -> None:
    with StoreWriter(path) as writer:
        writer.commit(example_rows(range(4, 8)))


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
}


def prepare(path: str, action: str) -> None:
    """Fill the store that ``action`` is done to."""
    if action == "make":
        return
    rows = example_rows(range(4))
    with StoreWriter(path) as writer:
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
