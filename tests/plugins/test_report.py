"""Figures and studies of the user's own in a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.report import main as report
from grok.store import StoreWriter
from grok.store.testing import example_rows
from tests.plugins.conftest import Write

OWN = """
import pandas as pd
from analysis.figures.style import Drawing, canvas
from analysis.studies import Finding, Study

def picture(observations):
    "How many runs are there?"
    figure, axes = canvas()
    axes.plot([0, 1], [0, len(observations.arithmetic)])
    return Drawing("picture", "Runs", "All of them.", figure, pd.DataFrame({"runs": [len(observations.arithmetic)]}))

def study(observations):
    return Study(name="mine", title="Mine", question="?", findings=[Finding("runs", "3", "Three.", headline=True)])

def nothing(observations):
    return None

def broken(observations):
    return observations.absent

def number(observations):
    return 3
"""


@pytest.fixture
def store(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store of three runs, in a folder with code of one's own."""
    monkeypatch.chdir(tmp_path)
    write(own=OWN)
    with StoreWriter("S") as writer:
        writer.commit(example_rows(range(3)))
    return Path("S")


@pytest.mark.slow
def test_a_figure_and_a_study_stand_in_the_report(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report([str(store), "--with", "own.picture", "--with", "own.study", "--with", "own.nothing"]) == 0
    assert "runs                     3" in capsys.readouterr().out
    studies = {study["name"]: study for study in json.loads((store / "report/report.json").read_text())["studies"]}
    assert studies["picture"]["question"] == "How many runs are there?"
    assert studies["nothing"]["notes"] == ["The store has no data for it."]
    assert (store / "report/figures/picture.csv").read_text() == "runs\n3\n"
    assert "All of them." in (store / "report/report.html").read_text()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("own.broken", "fails at own.py:19 (AttributeError"),
        ("own.number", "gave a int: expected an analysis.figures.Drawing"),
        ("own.absent", "own has no 'absent'"),
        ("absent.f", "there is no module 'absent'"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    store: Path, target: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([str(store), "--with", target]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1
