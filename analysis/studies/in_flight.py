"""Language models in flight: the results so far of runs that have no row yet."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pandas as pd

from analysis.observations import Observations
from analysis.statistics.estimate import NotEnoughData
from analysis.studies.base import Question, Study, Table

EVALUATIONS = 20
"""Number of a run's last evaluations in the table."""


@dataclass(kw_only=True)
class InFlight(Study):
    """Runs in flight, with their curves so far."""

    curves: pd.DataFrame
    steps: pd.DataFrame


def analyse(observations: Observations, question: Question) -> InFlight:
    """Return the tables of the runs in flight.

    Raises:
        NotEnoughData: no run is in flight.
    """
    flying = observations.in_flight
    if flying is None or flying.runs.empty:
        raise NotEnoughData("a language model in flight")
    study = InFlight(
        name=question.name, title=question.title, question=question.question, curves=flying.curves, steps=flying.steps
    )
    last = flying.steps.groupby("run_id")["train_loss"].last()
    scored = flying.curves.dropna(subset=["val_loss"]).groupby("run_id")["val_loss"].last()
    ids = flying.runs["run_id"]
    frame = pd.DataFrame(
        {
            "run": [run_id[:10] for run_id in ids],
            "step": flying.runs["step"].astype(int),
            "of": flying.runs["steps"].astype(int),
            "training loss": last.reindex(ids).round(4).to_numpy(),
            "val loss": scored.reindex(ids).round(4).to_numpy(),
            "written": [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in flying.runs["written"]],
        }
    )
    study.tables.append(Table("in_flight", "Runs in flight, as of their last write", frame, code=("run",)))
    shown = flying.curves.groupby("run_id").tail(EVALUATIONS)
    evaluations = pd.DataFrame(
        {
            "run": shown["run_id"].str[:10],
            "step": shown["step"].astype(int),
            "training loss": shown["train_loss"].round(4),
            "val loss": shown["val_loss"].round(4),
            "sample": shown["sample"].fillna(""),
        }
    )
    study.tables.append(Table("in_flight_evaluations", "Their last evaluations", evaluations, code=("run",)))
    return study


QUESTION = Question(
    name="in_flight",
    title="Runs in flight",
    question="How far are the language models that are being trained?",
    command="",
    analyse=analyse,
    applies=lambda observations: observations.in_flight is not None and not observations.in_flight.runs.empty,
)
