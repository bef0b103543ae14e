"""The versions of the user's own code in a store.

A store keeps the hashes of code, not its text.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pandas as pd

OWN_CODE: Final = "own_code"
"""Stands beside the settings of a condition: which version a run has of own code that the store has in several."""
OWN_METRICS: Final = "own_metrics"
"""The same for own metrics. They only measure, so a version is no condition of training."""
HASH: Final = 8
"""Digits of a hash in a condition's name."""
METRICS: Final = "config.eval.metric_plugins"


def with_code_versions(runs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with a column each of the versions of own code and of own metrics, where the store has several.

    Code of one version is named by the settings. Text that no version of this package wrote stands as it is.
    """
    if "own_code" not in runs or runs["own_code"].isna().all():
        return runs
    metrics = runs[METRICS].fillna("") if METRICS in runs else [""] * len(runs)
    texts = list(zip(runs["own_code"].fillna(""), metrics, strict=True))
    parts = {text: _moving_and_measuring(*text) for text in set(texts)}
    columns: list[pd.DataFrame | pd.Series] = [runs]
    for place, name in enumerate((OWN_CODE, OWN_METRICS)):
        named = _several({text: pair[place] for text, pair in parts.items()})
        column = pd.Series([named[text] for text in texts], index=runs.index, name=f"config.{name}", dtype=object)
        if name == OWN_CODE or column.notna().any():
            columns.append(column)
    return pd.concat(columns, axis=1)


def _several(hashes: dict[tuple[str, str], dict[str, str]]) -> dict[tuple[str, str], str | None]:
    """Return the hashes in words, of the import paths that have several; None if there are none."""
    versions: dict[str, set[str]] = {}
    for path, version in (item for code in hashes.values() for item in code.items()):
        versions.setdefault(path, set()).add(version)
    return {
        text: ", ".join(f"{path} {v[:HASH]}" for path, v in sorted(code.items()) if len(versions[path]) > 1) or None
        for text, code in hashes.items()
    }


def _moving_and_measuring(code: str, metrics: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the hashes of a run's own code by import path: of what trains, and of its metrics, which only measure."""
    try:
        hashes = {str(path): str(version) for path, version in json.loads(code or "{}").items()}
    except (ValueError, AttributeError):
        return {"own code": code}, {}
    measuring = {path for path in hashes if f'"{path}"' in metrics}
    return {p: v for p, v in hashes.items() if p not in measuring}, {p: hashes[p] for p in sorted(measuring)}


def hashes_in_words(text: Any) -> Any:
    """Return the hashes of a run's own code as ``knot.knot 8b939bf6d17dbe40``; other values as they are."""
    return ", ".join(f"{path} {version}" for path, version in hashes_of(text).items()) or text


def hashes_of(text: Any) -> dict[str, str]:
    """Return a run's ``own_code`` as hashes by import path; empty for text that no version of this package wrote."""
    try:
        return {str(path): str(version) for path, version in json.loads(text).items()}
    except (TypeError, ValueError, AttributeError):
        return {}
