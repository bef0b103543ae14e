"""Figures and studies of the user's own in a report."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from analysis.answers import _takes_one, own_studies
from analysis.figures.style import in_style
from analysis.observations import Observations
from analysis.report import main as report
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
        ("own.builtin", "two figures of the report have the name 'Accuracy_histogram': give yours another name"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    store: Path, tmp_path: Path, target: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report([str(store), "--with", target]) == 2
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1
    assert not list(tmp_path.rglob("*.csv")) and not list(tmp_path.rglob("*.html")), "nothing is written"


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


def test_the_only_condition_has_no_name() -> None:
    simulated = simulate(census(5, np.random.default_rng(5), steps=30_000, every=1000))
    ((name, rows),) = simulated.by_condition()
    assert (name, len(rows)) == ("", 5)


@pytest.mark.slow
def test_a_long_label_and_a_long_title_stay_in_the_picture(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LONG, encoding="utf-8")
    (ask,) = own_studies(["mine.long"], str(tmp_path))
    (drawing,) = ask(simulate(census(2, np.random.default_rng(5), steps=300, every=100))).drawn
    with in_style():
        figure = drawing.figure
        FigureCanvasAgg(figure).draw()
        box = figure.bbox
        for text in (figure.axes[0].yaxis.label, figure._suptitle):
            extent = text.get_window_extent()
            assert box.x0 <= extent.x0 and extent.x1 <= box.x1 and box.y0 <= extent.y0 and extent.y1 <= box.y1
        title = figure._suptitle.get_window_extent()
        assert figure.axes[0].yaxis.label.get_window_extent().y1 <= title.y0


LONG = """
import pandas as pd
from analysis.figures.style import Drawing, canvas

def long(observations):
    figure, axes = canvas()
    axes.set_ylabel("number of crossings of the knot that the network has unlearned by this step of the training")
    return Drawing("long", "WWWWWWWWW " * 8, "Caption.", figure, pd.DataFrame({"x": [1]}), "2 runs")
"""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: 0, False), (lambda one: 0, True), (lambda one, two: 0, False), (lambda one, two=2: 0, True),
        (lambda *every: 0, True), (lambda *, one: 0, False), (lambda one, *, two: 0, False), (len, True),
        (functools.partial(lambda one, two: 0, 1), True), (lambda one, *, two=2, **others: 0, True),
    ],
)  # fmt: skip
def test_which_functions_take_one_argument(function: Callable[..., int], expected: bool) -> None:
    assert _takes_one(function) is expected
