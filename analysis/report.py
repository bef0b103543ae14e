"""``python -m analysis.report STORE [--out DIR]``: one page that answers, with its figures and their data.

Writes report.html (self-contained), report.json, figures/NAME.{png,svg,csv} and
tables/NAME.csv below DIR (default: STORE/report).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from analysis.answers import Report, compile_report
from analysis.observations import Observations
from grok.errors import GrokError, StoreError


def write_report(report: Report, out: Path) -> Path:
    """Write the report below ``out``; return the page's path.

    Raises:
        StoreError: ``out`` cannot be written.
    """
    from analysis.figures import drawings
    from analysis.page import render

    figures, tables = out / "figures", out / "tables"
    try:
        for folder in (figures, tables):
            folder.mkdir(parents=True, exist_ok=True)
        drawn = {study.name: drawings(study) for study in report.studies}
        for drawing in (d for group in drawn.values() for d in group):
            drawing.write(figures)
        for study in report.studies:
            for table in study.tables:
                table.frame.to_csv(tables / f"{study.name}_{table.name}.csv", index=False)
            for name, frame in study.files.items():
                frame.to_csv(out / name, index=False)
        text = json.dumps(report.as_json(), indent=1, ensure_ascii=False)
        (out / "report.json").write_text(text + "\n", encoding="utf-8")
        page = out / "report.html"
        page.write_text(render(report, drawn), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"--out {out}: cannot be written ({error.strerror}); give a folder that can") from error
    return page


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status (0 written, 2 refused)."""
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Write the report of a store.")
    parser.add_argument("store", type=Path, help="folder of the store")
    parser.add_argument("--out", type=Path, default=None, help="folder of the report (default: STORE/report)")
    given = parser.parse_args(argv)
    try:
        report = compile_report(Observations.read(given.store))
        page = write_report(report, given.out or given.store / "report")
    except GrokError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_status
    if not report.provenance.runs:
        print(f"{given.store} holds no finished run yet; train some: python -m grok.run -m 'seed=range(0,64)'")
    elif report.provenance.statuses.keys() == {"failed"}:
        print(f"{given.store} holds no finished run: all of its runs failed; python -m grok.store status {given.store}")
    for study in report.studies:
        for finding in study.findings:
            if finding.headline:
                print(f"{finding.label:24s} {finding.shown}")
    print(f"report: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
