"""The page of a report: one file with its style, script and numbers."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures.style import PALETTE, Drawing
from analysis.glossary import TERMS
from analysis.page.encoding import KEY, Runs, encode_chart, encode_table, interactive, packed, run_column
from analysis.page.text import cell, is_numeric, with_terms

if TYPE_CHECKING:
    from analysis.answers import Report

LONG: Final = 30
"""Number of rows above which a table is kept as data and only its visible rows are drawn."""
FIRST: Final = 20
"""Rows of a long table that a browser without scripts shows."""
SCRIPTS: Final = ("selection.js", "charts.js", "layers.js", "tables.js", "page.js")


def colours(dark: bool) -> str:
    """Return the palette as CSS variables."""
    return "".join(f"--f-{name}:{pair[int(dark)]};" for name, pair in PALETTE.items())


@cache
def _file(*path: str) -> str:
    return resources.files("analysis.page").joinpath(*path).read_text(encoding="utf-8")


def script() -> str:
    """Return the page's scripts: the library, then our own."""
    own = "\n".join(_file("templates", name) for name in SCRIPTS)
    return f'{_file("vendor", "uplot", "uPlot.iife.min.js")}\n(() => {{\n"use strict";\n{own}\n}})();\n'


def render(report: Report, drawn: dict[str, list[Drawing]], reload_seconds: int | None = None) -> str:
    """Return the page of ``report`` with the figures of each study.

    ``reload_seconds``: seconds after which the page reloads itself (None: never).
    """
    environment = Environment(
        loader=PackageLoader("analysis.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"terms": with_terms, "cell": cell}
    environment.globals |= {"is_numeric": is_numeric, "run_column": run_column, "key_length": KEY}
    runs = Runs(report.labels)
    shown = [drawing for group in drawn.values() for drawing in group if interactive(drawing.charts)]
    charts = {drawing.name: [encode_chart(chart, runs) for chart in drawing.charts] for drawing in shown}
    tables: dict[str, Any] = {
        f"{study.name}_{table.name}": encode_table(table.frame, table.code, runs)
        for study in report.studies
        for table in study.tables
        if len(table.frame) > LONG
    }
    for study in report.studies:
        for table in study.tables:
            column = run_column(table.frame)
            for run in table.frame[column] if column and len(table.frame) <= LONG else ():
                runs.number(run)
    code = script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii")
    return environment.get_template("report.html.j2").render(
        report=report,
        figures={
            name: [[(d, Markup(d.svg)) for d in same] for _, same in groupby(every, key=lambda d: d.about)]
            for name, every in drawn.items()
        },
        light=Markup(colours(False)),
        dark=Markup(colours(True)),
        library_style=Markup(_file("vendor", "uplot", "uPlot.min.css")),
        script=Markup(code),
        script_digest=digest,
        live=charts.keys(),
        data=packed({"runs": runs.as_json(), "charts": charts, "tables": tables}),
        long=LONG,
        first=FIRST,
        reload_seconds=reload_seconds,
        started=[gap for gap in report.missing if gap.started],
        absent=[gap for gap in report.missing if not gap.started],
        terms=sorted(TERMS.items(), key=lambda item: item[0].lower()),
    )
