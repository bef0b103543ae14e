"""What a running sweep shows: a live view on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from grok.execute.estimate import duration
from grok.execute.live import LiveFolder
from grok.execute.retry import Totals
from grok.files import discard_output
from grok.masking import without_passwords
from grok.terminal import drawing_console, escape_beside_drawing, visible

if TYPE_CHECKING:
    from rich.console import Group as Renderable

LINE_EVERY: Final = 30.0
"""Seconds between two plain lines; the first comes after a third of that."""

LANES_SHOWN: Final = 16
LABEL_WIDTH: Final = 24
BAR_WIDTH: Final = 20
"""Columns of a lane's label and bar: with the rest of its row they fit into 80."""


def say(text: str) -> None:
    """Print one line. After a closed pipe (``| head``) the runs go on silently."""
    try:
        print(visible(without_passwords(text)), flush=True)
    except BrokenPipeError:
        discard_output(sys.stdout)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a sweep stands."""

    total: int
    finished: int
    grokked: int | None
    """How many of the finished runs generalised; None where the word means nothing (language models)."""
    failed: int
    flying: Sequence[tuple[str, int, int, float | None]]
    """run_id, step, steps and validation accuracy of every run in flight."""
    seconds: float
    begun: tuple[float, float] = (0.0, 0.0)
    """Seconds and what was done when the first step was seen: starting and compiling tell nothing of what is left."""

    def done(self) -> float:
        """Return the finished runs plus the shares of those in flight."""
        return self.finished + sum(step / steps for _, step, steps, _ in self.flying)

    def per_hour(self) -> float:
        return 3600 * self.done() / self.seconds if self.seconds > 0 else 0.0

    def left(self) -> str:
        """Return the time left, as people say it."""
        seconds, done = self.seconds - self.begun[0], self.done() - self.begun[1]
        if done <= 0 or seconds < 1:
            return "time left not known yet"
        return f"about {duration((self.total - self.done()) * seconds / done)} left"

    def line(self) -> str:
        """Return it as one line."""
        grokked = "" if self.grokked is None else f", {self.grokked} generalised"
        failed = f", {self.failed} failed" if self.failed else ""
        return (
            f"{self.finished}/{self.total} runs{grokked}{failed}, {len(self.flying)} in flight, "
            f"{self.per_hour():.0f} runs/h, {self.left()}"
        )


class ProgressView:
    """Shows a sweep's standing while it is entered."""

    def __init__(
        self,
        live: LiveFolder,
        totals: Totals,
        total: int,
        *,
        grokking: bool = True,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """``grokking``: whether the runs can generalise suddenly; ``labels``: what to call each run, by run_id."""
        self._labels = labels or {}
        self._live, self._totals, self._total, self._grokking = live, totals, total, grokking
        self._start = time.monotonic()
        self._begun: tuple[float, float] | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._screen: Any = None

    def __enter__(self) -> ProgressView:
        if sys.stdout.isatty():
            from rich.live import Live

            console = drawing_console(sys.stdout)
            self._screen = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)
            self._screen.start()
            escape_beside_drawing()
        else:
            self._thread = threading.Thread(target=self._print_lines, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._screen is not None:
            self._screen.stop()
        if self._thread is not None:
            self._thread.join()

    def standing(self) -> Standing:
        """Return the sweep's progress, from finished groups' results and the last reports of those in flight."""
        self._live.keep()
        news = list(self._live.news())
        flying = [(run_id, int(f[0]), int(f[1]), f[2]) for report in news for run_id, f in report["flying"].items()]
        now = Standing(
            total=self._total,
            finished=len(self._totals.finished) + sum(report["finished"] for report in news),
            grokked=self._totals.grokked + sum(report["grokked"] for report in news) if self._grokking else None,
            failed=len(self._totals.failed),
            flying=flying,
            seconds=time.monotonic() - self._start,
        )
        if self._begun is None and now.done() > 0:
            self._begun = (now.seconds, now.done())
        return now if self._begun is None else replace(now, begun=self._begun)

    def _print_lines(self) -> None:
        pause = LINE_EVERY / 3
        while not self._closing.wait(pause):
            say(self.standing().line())
            pause = LINE_EVERY

    def _render(self) -> Renderable:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now = self.standing()
        # a bar ends no line by itself: in a row of its own it leaves the words beside it to be seen
        whole = Table.grid(expand=True)
        whole.add_row(ProgressBar(total=now.total, completed=now.done()))
        lanes = Table.grid(padding=(0, 2))
        lanes.add_column(no_wrap=True, max_width=LABEL_WIDTH)
        for run_id, step, steps, val_acc in now.flying[:LANES_SHOWN]:
            accuracy = "" if val_acc is None else f"val acc {val_acc:.3f}"
            label = self._labels.get(run_id, run_id[:8])
            bar = ProgressBar(total=steps, completed=step, width=BAR_WIDTH)
            lanes.add_row(Text(label), bar, f"{step}/{steps}", accuracy)
        hidden = len(now.flying) - LANES_SHOWN
        more = [Text(f"and {hidden} more in flight")] if hidden > 0 else []
        return Group(Text(now.line()), whole, lanes, *more)
