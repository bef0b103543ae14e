"""Numbers in files: twelve significant digits, so that another processor's last bits change no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pandas as pd

FORMAT: Final = "%.12g"


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write ``frame`` with its column names as a header."""
    frame = frame.copy(deep=False)
    for name, kind in frame.dtypes.items():
        if str(kind) in ("object", "Float64"):  # pandas formats plain float columns alone
            frame[name] = frame[name].astype(object).map(rounded)
    frame.to_csv(path, index=False, float_format=FORMAT)


def rounded(value: Any) -> Any:
    """Return a JSON-able value with every float in it rounded.

    >>> rounded({"mean": [0.1 + 0.2, 7, None]})
    {'mean': [0.3, 7, None]}
    """
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(FORMAT % value) if isinstance(value, float) else value
