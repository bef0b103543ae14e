"""Processes a stream of chunks on several cores; results come in order, with lines of progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from grok.errors import DataError

POOL_BYTES: Final = 2**25
"""Bytes of text below which no worker processes are started: they would cost more time than they save."""

Say = Callable[[str], None]
R = TypeVar("R")


def pooled(workers: int, total: int) -> bool:
    """Return whether ``total`` bytes are worth worker processes."""
    return workers > 1 and total >= POOL_BYTES


def in_order(function: Callable[..., R], jobs: Iterable[tuple[Any, ...]], workers: int, total: int) -> Iterator[R]:
    """Yield ``function(*job)`` for each job in order, computed in this process or in ``workers`` processes.

    At most ``2 * workers + 1`` jobs are in memory.

    Raises:
        DataError: a worker process died.
    """
    if not pooled(workers, total):
        yield from (function(*job) for job in jobs)
        return
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    executor = get_reusable_executor(max_workers=workers)
    # Not joblib.Parallel: its generator dispatches jobs without limit while nobody reads the results.
    pending: deque[Future[R]] = deque()
    try:
        for job in jobs:
            pending.append(executor.submit(function, *job))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except TerminatedWorkerError as error:
        raise DataError(
            f"a worker process died, perhaps for lack of memory: try fewer than {workers} --workers"
        ) from error
    finally:
        for future in pending:
            future.cancel()


class Throughput:
    """Reports the progress of a pass over the text, every few seconds."""

    SECONDS: Final = 5.0

    def __init__(self, what: str, total: int, say: Say) -> None:
        self._what, self._total, self._say = what, total, say
        self._done = 0
        self._began = self._printed_at = time.monotonic()

    def add(self, n_bytes: int) -> None:
        """Add ``n_bytes`` to the bytes done."""
        self._done += n_bytes
        now = time.monotonic()
        if now - self._printed_at >= self.SECONDS:
            self._printed_at = now
            rate = self._done / (now - self._began)
            left = max(0.0, (self._total - self._done) / rate)
            self._say(
                f"{self._what}: {self._done / 1e6:,.0f} of about {self._total / 1e6:,.0f} MB,"
                f" {rate / 1e6:,.1f} MB/s, about {left:,.0f} s left"
            )

    def finish(self) -> None:
        """Report the total bytes and seconds."""
        seconds = time.monotonic() - self._began
        self._say(f"{self._what}: {self._done / 1e6:,.1f} MB in {seconds:,.1f} s")
