"""Optional measurements on the way (Fourier spectrum, restricted loss, logit scale ...), where runs carry them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pandas as pd

from analysis.observations import Observations, floats
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.prediction import spearman
from analysis.studies.base import Finding, Question, Study, Table


@dataclass(kw_only=True)
class Mechanism(Study):
    """Measurements by run and step."""

    metrics: pd.DataFrame
    """Columns run_id, step, then one per metric."""


def metrics_of(observations: Observations) -> pd.DataFrame:
    """Return every optional measurement of the arithmetic runs: run_id, step, one column per metric."""
    curves = observations.curves_of(observations.arithmetic.index)
    if "metrics" not in curves:
        return pd.DataFrame({"run_id": [], "step": []})
    measured = curves[curves["metrics"].notna() & (curves["metrics"] != "{}")]
    if measured.empty:
        return pd.DataFrame({"run_id": [], "step": []})
    values = pd.DataFrame([json.loads(text) for text in measured["metrics"]], index=measured.index)
    return pd.concat([measured[["run_id", "step"]], values.astype(float)], axis=1).reset_index(drop=True)


def analyse(observations: Observations, question: Question) -> Mechanism:
    """Answer over all measured runs.

    Raises:
        NotEnoughData: no run carries measurements.
    """
    metrics = metrics_of(observations)
    if metrics.empty:
        raise NotEnoughData("runs with optional measurements")
    study = Mechanism(name=question.name, title=question.title, question=question.question, metrics=metrics)
    rows = observations.arithmetic
    names = [str(c) for c in metrics if c not in ("run_id", "step")]
    moments = {
        "start": metrics.groupby("run_id").first(),
        "memorised": metrics[metrics["step"] == metrics["run_id"].map(rows["memorised_step"])].set_index("run_id"),
        "generalised": metrics[metrics["step"] == metrics["run_id"].map(rows["grokked_step"])].set_index("run_id"),
        "end": metrics.groupby("run_id").last(),
    }
    records = [
        {"metric": name, **{f"{when} (median)": frame[name].median() for when, frame in moments.items()}}
        for name in names
    ]
    n = metrics["run_id"].nunique()
    study.tables.append(Table("metrics", f"Measurements of {n} runs at four moments", pd.DataFrame(records)))
    study.notes.append(f"{n} runs carry measurements: {', '.join(names)}.")
    grokked = rows["grokked_step"].dropna().astype(float)
    for name in names:
        early = moments["memorised"][name].dropna()
        both = early.index.intersection(grokked.index)
        try:
            e = spearman(floats(early[both]), floats(grokked[both]))
        except NotEnoughData:
            continue
        study.findings.append(
            Finding(
                f"{name} and time",
                f"{e.value:.2f} ({e.low:.2f} to {e.high:.2f})",
                f"Rank correlation of {name} at memorisation with the step of generalisation: {e.value:.2f} "
                f"({e.low:.2f} to {e.high:.2f}), n = {e.n}.",
                e,
            )
        )
    return study


QUESTION = Question(
    "mechanism",
    "What happens inside",
    "Which inner measurements move before a seed generalises?",
    "",
    analyse,
    lambda observations: not metrics_of(observations).empty,
)
