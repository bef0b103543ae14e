"""Figures and studies of the user's own in a report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from analysis.answers import own_studies
from analysis.observations import Observations
from analysis.writing import write_studies
from grok.errors import ConfigError
from grok.plugins import label
from grok.store import Purpose, Purposes, StoreWriter
from grok.store.contract import example_rows
from tests.analysis.simulate import census, simulate
from tests.plugins.conftest import Write

EXAMPLES = Path(__file__).parents[2] / "examples"

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

def named(name, data=None):
    figure, axes = canvas()
    return Drawing(name, "Title", "Caption.", figure, pd.DataFrame({"x": [1]}) if data is None else data)

def spaces(observations):
    return named("my figure/1")

def escape(observations):
    return named("../../escape")

def builtin(observations):
    return named("Accuracy_histogram")

def twice(observations):
    return [named("same"), named("same")]

def mapping(observations):
    return named("mapped", {"x": [1]})

def census(observations):
    return named("other")

def outside(observations):
    return Study(name="mine", title="Mine", question="?", files={"../outside.csv": pd.DataFrame({"x": [1]})})

def unpictured(observations):
    return Drawing("none", "Title", "Caption.", None, pd.DataFrame({"x": [1]}))

def on_axes(observations):
    return Drawing("axes", "Title", "Caption.", canvas()[1], pd.DataFrame({"x": [1]}))

def one_text(observations):
    return [named("fine"), "x"]

def without():
    return None
"""


@pytest.fixture
def store(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store of three runs, in a folder with code of one's own."""
    monkeypatch.chdir(tmp_path)
    write(own=OWN)
    rows = example_rows(range(3))
    with StoreWriter("S") as writer:
        writer.record_design(Purposes("sweep", [Purpose()] * len(rows)).named([row.result.run_id for row in rows]))
        writer.commit(rows)
    return Path("S")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("own.number", "gave a int: expected an analysis.figures.style.Drawing"),
        ("own.absent", "own has no 'absent'"),
        ("absent.f", "there is no module 'absent' in"),
        ("own.escape", "gave the figure name '../../escape': expected a plain name"),
        ("own.spaces", "gave the figure name 'my figure/1': expected a plain name"),
        ("own.outside", "gave the file name '../outside': expected a plain name"),
        ("own.census", "gave the section name 'census', which the report uses itself"),
        ("own.mapping", "gave a dict as the numbers of the figure 'mapped': expected a pandas DataFrame"),
        (
            "own.unpictured",
            "at own.py:50 (the figure of the Drawing 'none' is a NoneType: expected a matplotlib Figure",
        ),
        ("own.on_axes", "at own.py:53 (the figure of the Drawing 'axes' is a Axes: expected a matplotlib Figure"),
        ("own.one_text", "gave a str as element 1 of its list: expected an analysis.figures.style.Drawing"),
        ("own.without", "--with own.without fails at"),
        ("own.twice", "two figures of the report have the name 'same': give yours another name"),
    ],
)
def test_names_and_numbers_are_checked_before_a_file_is_written(
    store: Path, tmp_path: Path, target: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        (ask,) = own_studies([target], ".")
        write_studies([ask(Observations.read(store))], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_example_figure_draws_conditions_apart() -> None:
    """Neither two tasks nor two versions of own code are in one picture."""
    tasks = [{"_target_": "knot.knot", "k": k} for k in (2, 3)]
    simulated = simulate(census(30, np.random.default_rng(5), steps=30_000, every=1000))
    kinds = [(label(tasks[0]), tasks[0], "aa"), (label(tasks[0]), tasks[0], "bb"), (label(tasks[1]), tasks[1], "bb")]
    runs = simulated.all_runs.assign(
        **{
            "config.task.operation": [kinds[i % 3][0] for i in range(30)],
            "config.task.plugin": [json.dumps(kinds[i % 3][1]) for i in range(30)],
            "own_code": [json.dumps({"knot.knot": kinds[i % 3][2]}) for i in range(30)],
        }
    )
    observations = Observations(runs, simulated.curves)
    (ask,) = own_studies(["delay.delay"], str(EXAMPLES))
    drawn = ask(observations).drawn
    assert sorted(drawing.title for drawing in drawn) == [
        "From memorising to generalising: task.operation=knot.knot(k=2), own_code=knot.knot aa",
        "From memorising to generalising: task.operation=knot.knot(k=2), own_code=knot.knot bb",
        "From memorising to generalising: task.operation=knot.knot(k=3), own_code=knot.knot bb",
    ]
    generalised = [rows["grokked_step"].notna().sum() for _, rows in observations.by_condition()]
    assert [len(drawing.data) for drawing in drawn] == generalised and len({drawing.name for drawing in drawn}) == 3


def test_the_study_of_the_documentation_is_written(tmp_path: Path) -> None:
    text = (EXAMPLES.parent / "docs/plugins.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import pandas.*?)```", text, re.DOTALL)
    (tmp_path / "sections.py").write_text(code, encoding="utf-8")
    (ask,) = own_studies(["sections.reached"], str(tmp_path))
    study = ask(simulate(census(5, np.random.default_rng(5), steps=30_000, every=1000)))
    write_studies([study], tmp_path / "out")
    (table,) = (tmp_path / "out/tables").iterdir()
    assert (table.name, table.read_text()) == (
        "reached_conditions.csv",
        "condition,runs,generalised\nall runs,5,5\n",
    )
    assert [finding.shown for finding in study.headlines] == ["5 of 5"]
