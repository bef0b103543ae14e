"""Chooses rows of a table by words such as ``seed=8``, ``class=super`` and ``generalised<2000``."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from grok.errors import ConfigError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from grok.store import Store

_BOUND: Final = re.compile(r"([^<>=]+)(<=|>=|=|<|>)(.+)")
_TESTS: Final = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "=": operator.eq}
MOST_NAMED: Final = 16
"""Largest number of columns that a refusal lists."""
IDS: Final = ("run", "design_id")
"""Columns of identifiers, which ``=`` compares by their beginning."""


def is_filter(word: str) -> bool:
    """Return whether ``word`` bounds a column."""
    return _BOUND.fullmatch(word) is not None


def with_purposes(runs: pd.DataFrame, store: Store) -> pd.DataFrame:
    """Return ``runs``, whose column ``run`` has run_ids, with what each was for: ``design``, ``role``, ``design_id``.

    A run without a row in ``designs/`` has design and role ``unknown``.
    """
    claims = store.designs()
    claims = claims.assign(design=claims["kind"] + " " + claims["role"])
    by_run = claims.groupby("run_id")[["design", "role", "design_id"]].agg(_joined)
    return runs.join(by_run, on="run").fillna({"design": "unknown", "role": "unknown"})


def _joined(texts: pd.Series) -> str:
    return ", ".join(dict.fromkeys(texts))


def matching(frame: pd.DataFrame, words: Sequence[str]) -> pd.Series:
    """Return which rows of ``frame`` satisfy all ``words``.

    A word is a bound on a column, which the beginning of its name gives, or text that some cell of the row contains.
    A cell without a value satisfies no bound. Text is compared without case; ``=`` also accepts one word of a cell.

    Raises:
        ConfigError: no column has this name, or a bound other than ``=`` is not on a number.
    """
    import pandas as pd

    kept = pd.Series(True, index=frame.index)
    for word in words:
        bound = _BOUND.fullmatch(word)
        if bound is None:
            texts = frame.astype("string").fillna("")
            kept &= texts.apply(lambda column, word=word: column.str.contains(word, case=False, regex=False)).any(
                axis=1
            )
        else:
            kept &= _bounded(frame, *bound.groups())
    return kept


def _bounded(frame: pd.DataFrame, name: str, sign: str, value: str) -> pd.Series:
    import pandas as pd

    names = {str(column).lower().replace(" ", "_"): str(column) for column in frame}
    typed = name.strip().lower()
    meant = names.get(typed) or next((column for key, column in names.items() if key.startswith(typed)), None)
    if meant is None:
        some = ", ".join([*names][:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
        raise ConfigError(
            f"{name}{sign}{value}: there is no column {name}{nearest(typed, names)}: expected one of {some}"
        )
    column = frame[meant]
    number = pd.to_numeric(value.replace(",", ""), errors="coerce")
    if pd.api.types.is_numeric_dtype(column) and pd.notna(number):
        test: pd.Series = _TESTS[sign](column, number)
        return test.fillna(False).astype(bool)
    if sign != "=":
        known = "a number" if pd.isna(number) else "= and a text: the column has no numbers"
        raise ConfigError(f"{name}{sign}{value}: expected {known}")
    texts, wanted = column.astype("string").fillna("").str.lower(), value.lower()
    if meant in IDS:
        return texts.str.split(", ").map(lambda ids: any(one.startswith(wanted) for one in ids)).astype(bool)
    return (texts == wanted) | texts.str.split(r"[,\s]+").map(lambda parts: wanted in parts).astype(bool)
