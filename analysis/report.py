"""``grok report STORE [--out DIR] [--watch]``: one page with all answers, its figures and their data.

Writes report.html (self-contained), report.json, figures/NAME.{png,svg,csv}, tables/NAME.csv
and seeds.csv below DIR (default: STORE/report). With ``--watch`` it writes them again whenever the
store grows, and the page reloads itself, until Ctrl-C.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analysis.answers import Own, Report, compile_report, own_studies
from analysis.observations import Observations
from analysis.study import reading_parser
from analysis.writing import default_folder, write_answers, write_page, write_report
from grok.commands.command import Parser, command, refuse_unwritable, store_of
from grok.errors import StoreError
from grok.store import check_path

if TYPE_CHECKING:
    from analysis.figures.style import Drawing

# Rewrites the report of a store while a sweep runs.

EVERY: Final = 10
"""Seconds between two checks of the store."""
FOLDERS: Final = {"runs": "*.*", "sweeps": "*.*", "search": "*.*", "live": "*/*.run"}
"""Files that change when a store grows: of finished runs, planned sweeps, searches, and curves of runs in flight."""
PATIENCE: Final = 3
"""Failed reads in a row after which the error is raised."""


def watch(store: Path, out: Path, every: int, own: Sequence[Own] = ()) -> int:
    """Write the report of ``store`` whenever it has grown, with a check every ``every`` seconds; return 0 on Ctrl-C.

    If the store does not exist yet, wait for it.

    Raises:
        StoreError: ``store`` is no store, or stays unreadable, or ``out`` cannot be written.
    """
    seen: object = None
    failures = 0
    written: tuple[Report, dict[str, list[Drawing]]] | None = None
    print(f"watching {store}: checks every {every} s, Ctrl-C ends it", flush=True)
    try:
        while True:
            now = state(store) if check_path(store, to_write=False) else None
            if now is not None and now != seen:
                try:
                    report = compile_report(Observations.read(store), own)
                except StoreError:
                    # A compaction can remove a shard between listing and reading it.
                    failures += 1
                    if failures >= PATIENCE:
                        raise
                else:
                    failures, seen = 0, now
                    written = report, write_answers(report, out)
                    page = write_page(*written, out, reload_seconds=every)
                    print(f"{time.strftime('%H:%M:%S')}  {report.provenance.runs:,} runs  {page}", flush=True)
            time.sleep(every)
    except KeyboardInterrupt:
        if written is None:
            print(f"\nstopped: {store} has no runs yet")
        else:
            print(f"\nstopped: {written[0].provenance.runs:,} runs in {write_page(*written, out)}")
    return 0


def state(store: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of every file that a new run, sweep or search adds or changes."""
    files = []
    for folder, pattern in FOLDERS.items():
        for file in sorted((store / folder).glob(pattern)):
            try:
                stat = file.stat()
            except FileNotFoundError:  # removed by a compaction
                continue
            files.append((f"{folder}/{file.name}", stat.st_size, stat.st_mtime_ns))
    return tuple(files)


# ``grok report STORE [--out DIR] [--watch]``: one page with all answers, its figures and their data.


def parser() -> Parser:
    """Return the command's arguments."""
    description = "Write the report of a store: one page, its figures, and the data behind them."
    made = reading_parser(Parser(prog="grok report", description=description))
    made.add_argument(
        "--with",
        dest="own",
        metavar="MODULE.NAME",
        action="append",
        default=[],
        help="a figure or study of your own: a function of the store's observations; can be given several times",
    )
    made.add_argument("--plugin-path", metavar="DIR", default=".", help="folder of that module (default: this one)")
    made.add_argument("--watch", action="store_true", help="rewrite the report when the store grows, until Ctrl-C")
    made.add_argument(
        "--every", type=int, default=EVERY, metavar="SECONDS", help="seconds between checks (default: %(default)s)"
    )
    return made


@command()
def main(argv: list[str]) -> int:
    """Write the report and print its headlines."""
    arguments = parser().parse_args(argv)
    store = store_of(arguments)
    out = arguments.out or default_folder(store)
    own = own_studies(arguments.own, arguments.plugin_path)
    refuse_unwritable("--out", out, folder=True)
    if arguments.watch:
        return watch(store, out, max(1, arguments.every), own)
    report = compile_report(Observations.read(store), own)
    page = write_report(report, out)
    if not report.provenance.runs:
        print(f"{store} has no finished run yet; train some: {report.next_step.text}")
    elif report.provenance.statuses.keys() == {"failed"}:
        print(f"{store} has no finished run: all of its runs failed; see: grok store status {store}")
    for line in [report.sentence, *report.provenance.pending] if report.provenance.runs else []:
        print(line)
    headlines = [finding for study in report.studies for finding in study.headlines]
    width = min(60, max((len(finding.label) for finding in headlines), default=0))
    for finding in headlines:
        print(f"{finding.label:{width}s} {finding.brief}")
    print(f"report: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
