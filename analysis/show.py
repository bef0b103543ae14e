"""``grok show RUN --store STORE``: shows one stored run, its events and its curves."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.listing import filtered
from grok.analysis.observations import Observations, floats
from grok.commands.command import Parser, command
from grok.commands.words import is_filter
from grok.config import MODES, flatten
from grok.config.fields import recorded_of
from grok.errors import ConfigError, StoreError
from grok.store import Store, open_store
from grok.store.provenance import words_of_own_code
from grok.streams import STREAMS, derive_seed
from grok.terminal import duration, visible

# Curves drawn with characters, for a terminal or a log file.

_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Unicode's bit of each of a braille character's eight dots, by row and column."""
_BRAILLE: Final = 0x2800


def draw(
    lines: Sequence[pd.Series],
    *,
    width: int,
    height: int,
    log: bool,
    limits: Sequence[float] = (),
    marks: Mapping[str, int],
    ascii_only: bool,
) -> list[str]:
    """Return the rows of a plot: ``height`` rows of curves beside their scale, the axis of steps, the marks.

    The last of ``lines`` is drawn over the others, in fine dots (braille); the others with a point a column.

    Args:
        lines: each curve's values by step; one that is not finite is left out.
        width: characters of the longest row.
        log: a logarithmic scale, where all values are positive.
        limits: lowest and highest value of the scale; empty: those of the curves.
        marks: one-letter names of steps, set below the axis.
        ascii_only: no character outside ASCII.
    """
    lines = [line[np.isfinite(line)] for line in lines]
    values = np.concatenate([np.array(limits, dtype=float), *lines])
    if not len(values):
        return ["(not measured)"]
    low, high = float(values.min()), float(values.max())
    log = log and low > 0 and high > low
    if high == low:
        around = max(0.5, 1e-3 * abs(low))
        low, high = low - around, high + around
    last = max([1.0, *(float(line.index.max()) for line in lines if len(line)), *marks.values()])
    between = np.array([high, np.sqrt(low * high) if log else (low + high) / 2, low])
    labels = [f"{value:.3g}" for value in between]
    margin = max(8, *map(len, labels))  # plots below one another stand in line
    columns = max(8, width - margin - 2)
    canvas = np.full((height, columns), " ", dtype="<U1")
    for i, line in enumerate(lines):
        if line.empty:
            continue
        x, y = line.index.to_numpy() / last, line.to_numpy()
        heights = np.log(y / low) / np.log(high / low) if log else (y - low) / (high - low)
        if i < len(lines) - 1 or ascii_only:
            dots = _dots(x, heights, (height, columns))
            canvas[dots] = "*" if i == len(lines) - 1 else "." if ascii_only else "·"
        else:
            dots = _dots(x, heights, (4 * height, 2 * columns))
            bits = sum(dots[r::4, c::2] * _DOTS[r][c] for r in range(4) for c in range(2))
            canvas = np.where(bits > 0, np.vectorize(chr)(_BRAILLE + bits), canvas)
    scale = {0: labels[0], (height - 1) // 2: labels[1], height - 1: labels[2]}
    side, corner, floor = "|+-" if ascii_only else "│└─"
    rows = [f"{scale.get(r, ''):>{margin}} {side}{''.join(canvas[r]).rstrip()}" for r in range(height)]
    rows.append(" " * (margin + 1) + corner + floor * columns)
    if marks:
        below = [" "] * columns
        for letter, step in marks.items():
            below[min(columns - 1, round(step / last * (columns - 1)))] = letter
        rows.append(" " * (margin + 2) + "".join(below).rstrip())
    end = f"{last:,.0f}"
    rows.append(f"{' ' * (margin + 2)}0{f'step {end}':>{columns - 1}}")
    return rows


def _dots(x: NDArray[np.float64], y: NDArray[np.float64], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which dots of a grid the curve through (``x``, ``y``), both from 0 to 1, passes; row 0 is the top."""
    rows, columns = shape
    at = np.arange(columns) / (columns - 1)
    half = 0.5 / (columns - 1)
    inside = (at >= x.min() - half) & (at <= x.max() + half)
    level = np.rint((1 - np.interp(at, x, y)) * (rows - 1)).astype(int)
    dots = np.zeros(shape, dtype=bool)
    previous: int | None = None
    for column in np.flatnonzero(inside):
        here = int(level[column])
        first = here if previous is None else previous + int(np.sign(here - previous))
        dots[min(first, here) : max(first, here) + 1, column] = True
        previous = here
    return dots


WIDTH: Final = 78
HEIGHT: Final = 10
MEASURED: Final = ("train_loss", "train_acc", "val_loss", "val_acc", "weight_norm", "weight_norm_all")


@dataclass(frozen=True)
class ShownRun:
    """One stored run with its curves."""

    row: Mapping[str, Any]
    """Its row, plain values by column name."""
    curves: pd.DataFrame
    logged: pd.Series
    """What training logged, such as spikes, by step."""

    @classmethod
    def read(cls, store: Store, words: Sequence[str]) -> ShownRun:
        """Return the run whose run_id begins with the only word, or the one that filters such as ``seed=8`` choose.

        Raises:
            StoreError: no run, or several, are meant.
            ConfigError: a filter names no column.
        """
        several = len(words) > 1 or is_filter(words[0])
        run_id = _chosen(store, words) if several else str(store.run(words[0])["run_id"])
        logged = store.steps([run_id], ["event"]).set_index("step")["event"].dropna()
        return cls(store.table("runs", [run_id], None).to_pylist()[0], store.curves([run_id]), logged)

    @cached_property
    def events(self) -> dict[str, int]:
        """The steps of the events that happened, in their order, by the name of their column without ``_step``.

        What training logged comes with its number: ``spike 1``, ``spike 2``.
        """
        names = [name for name in self.row if name.endswith("_step") and name != "branch_step"]
        steps = {name.removesuffix("_step"): self.row[name] for name in names if self.row[name] is not None}
        number = self.logged.groupby(self.logged).cumcount() + 1
        steps |= {
            f"{kind} {n}": at for at, kind, n in zip(self.logged.index.tolist(), self.logged, number, strict=True)
        }
        return dict(sorted(steps.items(), key=lambda item: item[1]))

    @property
    def marks(self) -> dict[str, int]:
        """The steps of the events by their letters below a plot."""
        return dict(zip("abcdefghijklmnopqrstuvwxyz", self.events.values(), strict=False))

    def condition(self) -> dict[str, Any]:
        """Return the settings that can change a result and differ from the mode's defaults."""
        mode = MODES[self.row["mode"]]
        defaults = flatten(mode())
        names = [name for name, (_, rule) in recorded_of(mode).items() if rule.role != "none" and name != "replicate"]
        return {n: self.row[f"config.{n}"] for n in names if self.row[f"config.{n}"] != defaults[n] and n != "mode"}

    def own_metrics(self) -> dict[str, float]:
        """Return the last values of the metrics of the user's own, by name."""
        measured = [json.loads(text) for text in self.curves["metrics"].dropna()] or [{}]
        names = json.loads(self.row.get("config.eval.metric_plugins") or "{}")
        own = {n: v for n, v in measured[-1].items() if any(n == name or n.startswith(f"{name}_") for name in names)}
        return {name: math.nan if value is None else value for name, value in own.items()}

    def panels(self) -> Iterator[tuple[str, list[pd.Series], bool]]:
        """Yield for each panel its title, its curves (the last one on top), and whether its scale is logarithmic."""
        panels = (
            ("accuracy", ("train_acc", "val_acc"), False),
            ("loss", ("train_loss", "val_loss"), self.row["mode"] == "arithmetic"),
            ("weight norm", ("weight_norm",), False),
        )
        for title, columns, log in panels:
            lines = [pd.Series(floats(self.curves[name]), self.curves["step"], name=name) for name in columns]
            if lines := [line for line in lines if np.isfinite(line).any()]:
                yield title, lines, log


def report(run: ShownRun, store: str, ascii_only: bool) -> Iterator[str]:
    """Yield the lines of the page: settings, seeds, results, events, provenance and plots."""
    row = run.row
    # how far a failed run came is unknown where its worker died
    steps = "" if row["status"] == "failed" and not row["steps"] else f" after {row['steps']:,} steps"
    why = f" ({row['stop_reason']})" if row["stop_reason"] not in (None, "steps") else ""
    yield f"run {row['run_id']}  {row['mode']}, {row['status']}{why}{steps}"
    if row["error"]:
        yield f"error       {row['error']}"
    if row["parent_run_id"]:
        yield f"branch      of {row['parent_run_id']} from step {row['branch_step']:,}"
    experiment = f"experiment={row['config.experiment']}: " if row["config.experiment"] else ""
    condition = ", ".join(f"{name}={value}" for name, value in run.condition().items())
    yield f"condition   {experiment}{condition or 'all settings are the defaults'}"
    replicate = f", replicate {row['replicate']}" if row["replicate"] else ""
    yield f"seed        {row['seed']}{replicate}"
    for stream in STREAMS:
        if (seed := row[f"seed_{stream}"]) is None:  # the run is older than the stream
            continue
        yield f"  {stream:9} {seed}{'' if seed == derive_seed(row['seed'], stream) else '  (given)'}"
    for name, seed in json.loads(row["layers"]).items():
        yield f"  layer     {name}: {seed}"
    if row["config.switch.order"] is not None:
        yield f"  order     {row['config.switch.order']}  (after step {row['branch_step']:,})"
    final = [f"{name} {row[name]:.4g}" for name in MEASURED if row[name] is not None]
    yield f"at the end  {', '.join(final) or 'nothing was measured'}"
    if own := run.own_metrics():
        yield f"own metrics {', '.join(f'{name} {value:.4g}' for name, value in own.items())}"
    events = [f"{letter} {name} {step:,}" for letter, (name, step) in zip(run.marks, run.events.items(), strict=False)]
    more = f" and {len(run.events) - len(events):,} more" * (len(run.events) > len(events))
    yield f"events      {', '.join(events) or 'none'}{more}"
    yield f"weights     {row['weights_hash'] or 'no hash'}"
    yield f"numerics    {row['numerics']}"
    yield f"code        {row['git_commit'] or 'no commit'}{' with uncommitted changes' if row['git_dirty'] else ''}"
    for path, version in json.loads(row["own_code"] or "{}").items():
        yield f"own code    {path} {version}"
    started = f"{row['started_at']:%Y-%m-%d %H:%M} UTC" if row["started_at"] else "an unknown time"
    spent = f", {duration(row['seconds'])}" if row["seconds"] is not None else ""
    yield f"trained     {started} on {row['host']} ({row['device']}){spent}"
    if row["data_hash"]:
        yield f"data        {row['config.data.path']} (hash {row['data_hash']})"
    for title, lines, log in run.panels():
        signs = ("*", ".") if ascii_only else ("⠒⠒", "··")  # of the line on top, and of the others
        names = " and ".join(f"{signs[i < len(lines) - 1]} {line.name}" for i, line in enumerate(lines))
        yield ""
        yield f"{title}: {names}{', logarithmic' if log else ''}"
        limits = (0.0, 1.0) if title == "accuracy" else ()
        yield from draw(
            lines, width=WIDTH, height=HEIGHT, log=log, limits=limits, marks=run.marks, ascii_only=ascii_only
        )
    yield ""
    yield f"train it again: {row['rerun']}"
    if row["status"] != "failed":
        again = ["grok", "run", "--again", row["run_id"][:12], "--store", shlex.quote(store)]
        with suppress(ConfigError):  # settings of an older version: the command then says what is wrong with them
            again += words_of_own_code(row)
        yield f"compare its bits: {' '.join(again)}"


def _chosen(store: Store, words: Sequence[str]) -> str:
    """Return the name of the one run that all filters choose."""
    root = store.layout.root
    chosen = list(filtered(Observations.read(root), words)["run"])
    if len(chosen) != 1:
        some = ", ".join(run[:12] for run in chosen[:4]) + (", ..." if len(chosen) > 4 else "")
        raise StoreError(
            f"{' '.join(words)}: {len(chosen)} runs of {root}{f' ({some})' if chosen else ''}: expected filters that "
            "choose one; `grok list` shows the runs"
        )
    return str(chosen[0])


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok show",
        description="One stored run: its settings, seeds, events and curves.",
        epilog="example: grok show 3f2a --store results/store",
    )
    parser.add_argument(
        "run", metavar="RUN", nargs="+", help="the beginning of one run_id, or filters that choose one: seed=8"
    )
    parser.add_argument("--store", metavar="STORE", default="results/store", help="its store (default: %(default)s)")
    return parser


@command()
def main(argv: list[str]) -> int:
    """Print a run."""
    words = parser().parse_args(argv)
    run = ShownRun.read(open_store(words.store), words.run)
    encoding = (sys.stdout.encoding or "ascii").lower()
    for line in report(run, words.store, not encoding.startswith("utf")):
        print(visible(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
