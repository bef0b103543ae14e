"""A check of the diary's regime: seeds 0 to 11 against an independent implementation.

The ranges are those of 12 ordinary seeds of an independent implementation at step 3,000. The median of
each measure over seeds 0 to 11 must lie inside its range. Single seeds outside are named; some are
expected, because about 7 in 100 seeds are fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analysis.observations import Observations, differing_settings, floats
from analysis.purposes import random_seeds
from analysis.statistics.estimate import NotEnoughData
from analysis.studies.base import Finding, Question, Study, Table

SEEDS: Final = tuple(range(12))
STEP: Final = 3000
RANGES: Final = {
    "train_loss": (0.05, 0.18),
    "val_acc": (0.007, 0.038),
    "val_loss": (8.2, 14.0),
    "weight_norm": (64.8, 66.0),
}
"""Lowest and highest value of each measure in the independent run at step 3,000."""
WORDS: Final = {
    "train_loss": "training loss",
    "val_acc": "validation accuracy",
    "val_loss": "validation loss",
    "weight_norm": "weight norm",
}
EARLY_STEP, EARLY_LOSS = 250, 5.3
"""Training loss of the independent run at step 250."""


@dataclass(kw_only=True)
class Parity(Study):
    """The measures of seeds 0 to 11 at step 3,000."""

    measures: pd.DataFrame


def reference_seeds(observations: Observations) -> pd.DataFrame:
    """Return the runs of seeds 0 to 11 under the diary's settings."""
    rows = observations.once(random_seeds)
    rows = rows[rows["seed"].isin(SEEDS)]
    same = [not differing_settings(row) for _, row in rows.iterrows()]
    return rows[np.array(same, dtype=bool)]


def analyse(observations: Observations, question: Question) -> Parity:
    """Return the comparison of seeds 0 to 11 with the ranges.

    Raises:
        NotEnoughData: one of the seeds was not evaluated at step 3,000.
    """
    rows = reference_seeds(observations)
    curves = observations.curves_of(rows.index)
    at = curves[curves["step"] == STEP].set_index("run_id").reindex(rows.index)
    measures = at[list(RANGES)].assign(seed=rows["seed"]).dropna().set_index("seed").sort_index()
    absent = sorted(set(SEEDS) - set(measures.index))
    if absent:
        raise NotEnoughData(
            f"seeds 0 to 11 of the diary's regime evaluated at step {STEP:,} (missing: {', '.join(map(str, absent))})"
        )
    study = Parity(
        name=question.name,
        title=question.title,
        question=question.question,
        scope=f"Seeds 0 to 11 under the default settings, the diary's regime, at step {STEP:,}.",
        measures=measures,
    )
    records = []
    for name, (low, high) in RANGES.items():
        values = floats(measures[name])
        median = float(np.median(values))
        inside = low <= median <= high
        outside = [int(s) for s, v in zip(measures.index, values, strict=True) if not low <= v <= high]
        records.append(
            {
                "measure": name,
                "median": round(median, 4),
                "lowest": round(float(values.min()), 4),
                "highest": round(float(values.max()), 4),
                "independent run": f"{low} to {high}",
                "median inside": "yes" if inside else "no",
                "seeds outside": ", ".join(map(str, outside)) or "none",
            }
        )
        study.findings.append(
            Finding(
                f"median {WORDS[name]}, {'inside' if inside else 'outside'} the independent run's range",
                f"{median:.4g} (range {low} to {high})",
                f"Seeds outside this range: {', '.join(map(str, outside)) or 'none'}.",
                headline=True,
            )
        )
    study.tables.append(Table("ranges", f"Seeds 0 to 11 at step {STEP:,}", pd.DataFrame(records)))
    study.tables.append(Table("seeds", "Seed by seed", measures.reset_index().round(4), open=False))
    early = curves.loc[curves["step"] == EARLY_STEP, "train_loss"].dropna()
    if len(early):
        study.notes.append(
            f"Train loss at step {EARLY_STEP}: median {float(early.median()):.2f} over {len(early)} seeds "
            f"(independent run: {EARLY_LOSS})."
        )
    return study


QUESTION = Question(
    "parity",
    "The diary's regime",
    "Do ordinary seeds behave as in an independent run of the same regime?",
    "grok sweep 'seed=range(0,12)' eval.every=250",
    analyse,
    lambda observations: not reference_seeds(observations).empty,
    any_task=False,
)
