"""Work on a stream of chunks by all cores, results in order, with a line of progress now and then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from grok.errors import DataError

POOL_BYTES: Final = 2**25
"""Below this much text, starting processes costs more than they save."""

Say = Callable[[str], None]
R = TypeVar("R")


def pooled(workers: int, total: int) -> bool:
    """Return whether ``total`` bytes are worth worker processes."""
    return workers > 1 and total >= POOL_BYTES


def in_order(function: Callable[..., R], jobs: Iterable[tuple[Any, ...]], workers: int, total: int) -> Iterator[R]:
    """Yield ``function(*job)`` for each job in order, here or in ``workers`` processes; few jobs are ever held.

    Raises:
        DataError: a worker process died.
    """
    if not pooled(workers, total):
        yield from (function(*job) for job in jobs)
        return
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    executor = get_reusable_executor(max_workers=workers)
    # Not joblib.Parallel: its generator goes on dispatching while results wait to be read, without bound.
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
            f"a worker process died, perhaps for want of memory: try fewer than {workers} --workers"
        ) from error
    finally:
        for future in pending:
            future.cancel()


class Throughput:
    """Says how far a pass over the text is, every few seconds."""

    SECONDS: Final = 5.0

    def __init__(self, what: str, total: int, say: Say) -> None:
        self._what, self._total, self._say = what, total, say
        self._done = 0
        self._began = self._printed_at = time.monotonic()

    def add(self, n_bytes: int) -> None:
        """Count ``n_bytes`` more."""
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
        """Say the whole."""
        seconds = time.monotonic() - self._began
        self._say(f"{self._what}: {self._done / 1e6:,.1f} MB in {seconds:,.1f} s")
