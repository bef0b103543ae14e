"""The shortest commands that train stored runs again."""

from __future__ import annotations

import pandas as pd

from grok.streams import STREAMS, derive_seed


def rerun_command(row: pd.Series) -> str:
    """Return the store's ``rerun`` command without the seeds that the master seed derives anyway."""
    return _shortened(str(row["rerun"]), int(row["seed"]))


def rerun_commands(runs: pd.DataFrame) -> pd.Series:
    """Return :func:`rerun_command` of every row."""
    pairs = zip(runs["rerun"], runs["seed"], strict=True)
    return pd.Series([_shortened(str(command), int(seed)) for command, seed in pairs], index=runs.index, dtype=object)


def _shortened(command: str, seed: int) -> str:
    # The store writes these words unquoted, with one space before and after.
    padded = f"{command} "
    for stream in STREAMS:
        padded = padded.replace(f" seeds.{stream}={derive_seed(seed, stream)} ", " ", 1)
    return padded[:-1]
