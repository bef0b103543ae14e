"""Text of the page: tooltips of glossary words, and cells of tables."""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from analysis.glossary import EVERYDAY, TERMS

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
