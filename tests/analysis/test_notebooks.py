"""The notebooks run, as scripts and as notebooks, and define nothing of their own."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.simulate import census, crossed, write
from tests.analysis.test_layers_study import transplant

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(30)
    truths = census(40, rng, steps=20_000, every=500)
    truths += crossed((2, 5, 5), rng, {"init": 0.1, "order": 0.1, "chaos": 0.1})
    truths += transplant({"token_embedding": -0.5}, 0.1, rng)
    return write(truths, tmp_path_factory.mktemp("notebooks") / "store")


def test_there_are_the_three_that_tell_the_story() -> None:
    assert [p.stem for p in NOTEBOOKS] == ["census", "crossed", "layers"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs_as_a_script(
    path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GROK_STORE", str(store))
    runpy.run_path(str(path), run_name="__main__")
    assert "not enough" not in capsys.readouterr().out.lower().split("note:")[0]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_defines_nothing(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Lambda)]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
@pytest.mark.filterwarnings("default")  # what Jupyter's own packages warn of is not ours
def test_runs_as_a_notebook_and_shows_its_figures(path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jupytext = pytest.importorskip("jupytext", reason="jupytext is not installed (pip install -e '.[notebooks]')")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (pip install -e '.[notebooks]')")
    monkeypatch.setenv("GROK_STORE", str(store))
    notebook = jupytext.read(path)
    nbclient.NotebookClient(notebook, timeout=300).execute()
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert any("image/png" in o.get("data", {}) for o in outputs)
