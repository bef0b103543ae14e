"""A report as one self-contained, interactive HTML page. The page loads no other file."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from numpy.typing import NDArray

from grok.analysis.figures import style
from grok.analysis.glossary import EVERYDAY, TERMS

if TYPE_CHECKING:
    from grok.analysis.answers import Report
    from grok.analysis.studies.base import Finding, Study

# Text of the page: tooltips of glossary words, and cells of tables.

_TERM: Final = re.compile(
    r"\b(" + "|".join(re.escape(t) for t in sorted(TERMS.keys() - EVERYDAY, key=len, reverse=True)) + r")(s?)\b",
    re.IGNORECASE,
)
_WITH_TIP: Final = Markup('<span class="term" tabindex="0">{}<span class="tip" role="tooltip">{}</span></span>')
_BY_LOWER: Final = {term.lower(): meaning for term, meaning in TERMS.items()}


def with_terms(text: str) -> Markup:
    """Return escaped ``text`` with a tooltip (hover, focus or touch) at the first use of each glossary word."""
    if isinstance(text, Markup):
        text = text.unescape()
    seen: set[str] = set()
    parts, end = [], 0
    for match in _TERM.finditer(text):  # the text is escaped afterwards: a word such as "norm's fall" has an apostrophe
        word = match.group(1).lower()
        if word in seen:
            continue
        seen.add(word)
        parts += [escape(text[end : match.start()]), _WITH_TIP.format(match.group(0), _BY_LOWER[word])]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def cell(value: object, column: str = "") -> str:
    """Return a table cell as text; a seed stands as it is typed."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 or value.is_integer() else f"{value:.4g}"
    if isinstance(value, int) and abs(value) < 10**9 and not (column.endswith("seed") or column.startswith("seed_")):
        return f"{value:,}"
    return str(value)


def is_numeric(column: pd.Series) -> bool:
    """Return whether a column has numbers, which are aligned to the right."""
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


# The numbers of the charts and the long tables, in a compact form for the page.
#
# Curves are thinned to ``POINTS`` evaluations per chart, and values have 16 bits, which is as much as
# a screen can show. The csv files beside the page have every number.

POINTS: Final = 120_000
"""Largest number of evaluations of one chart in the page."""
FEWEST_POINTS: Final = 40
"""Smallest number of evaluations of a thinned curve; if this is still too much, whole curves are left out."""
KEY: Final = 10
"""Number of first characters of a ``run_id`` that identify a run in the page."""
LOG_FROM: Final = 100.0
"""Ratio of largest to smallest value above which the 16 bits encode the logarithm."""
MISSING: Final = 65535
"""Code of a missing value."""
NAMES: Final = {light: name for name, light in style.LIGHT.items()}


class Runs:
    """The runs of the page, numbered in order of first use."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = {run[:KEY]: label for run, label in labels.items()}
        self.numbers: dict[str, int] = {}

    def number(self, run: str) -> int:
        """Return the number of a run, given by its id or the beginning of it."""
        return self.numbers.setdefault(str(run)[:KEY], len(self.numbers))

    def as_json(self) -> dict[str, list[str]]:
        """Return keys and labels in order of the numbers."""
        return {"keys": list(self.numbers), "labels": [self.labels.get(key, key) for key in self.numbers]}


def quantised(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return ``values`` in 16 bits: their codes in base64, the ends of their range, whether codes are logarithmic."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    log = bool(low > 0 and high / low > LOG_FROM)
    x, a, b = (np.log(np.where(values > 0, values, low)), np.log(low), np.log(high)) if log else (values, low, high)
    unit = (x - a) / (b - a) if b > a else np.zeros_like(x)
    code = np.where(np.isfinite(values), np.round(np.nan_to_num(unit) * (MISSING - 1)), MISSING)
    text = base64.b64encode(code.astype("<u2").tobytes()).decode("ascii")
    return {"low": low, "high": high, "log": log, "codes": text}


def plain(values: Iterable[Any]) -> list[Any]:
    """Return numbers for JSON: NaN and infinity as null, others with six significant digits."""
    return [None if not np.isfinite(v) else int(v) if float(v).is_integer() else float(f"{v:.6g}") for v in values]


def kept_runs(layers: Sequence[style.Lines], points: int = POINTS) -> tuple[set[str], int]:
    """Return the runs whose curves the page keeps, and the largest number of evaluations per curve.

    All runs are kept if ``points`` allows ``FEWEST_POINTS`` for each. Otherwise those that are always
    drawn are kept, and others spread evenly over the order of ``run_id``.
    """
    every = sorted({str(r) for layer in layers for r in layer.frame["run_id"].unique()})
    if not every:
        return set(), FEWEST_POINTS
    room = points // FEWEST_POINTS
    chosen = set().union(*(layer.drawn for layer in layers)) & set(every)
    if len(every) <= room:
        chosen = set(every)
    elif len(chosen) < room:
        rest = [run for run in every if run not in chosen]
        chosen |= {rest[i] for i in np.linspace(0, len(rest) - 1, room - len(chosen)).astype(int)}
    return chosen, max(FEWEST_POINTS, points // len(chosen))


def interactive(charts: Sequence[style.Chart]) -> bool:
    """Return whether the page draws these charts; it shows the picture of others, and of those with names of rows."""
    return len(charts) > 0 and not any(
        chart.y.ticks is not None or any(isinstance(layer, style.Cells) for layer in chart.layers) for chart in charts
    )


def encode_chart(chart: style.Chart, runs: Runs) -> dict[str, Any]:
    """Return a chart as JSON."""
    lines = [layer for layer in chart.layers if isinstance(layer, style.Lines)]
    kept, most = kept_runs(lines)
    encoded: dict[str, Any] = {
        "x": _axis(chart.x),
        "y": _axis(chart.y),
        "title": chart.title,
        "layers": [_layer(layer, runs, kept, most) for layer in chart.layers],
    }
    if lines:
        encoded["curves"] = [len(kept), len({r for layer in lines for r in layer.frame["run_id"].unique()})]
    if chart.marks is not None:
        marks = chart.marks[np.isfinite(chart.marks.to_numpy(dtype=float))]
        encoded["marks"] = {
            "runs": [runs.number(r) for r in marks.index],
            "x": quantised(marks.to_numpy(dtype=float)),
        }
    return encoded


def _axis(axis: style.ChartAxis) -> dict[str, Any]:
    ticks = None if axis.ticks is None else [list(axis.ticks), list(axis.ticks.values())]
    return vars(axis) | {"ticks": ticks}


COLUMNS: Final[dict[type[style.Layer], tuple[str, ...]]] = {
    style.Bars: ("low", "high", "count"),
    style.Band: ("x", "value", "low", "high"),
    style.Intervals: ("place", "value", "low", "high"),
    style.Points: ("x", "y"),
}
"""Columns of numbers of the page's layers."""


def _layer(layer: style.Layer, runs: Runs, kept: set[str], most: int) -> dict[str, Any]:
    kind = type(layer).__name__.lower()
    options = {
        k: v for k, v in vars(layer).items() if not isinstance(v, pd.DataFrame | frozenset) and k not in ("x", "y")
    }
    encoded = options | {"kind": kind, "colour": NAMES.get(getattr(layer, "colour", ""), "blue")}
    if isinstance(layer, style.Lines):
        return encoded | _curves(layer, runs, kept, most)
    if isinstance(layer, style.Rule | style.Cells):
        return encoded
    frame = layer.frame
    encoded |= {name: plain(frame[name].to_numpy(dtype=float)) for name in COLUMNS[type(layer)]}
    if isinstance(layer, style.Points):
        encoded["runs"] = [runs.number(run) for run in frame["run_id"]] if "run_id" in frame else []
        encoded["times"] = plain(frame["times"]) if "times" in frame else None
    return encoded


def _curves(layer: style.Lines, runs: Runs, kept: set[str], most: int) -> dict[str, Any]:
    columns = list(dict.fromkeys(["run_id", "step", layer.x, layer.y]))
    frame = layer.frame[columns].dropna()
    frame = frame[frame["run_id"].isin(kept)]
    every = dict(list(frame.groupby("run_id", sort=False)))
    parts = {run: part.iloc[thinned(len(part), most)] for run, part in every.items()}
    shown = pd.concat(parts.values()) if parts else frame
    grids: dict[tuple[int, ...], int] = {}
    encoded = {
        "runs": [runs.number(str(run)) for run in parts],
        "drawn": [int(run in layer.drawn) for run in parts],
        "grid": [grids.setdefault(tuple(part["step"].astype(int).tolist()), len(grids)) for part in parts.values()],
        "grids": list(grids),
        "y": quantised(shown[layer.y].to_numpy(dtype=float)),
    }
    if layer.x != "step":
        encoded["x"] = quantised(shown[layer.x].to_numpy(dtype=float))
    return encoded


def thinned(length: int, most: int) -> NDArray[np.int64]:
    """Return at most ``most`` indices below ``length``, evenly spaced, including the first and the last."""
    if length <= most:
        return np.arange(length)
    return np.unique(np.linspace(0, length - 1, most).astype(np.int64))


def encode_table(frame: pd.DataFrame, code: Sequence[str], runs: Runs) -> dict[str, Any]:
    """Return a long table by columns; with a column of run ids also the number of each row's run."""
    columns = []
    for name in frame:
        column = frame[name]
        if is_numeric(column):
            values = plain(column.astype("Float64").to_numpy(dtype=float, na_value=np.nan))
            columns.append({"name": str(name), "kind": "number", "values": values})
            continue
        codes, words = pd.factorize(np.array([cell(v) for v in column], dtype=object))
        few = 2 * len(words) <= len(codes)
        held = {"words": words.tolist(), "values": codes.tolist()} if few else {"values": words[codes].tolist()}
        columns.append({"name": str(name), "kind": "code" if name in code else "text", **held})
    encoded: dict[str, Any] = {"columns": columns, "rows": len(frame)}
    key = run_column(frame)
    if key is not None:
        encoded["runs"] = [runs.number(r) for r in frame[key]]
    return encoded


def run_column(frame: pd.DataFrame) -> str | None:
    """Return the name of the column of run ids; None if there is none."""
    return next((name for name in ("run_id", "run") if name in frame), None)


def packed(data: dict[str, Any]) -> str:
    """Return JSON as base64 of its gzip: the same bytes for the same data."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode("ascii")


# The page of a report: one file with its style, script and numbers.

PER_INCH: Final = 110
"""Pixels of an inch of a picture: then its text is as large as the page's."""
LONG: Final = 30
"""Number of rows above which a table is kept as data and only its visible rows are drawn."""
FIRST: Final = 20
"""Rows of a long table that a browser without scripts shows."""
SCRIPTS: Final = ("selection.js", "charts.js", "layers.js", "tables.js", "page.js")


def colours(dark: bool) -> str:
    """Return the palette as CSS variables."""
    return "".join(f"--f-{name}:{pair[int(dark)]};" for name, pair in style.PALETTE.items())


@cache
def _file(*path: str) -> str:
    return resources.files("grok.analysis.page").joinpath(*path).read_text(encoding="utf-8")


def script() -> str:
    """Return the page's scripts: the library, then our own."""
    own = "\n".join(_file("templates", name) for name in SCRIPTS)
    return f'{_file("vendor", "uplot", "uPlot.iife.min.js")}\n(() => {{\n"use strict";\n{own}\n}})();\n'


def lead_of(studies: Sequence[Study], drawings: Sequence[style.Drawing]) -> style.Drawing | None:
    """Return the figure for the top of the page: the first that a study leads with, else the first."""
    wanted = [study.lead for study in studies]
    return next((d for name in wanted for d in drawings if d.name == name), drawings[0] if drawings else None)


def answers_of(study: Study, above: str) -> list[Finding]:
    """Return the finding that leads a section, or one for each of its parts; none if the text ``above`` said them."""
    new = [f for f in study.findings if (f.shown if study.of_seeds else f.text) not in above]
    shown = study.findings if study.parts and any(f.headline for f in new) else new
    leading = [f for f in shown if f.headline] or [f for f in shown if f.listed][:1]
    return leading if study.parts else leading[:1]


def render(report: Report, drawn: dict[str, list[style.Drawing]], reload_seconds: int | None = None) -> str:
    """Return the page of ``report`` with the figures of each study.

    ``reload_seconds``: seconds after which the page reloads itself (None: never).
    """
    environment = Environment(
        loader=PackageLoader("grok.analysis.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"terms": with_terms, "cell": cell}
    environment.globals |= {"is_numeric": is_numeric, "run_column": run_column, "key_length": KEY, "PER_INCH": PER_INCH}
    runs = Runs(report.labels)
    shown = [drawing for group in drawn.values() for drawing in group if interactive(drawing.charts)]
    lead = lead_of(report.studies, [drawing for group in drawn.values() for drawing in group])
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
        lead=lead,
        answers={study.name: answers_of(study, report.sentence) for study in report.studies},
        lead_svg=Markup(lead.svg) if lead else "",
        figures={
            name: [(d, Markup(d.svg)) for d in group if d is not lead and not (lead and d.numbers == lead.numbers)]
            for name, group in drawn.items()
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
        terms=sorted(TERMS.items(), key=lambda item: item[0].lower()),
    )


__all__ = ["cell", "render", "with_terms"]
