"""``python -m analysis.report STORE [--out DIR]``: one page that answers, with its figures and their data.

Writes report.html (self-contained), report.json, figures/NAME.{png,svg,csv} and
tables/NAME.csv below DIR (default: STORE/report).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from analysis.answers import Report, compile_report
from analysis.command import reading_parser
from analysis.observations import Observations
from analysis.writing import write_studies, writing_below
from grok.cli.command import Parser, command, store_of


def write_report(report: Report, out: Path) -> Path:
    """Write the report below ``out``; return the page's path.

    Raises:
        StoreError: ``out`` cannot be written.
    """
    from analysis.page import render

    drawn = write_studies(report.studies, out)
    with writing_below(out):
        text = json.dumps(report.as_json(), indent=1, ensure_ascii=False)
        (out / "report.json").write_text(text + "\n", encoding="utf-8")
        page = out / "report.html"
        page.write_text(render(report, drawn), encoding="utf-8")
    return page


def parser() -> Parser:
    """Return the command's arguments."""
    return reading_parser("report", "Write the report of a store: one page, its figures, and the data behind them.")


@command()
def main(argv: list[str]) -> int:
    """Write the report and print its headlines."""
    given = parser().parse_args(argv)
    store = store_of(given)
    report = compile_report(Observations.read(store))
    page = write_report(report, given.out or store / "report")
    if not report.provenance.runs:
        print(f"{store} holds no finished run yet; train some: python -m grok.run -m 'seed=range(0,64)'")
    elif report.provenance.statuses.keys() == {"failed"}:
        print(f"{store} holds no finished run: all of its runs failed; python -m grok.store status {store}")
    for study in report.studies:
        for finding in study.findings:
            if finding.headline:
                print(f"{finding.label:24s} {finding.shown}")
    print(f"report: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
