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
_BY_LOWER: Final = {term.lower(): meaning for term, meaning in TERMS.items()}


def with_terms(text: str) -> Markup:
    """Return escaped ``text`` with a tooltip (hover, focus or touch) at the first use of each glossary word."""
    seen: set[str] = set()

    def explain(match: re.Match[str]) -> str:
        word = match.group(1).lower()
        if word in seen:
            return match.group(0)
        seen.add(word)
        return (
            f'<span class="term" tabindex="0">{match.group(0)}'
            f'<span class="tip" role="tooltip">{escape(_BY_LOWER[word])}</span></span>'
        )

    return Markup(_TERM.sub(explain, str(escape(text))))


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
