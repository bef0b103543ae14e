"""Ctrl-C, SIGTERM, SIGUSR1, a closed terminal: the first asks all to end resumably, a second Ctrl-C ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Interrupt:
    """Requests to stop, from the user or the machine, and the context that turns signals into them."""

    def __init__(self, on_request: Callable[[str], None]) -> None:
        """``on_request`` is called once with the signal's name, from the signal's handler."""
        self.requested: str | None = None
        self._on_request = on_request
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested is not None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            hung_up_alone = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
            numbers = [number for number in SIGNALS if number != signal.SIGHUP or not hung_up_alone]
            self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.requested = signal.Signals(number).name
        self._on_request(self.requested)
