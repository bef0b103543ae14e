"""``grok report STORE [--out DIR] [--watch]``: one page with all answers, its figures and their data.

It writes report.html (self-contained), report.json, figures/NAME.{png,svg,csv}, tables/NAME.csv
and seeds.csv below DIR (default: STORE/report). With ``--watch`` it writes them again whenever the
store grows, and the page reloads itself, until Ctrl-C. ``--only NAME`` prints one answer.
"""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd

from grok.analysis import writing
from grok.analysis.answers import Report, compile_report, own_studies, unfinished
from grok.analysis.observations import Observations
from grok.analysis.studies import BY_NAME, QUESTIONS, Missing
from grok.commands.command import Parser, add_store, command, refuse_unwritable, store_of
from grok.store import check_path
from grok.store.reader import is_owner_alive
from grok.untrusted import read_json_object

if TYPE_CHECKING:
    from grok.analysis.figures.style import Drawing

# Rewrites the report of a store while a sweep runs.

EVERY: Final = 10
"""Seconds between two checks of the store."""
FOLDERS: Final = ("runs", "sweeps", "search")
"""Folders of files that change when a store grows: of finished runs, planned sweeps and searches."""
HOUR: Final = pd.Timedelta(hours=1)


def watch(store: Path, out: Path, compiled: Callable[[Observations], Report], opens: bool) -> int:
    """Write the report of ``store`` whenever it has grown, with a check every `EVERY` seconds; return 0 on Ctrl-C.

    If the store does not exist yet, wait for it. ``compiled`` makes the report. ``opens``: open the first page.

    Raises:
        StoreError: ``store`` is no store, or stays unreadable, or ``out`` cannot be written.
    """
    seen: object = None
    written: tuple[Report, dict[str, list[Drawing]]] | None = None
    print(f"watching {store}: checks every {EVERY} s, Ctrl-C ends it", flush=True)
    try:
        while True:
            now = state(store) if check_path(store, to_write=False) else None
            if now is not None and now != seen:
                observations = Observations.read(store)
                report, seen = compiled(observations), now
                written = report, writing.write_answers(report, out)
                clock, runs = time.strftime("%H:%M:%S"), report.provenance.runs
                print(f"{clock}  {runs:,} runs  {out / writing.PAGE}", flush=True)
            if written and (stands := standing(store, observations)) != written[0].standing:
                written = replace(written[0], standing=stands), written[1]
                page = writing.write_page(*written, out, reload_seconds=EVERY)
                if opens:
                    opens = not webbrowser.open(page.resolve().as_uri())
            time.sleep(EVERY)
    except KeyboardInterrupt:
        if written is None:
            print(f"\nstopped: {store} has no runs yet")
        else:
            print(f"\nstopped: {written[0].provenance.runs:,} runs in {writing.write_page(*written, out)}")
    return 0


def state(store: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of every file that a new run, sweep or search adds or changes."""
    files = sorted(file for folder in FOLDERS for file in (store / folder).glob("*.*"))
    with suppress(FileNotFoundError):  # removed by a compaction
        return tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return ()


def standing(store: Path, observations: Observations) -> str:
    """Return how far the store's sweeps are: runs stored, planned, in flight, an hour, and failed."""
    runs = observations.all_runs
    ended = (runs["started_at"] + pd.to_timedelta(runs["seconds"].fillna(0), unit="s")).dropna()
    recent = ended[ended > ended.max() - HOUR]
    hours = (recent.max() - max(runs["started_at"][recent.index].min(), ended.max() - HOUR)) / HOUR
    flying = 0
    for file in (store / "live").glob("*/*.json"):
        with suppress(OSError, ValueError):  # its group has just ended
            flying += len(read_json_object(file).get("flying", ())) if is_owner_alive(file.parent) is not False else 0
    missing = sum(of.missing for of in unfinished(observations))
    words = [f"{len(runs):,} of {len(runs) + missing:,} runs stored", f"{flying or 'none'} in flight"]
    words += [f"{len(recent) / hours:,.0f} an hour"] if flying and len(recent) > 1 and hours > 0 else []
    failed = int((runs["status"] == "failed").sum())
    return ", ".join([*words, f"{failed} failed"] if failed else words)


def parser() -> Parser:
    """Return the command's arguments."""
    description = "Write the report of a store: one page, its figures, and the data behind them."
    width = max(map(len, BY_NAME))
    lines = "\n".join(f"  {question.name:<{width}} {question.question}" for question in QUESTIONS)
    made = Parser(prog="grok report", description=description, epilog=f"answers:\n{lines}")
    add_store(made)
    made.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: STORE/report)")
    made.add_argument(
        "--only", metavar="NAME", choices=BY_NAME, help="print one answer and write its figures; see below"
    )
    made.add_argument(
        "--with",
        dest="own",
        metavar="MODULE.NAME",
        action="append",
        default=[],
        help="a figure or study of your own: a function of the store's observations; can be given several times",
    )
    made.add_argument("--plugin-path", metavar="DIR", default=".", help="folder of that module (default: this one)")
    made.add_argument("--open", action="store_true", help="open the page in a browser")
    made.add_argument("--watch", action="store_true", help="rewrite the report when the store grows, until Ctrl-C")
    return made


def print_answer(name: str, store: Path, out: Path) -> None:
    """Print the store's answer to the question ``name``, and write its figures and tables below ``out``."""
    study = BY_NAME[name].ask(Observations.read(store))
    if isinstance(study, Missing):
        print(writing.missing_text(study))
        return
    print(writing.study_text(study))
    for drawing in writing.write_studies([study], out)[study.name]:
        print(f"figure: {out / writing.FIGURES / drawing.name}.png")


@command()
def main(argv: list[str]) -> int:
    """Write the report and print its headlines."""
    arguments = parser().parse_args(argv)
    store = store_of(arguments)
    out = arguments.out or writing.default_folder(store)
    own = own_studies(arguments.own, arguments.plugin_path)
    refuse_unwritable("--out", out, folder=True)
    if arguments.only is not None:
        print_answer(arguments.only, store, out)
        return 0
    compiled = partial(compile_report, own=own)
    if arguments.watch:
        return watch(store, out, compiled, arguments.open)
    report = compiled(Observations.read(store))
    page = writing.write_report(report, out)
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
    if arguments.open:
        webbrowser.open(page.resolve().as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main())
