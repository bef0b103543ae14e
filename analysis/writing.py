"""Writes studies and reports to a folder: the page, figures (png, svg, and their data as csv), tables (csv)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from grok.analysis.statistics.estimate import rounded, write_csv
from grok.analysis.studies import QUESTIONS
from grok.analysis.studies.base import Missing, Study
from grok.errors import ConfigError, StoreError, in_words
from grok.files import move, unique, write_flushed
from grok.terminal import visible
from grok.untrusted import read_json_object, refuse_links, unlinked

if TYPE_CHECKING:
    from grok.analysis.answers import Report
    from grok.analysis.figures.style import Drawing

REPORT, FIGURES, TABLES, PAGE = "report", "figures", "tables", "report.html"


def write_studies(studies: Sequence[Study], out: Path) -> dict[str, list[Drawing]]:
    """Write the figures and tables of ``studies`` below ``out``; return each study's drawings by its name.

    Raises:
        ConfigError: two of them have the same name, or a figure of the user's own has the name of another figure.
        StoreError: ``out`` cannot be written.
    """
    from grok.analysis.figures import drawings

    groups = [list(drawings(study)) for study in studies]
    _refuse_equal_names(studies, groups)
    drawn = {study.name: group for study, group in zip(studies, groups, strict=True)}
    with writing_below(out):
        refuse_links([out / FIGURES, out / TABLES], [])
        for folder in (FIGURES, TABLES):
            (out / folder).mkdir(parents=True, exist_ok=True)
        for drawing in (d for group in groups for d in group):
            drawing.write(out / FIGURES)
        for study in studies:
            for table in study.tables:
                write_csv(table.frame, unlinked(out / TABLES / f"{study.name}_{table.name}.csv"))
            for name, frame in study.files.items():
                write_csv(frame, unlinked(out / name))
    return drawn


def _refuse_equal_names(studies: Sequence[Study], groups: Sequence[Sequence[Drawing]]) -> None:
    """Refuse sections, figures, tables and files of the user's own that would replace others of the report.

    Raises:
        ConfigError: names them.
    """
    reports_own = {question.name for question in QUESTIONS}
    known: set[tuple[str, str]] = set()
    for study, group in sorted(zip(studies, groups, strict=True), key=lambda pair: pair[0].name not in reports_own):
        names = [("section", study.name), *(("file", name) for name in study.files)]
        names += [("table", f"{study.name}_{table.name}") for table in study.tables]
        names += [("figure", drawing.name) for drawing in group]
        for kind, name in names:
            key = (kind, name.casefold())  # some file systems do not distinguish case
            if key in known and study.name not in reports_own:
                raise ConfigError(f"two {kind}s of the report have the name {name!r}: give yours another name")
            known.add(key)


def write_report(report: Report, out: Path) -> Path:
    """Write the report below ``out``; return the page's path.

    Raises:
        StoreError: ``out`` cannot be written.
    """
    return write_page(report, write_answers(report, out), out)


def write_answers(report: Report, out: Path) -> dict[str, list[Drawing]]:
    """Write report.json and the studies of a report, but not the page; return the drawings by the study's name.

    Raises:
        StoreError: ``out`` cannot be written.
    """
    drawn = write_studies(report.studies, out)
    files = {f"{FIGURES}/{d.name}.{kind}" for group in drawn.values() for d in group for kind in ("png", "svg", "csv")}
    files |= {f"{TABLES}/{study.name}_{table.name}.csv" for study in report.studies for table in study.tables}
    with writing_below(out):
        for old in _earlier_files(out) - files:
            (out / old).unlink(missing_ok=True)
        text = json.dumps(rounded(report.as_json() | {"files": sorted(files)}), indent=1, ensure_ascii=False)
        unlinked(out / "report.json").write_text(text + "\n", encoding="utf-8")
    return drawn


def _earlier_files(out: Path) -> set[str]:
    """Return the figures and tables that the report before wrote below ``out``."""
    with suppress(OSError, ValueError, TypeError):
        names = read_json_object(out / "report.json").get("files", [])
        plain = re.compile(rf"({FIGURES}|{TABLES})/[\w-]+\.(png|svg|csv)")
        return {name for name in names if plain.fullmatch(str(name)) and (out / name).is_file()}
    return set()


def write_page(
    report: Report, drawn: dict[str, list[Drawing]], out: Path, reload_seconds: int | None = None, name: str = PAGE
) -> Path:
    """Write a page below ``out``, by a rename, so that a browser never reads an incomplete page; return its path.

    ``reload_seconds``: seconds after which the page reloads itself (None: never).

    Raises:
        StoreError: ``out`` cannot be written.
    """
    from grok.analysis.page import render

    data = visible(render(report, drawn, reload_seconds)).encode()
    staged = out / f".report.{unique()}"
    with writing_below(out):
        try:
            write_flushed(staged, lambda file: file.write(data))
            move(staged, out / name)
        finally:
            staged.unlink(missing_ok=True)
    return out / name


def default_folder(store: Path) -> Path:
    """Return the folder of a store's report unless ``--out`` names another one.

    Raises:
        StoreError: it is a link. Its target was chosen by whoever made the store, so it is not trusted.
    """
    refuse_links([store / REPORT], [])
    return store / REPORT


def missing_text(study: Missing) -> str:
    """Return what a question needs, and the command that provides it."""
    remedy = f"\nget it with: {study.command}" if study.command else ""
    return f"{study.title}: not enough data: needs {study.needs}{remedy}"


def study_text(study: Study) -> str:
    """Return a study as text: its scope, findings, notes and tables."""
    lines = [f"{study.title}: {study.question}"]
    lines += [f"  {text}" for text in (study.scope, *study.lacks) if text]
    lines += [f"  {finding.text}" for finding in study.findings]
    lines += [f"  note: {note}" for note in study.notes]
    for table in study.tables:
        if len(table.frame):
            lines.append(f"\n{table.caption}\n{table.frame.to_string(index=False)}")
    return "\n".join(lines)


def writing_below(out: Path) -> AbstractContextManager[None]:
    """Turn an error of the file system into a StoreError that names the folder ``out``."""
    return in_words(StoreError, f"--out {out} cannot be written: name another folder", OSError)
