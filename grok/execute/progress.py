"""What a sweep shows: its plan before it trains, and its progress while it trains."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from grok.config import ArithmeticConfig, identify
from grok.config.values import literal
from grok.execute.estimate import seconds_to_train
from grok.execute.groups import PlannedRun, value_of
from grok.execute.live import LiveFolder
from grok.execute.plan import Plan
from grok.execute.retry import Totals
from grok.execute.worker import keeps_checkpoints
from grok.files import discard_output
from grok.plugins import label
from grok.store import Provenance, Store
from grok.terminal import drawing_console, duration, escape_beside_drawing, visible
from grok.untrusted import without_passwords

if TYPE_CHECKING:
    from rich.console import Group as Renderable

LINE_EVERY: Final = 30.0
"""Seconds between two plain lines; the first comes after a third of that."""

START: Final = 5.0
"""Seconds until the first step of a worker: a process, torch and a compiled program, which its cache may hold."""
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
        per_hour = 3600 * self.done() / self.seconds if self.seconds > 0 else 0.0
        speed = f"{len(self.flying)} in flight, {per_hour:.0f} runs/h, {self.left()}"
        if not self.flying and not self.done():
            speed = "starting workers"
        return f"{self.finished}/{self.total} runs{grokked}{failed}, {speed}"


class ProgressView:
    """Shows a sweep's standing while it is entered."""

    def __init__(self, live: LiveFolder, totals: Totals, labels: Mapping[str, str], *, grokking: bool) -> None:
        """``labels``: what to call each run, by run_id; ``grokking``: whether the runs can generalise suddenly."""
        self._live, self._totals, self._labels, self._grokking = live, totals, labels, grokking
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

    def __exit__(self, *exception: object) -> None:
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
            total=len(self._labels),
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


# What a plan says before it trains: counts, time, the user's own code, and settings that change nothing.

MORE: Final = (
    *("save", "eval.metrics", "eval.tasks"),
    *("checkpoint.keep", "checkpoint.keep_every", "checkpoint.keep_steps"),
)
"""Settings in no name of a run by which it measures or keeps more: a stored run may lack it."""


def plan_lines(plan: Plan, store: Store | None, provenance: Provenance) -> Iterator[str]:
    """Yield the plan's counts, workers and time; notes on uncommitted and own code, and on settings of no effect."""
    line = plan.summary()
    if plan.to_train:
        seconds = seconds_to_train(plan.to_train, store, plan.pool.workers, gpu=plan.pool.gpu)
        line += f"; {plan.pool}" + (f"; about {duration(START + seconds)}" if seconds is not None else "")
    yield line
    if plan.to_train and provenance.git_dirty:
        yield "Note: the code has changes that are not committed (git_dirty in every row); require_clean=true refuses."
    yield from own_code_lines(plan, store)
    yield from _not_measured(plan, store)


def own_code_lines(plan: Plan, store: Store | None) -> Iterator[str]:
    """Yield lines on the code that the runs to train name; none where they name none."""
    runs = [run for run in plan.to_train if run.code]
    named = {
        (name, label(spec), (run.code or {})[str(spec["_target_"])])
        for run in {run.identity.config_id: run for run in runs}.values()
        for name, spec in run.config.plugins().items()
    }
    for name, called, fingerprint in sorted(named):
        yield f"Your code: {name}={called} ({fingerprint})"
    configs = [run.config for run in runs if isinstance(run.config, ArithmeticConfig)]
    if plain := sum(bool(config.model.plugin) or config.task.is_of_another_form() for config in configs):
        yield (
            f"Plain path for {plain} run{'s' if plain > 1 else ''}: a table, a torch module or a function of your own "
            "is trained one lane at a time, uncompiled (docs/plugins.md)"
        )
    if runs and store is not None:
        yield from _changed(runs, store)


def _changed(runs: list[PlannedRun], store: Store) -> Iterator[str]:
    """Yield why runs are trained although the store holds the same settings: their code was another one."""
    texts = {row["own_code"] for row in store.table("runs", None, ["own_code"]).to_pylist()} - {None}
    statuses, now = store.statuses(), {target: text for run in runs for target, text in (run.code or {}).items()}
    anew: set[str] = set()
    older: dict[str, set[str]] = {}  # stored fingerprints by target
    for before in map(json.loads, sorted(texts)):
        for run in runs:
            code = dict(run.code or {})
            differing = {target for target, text in code.items() if before.get(target, text) != text}
            known = bool(differing) and code.keys() <= before.keys()
            if known and identify(run.config, run.data_hash, before).run_id in statuses:
                anew.add(run.run_id)
                for target in differing:
                    older.setdefault(target, set()).add(before[target])
    if anew:
        changes = [f"{target} ({' or '.join(sorted(older[target]))}, now {now[target]})" for target in sorted(older)]
        yield f"{len(anew)} of them are stored with other code and train anew: changed is {', '.join(changes)}"


def _not_measured(plan: Plan, store: Store | None) -> Iterator[str]:
    """Yield that stored runs did not measure or keep what is asked for now: it is in no name of a run."""
    asks = {
        run.run_id: {name: value_of(run.config, name) for name in MORE}
        for run in plan.runs
        if run.run_id in plan.stored
    }
    if store is None or all(_has(None, value) for values in asks.values() for value in values.values()):
        return
    lacking: dict[str, None] = {}
    runs = set()
    for row in store.table("runs", asks, ["mode", "status", *(f"config.{name}" for name in MORE)]).to_pylist():
        for name, value in asks[row["run_id"]].items():
            has = row[f"config.{name}"]
            if name == "checkpoint.keep":
                has = keeps_checkpoints(row["mode"], row["status"], bool(has))
            if row["status"] != "failed" and not _has(has, value):
                lacking[f"{name}={literal(value)}"] = None
                runs.add(row["run_id"])
    if runs:
        yield (
            f"Note: {len(runs)} stored run{'s' if len(runs) > 1 else ''} did without {', '.join(lacking)}; "
            "add force=true to train them again as the next replicate."
        )


def _has(stored: Any, wanted: Any) -> bool:
    """Return whether a run with the setting ``stored`` has all that ``wanted`` gives."""
    if isinstance(wanted, str):  # save
        return wanted == "none" or set(wanted.split(",")) <= set(str(stored).split(","))
    if isinstance(wanted, list):
        return set(wanted) <= set(json.loads(stored or "[]"))
    if wanted is None or isinstance(wanted, bool):
        return bool(stored) or not wanted
    return wanted == 0 or (bool(stored) and wanted % int(stored) == 0)
