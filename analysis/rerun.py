"""The shortest command that trains a stored run again."""

from __future__ import annotations

import shlex

import pandas as pd

from grok.streams import STREAMS, derive_seed


def rerun_command(row: pd.Series) -> str:
    """Return the store's ``rerun`` command without the seeds that the master seed gives anyway."""
    derived = {f"seeds.{stream}={derive_seed(int(row['seed']), stream)}" for stream in STREAMS}
    words = [word for word in shlex.split(row["rerun"]) if word not in derived]
    return " ".join(shlex.quote(word) for word in words)
