"""``grok report STORE [--out DIR] [--watch]``: one page with all answers, its figures and their data.

Writes report.html (self-contained), report.json, figures/NAME.{png,svg,csv}, tables/NAME.csv
and seeds.csv below DIR (default: STORE/report). With ``--watch`` it writes them again whenever the
store grows, and the page reloads itself, until Ctrl-C.
"""

from __future__ import annotations

import sys

from analysis.answers import compile_report
from analysis.command import reading_parser
from analysis.observations import Observations
from analysis.own import own_studies
from analysis.watch import EVERY, watch
from analysis.writing import default_folder, write_report
from grok.cli.command import Parser, command, store_of
from grok.cli.output import refuse_unwritable_folder


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
    refuse_unwritable_folder("--out", out)
    if arguments.watch:
        return watch(store, out, max(1, arguments.every), own)
    report = compile_report(Observations.read(store), own)
    page = write_report(report, out)
    if not report.provenance.runs:
        print(f"{store} has no finished run yet; train some: {report.first_command}")
    elif report.provenance.statuses.keys() == {"failed"}:
        print(f"{store} has no finished run: all of its runs failed; see: grok store status {store}")
    for study in report.studies:
        for finding in study.findings:
            if finding.headline:
                print(f"{finding.label:24s} {finding.brief}")
    print(f"report: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
