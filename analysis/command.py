"""What the single-study commands share: read a store, print one study, write its figures and tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.observations import Observations
from analysis.studies.base import Missing, Question, Study
from grok.errors import GrokError, StoreError


def answer(prog: str, question: Question, argv: list[str] | None, only: tuple[str, ...] | None = None) -> int:
    """Print the study of ``question`` and write its figures; return the exit status (0 answered or not yet, 2 refused).

    ``only`` names the tables to print; None prints all.
    """
    parser = argparse.ArgumentParser(prog=f"python -m analysis.{prog}", description=question.question)
    parser.add_argument("store", type=Path, help="folder of the store")
    parser.add_argument("--out", type=Path, default=None, help="folder of the figures (default: STORE/report)")
    given = parser.parse_args(argv)
    try:
        study = question.ask(Observations.read(given.store))
        if isinstance(study, Missing):
            print(f"{question.title}: not enough data: needs {study.needs}\nget it with: {study.command}")
            return 0
        show(study, only)
        for path in write_figures(study, given.out or given.store / "report"):
            print(f"figure: {path}")
    except GrokError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def show(study: Study, only: tuple[str, ...] | None = None) -> None:
    """Print a study as text."""
    print(f"{study.title}: {study.question}")
    for finding in study.findings:
        print(f"  {finding.text}")
    for note in study.notes:
        print(f"  note: {note}")
    for table in study.tables:
        if (only is None or table.name in only) and len(table.frame):
            print(f"\n{table.caption}\n{table.frame.to_string(index=False)}")


def write_figures(study: Study, out: Path) -> list[Path]:
    """Write a study's figures (png, svg, csv) and tables (csv) below ``out``; return the pictures' paths.

    Raises:
        StoreError: ``out`` cannot be written.
    """
    from analysis.figures import drawings

    figures, tables = out / "figures", out / "tables"
    made = []
    try:
        for folder in (figures, tables):
            folder.mkdir(parents=True, exist_ok=True)
        for drawing in drawings(study):
            drawing.write(figures)
            made.append(figures / f"{drawing.name}.png")
        for table in study.tables:
            table.frame.to_csv(tables / f"{study.name}_{table.name}.csv", index=False)
    except OSError as error:
        raise StoreError(f"--out {out}: cannot be written ({error.strerror}); give a folder that can") from error
    return made
