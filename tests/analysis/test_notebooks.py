"""The notebooks run on any store, say what is missing, and define nothing of their own."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from grok.store import StoreWriter
from tests.analysis.simulate import census, crossed, write
from tests.analysis.test_studies import transplant

FOLDER = Path(__file__).parents[2] / "notebooks"
ASKED = {"census": ["census", "survival", "regimes"], "crossed": ["crossed", "repeatability"], "layers": ["layers"]}
"""The studies that each notebook shows."""
NOTEBOOKS = [FOLDER / f"{name}.py" for name in ASKED]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(30)
    truths = census(40, rng, steps=20_000, every=500)
    truths += crossed((2, 5, 5), rng, {"init": 0.1, "order": 0.1, "chaos": 0.1})
    truths += transplant({"token_embedding": -0.5}, 0.1, rng)
    return write(truths, tmp_path_factory.mktemp("notebooks") / "store")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(census(4, np.random.default_rng(31), steps=3000, every=500), tmp_path_factory.mktemp("few") / "store")


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem == "crossed")) for p in NOTEBOOKS]
)
def test_runs_on_a_store_that_answers(path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROK_STORE", str(store))
    studies = runpy.run_path(str(path), run_name="__main__")["studies"]
    for name in ASKED[path.stem]:
        assert not studies[name].missing
        assert len(studies[name].findings) and not next(iter(studies[name].tables.values())).empty
        assert name == "layers" or "<img" in studies[name].figures._repr_html_()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
@pytest.mark.parametrize("kind", ["none", "empty", "few"])
def test_says_what_is_missing_on_any_other_store(
    path: Path, kind: str, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "empty":
        StoreWriter(tmp_path / "empty").close()
    monkeypatch.setenv("GROK_STORE", str({"none": tmp_path / "none", "empty": tmp_path / "empty", "few": few}[kind]))
    studies = runpy.run_path(str(path), run_name="__main__")["studies"]
    answers = [studies[name] for name in ASKED[path.stem]]
    assert kind == "few" or all(answer.missing for answer in answers)
    for answer in answers:
        if answer.missing:  # four seeds have shares, if wide ones
            assert repr(answer).partition(": ")[2].startswith("not enough data: needs")
            assert "needs" in answer._repr_html_()
            assert (answer.tables, len(answer.figures)) == ({}, 0)


@pytest.mark.slow
def test_the_circuit_of_nanda_et_al_grows_before_accuracy_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROK_STORE", str(tmp_path))
    curve = runpy.run_path(str(FOLDER / "nanda.py"), run_name="__main__")["curve"]
    assert curve["val_acc"].iloc[-1] > 0.99
    unseen = curve["val_acc"] < 0.5
    assert (curve["restricted_loss"] < 0.5)[unseen].any() and (curve["val_loss"] > 2)[unseen].all()
