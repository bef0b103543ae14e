"""The data dictionary: each column's meaning, its unit, and when it is null.

The settings themselves describe the ``config.*`` columns (:mod:`grok.config`). A test compares this dictionary with
the schema; the documentation's page *Columns* is made from it (``python -m docs.generate``).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

from grok.config import MODES
from grok.config.fields import settings_of, takes_null
from grok.config.stability import EVENTS
from grok.store.schema import CONFIG, schema


@dataclass(frozen=True, slots=True)
class Column:
    """The description of one column."""

    meaning: str
    unit: str = ""
    """Empty: a name, a text or a flag."""
    null: str = ""
    """When the value is null; empty: never."""


def _read() -> tuple[dict[str, dict[str, Column]], dict[str, tuple[str, str]]]:
    """Return the columns by table, and the measurements, of ``columns.toml``."""
    text = files("grok.store").joinpath("columns.toml").read_text(encoding="utf-8")
    events = "; ".join(f"`{name}`: {words}" for name, words in EVENTS.items())
    tables = tomllib.loads(text.replace("{events}", events))
    measurements = {name: (meaning, settings) for name, (meaning, settings) in tables.pop("measurements").items()}
    columns = {kind: {name: Column(**column) for name, column in table.items()} for kind, table in tables.items()}
    return columns, measurements


TABLES, MEASUREMENTS = _read()
"""``TABLES``: the description of every column by table, without ``config.*``. ``MEASUREMENTS``: the entries of
``curves.metrics`` by name: the meaning, and the settings that measure it (``eval.metrics``)."""


def describe(kind: str) -> dict[str, Column]:
    """Return the description of every column of table ``kind``, in the table's order, ``config.*`` included."""
    described = dict(TABLES[kind])
    if kind == "runs":
        settings = {mode: settings_of(config) for mode, config in MODES.items()}
        for name in (column.removeprefix(CONFIG) for column in schema(kind).names if column.startswith(CONFIG)):
            having = {mode: settings[mode][name] for mode in settings if name in settings[mode]}
            meaning = " / ".join(dict.fromkeys(rule.doc for _, rule in having.values()))
            nulls = [f"mode={mode}" for mode in settings if mode not in having]
            nulls += ["the setting is null"] if any(takes_null(hint) for hint, _ in having.values()) else []
            described[CONFIG + name] = Column(meaning, null="; ".join(nulls))
    return {name: described[name] for name in schema(kind).names}
