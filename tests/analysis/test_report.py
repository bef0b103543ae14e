"""The report: whole on any store, escaped, self-contained, the same twice, and honest exit statuses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import report
from analysis.answers import compile_report, pending
from analysis.observations import Observations
from analysis.page import with_terms
from analysis.studies import QUESTIONS
from analysis.study import main as one_study
from analysis.writing import write_report
from grok.store import StoreWriter
from grok.terminal import CONTROL
from tests.analysis.simulate import Truth, census, plans, simulate, sweep, write


@pytest.fixture(scope="module")
def store(reported: Path) -> Path:
    return reported / "store"


@pytest.fixture(scope="module")
def made(reported: Path) -> Path:
    return reported / "out"


def test_every_figure_has_its_picture_and_its_data(made: Path) -> None:
    figures = sorted(p.stem for p in (made / "figures").glob("*.png"))
    assert {"accuracy_histogram", "time_histogram", "cumulative", "variance_shares", "heat_map"} <= set(figures)
    for name in figures:
        assert (made / "figures" / f"{name}.svg").read_text().startswith("<?xml")
        assert len(pd.read_csv(made / "figures" / f"{name}.csv"))
    page = (made / "report.html").read_text()
    for name in figures:
        assert f'id="figure-{name}"' in page


def test_json_holds_the_numbers_of_the_page(made: Path) -> None:
    data = json.loads((made / "report.json").read_text())
    page = (made / "report.html").read_text()
    assert data["provenance"]["runs"] == 140
    found = {s["name"]: s for s in data["studies"]}
    assert {"census", "survival", "regimes", "crossed"} <= set(found)
    for study in data["studies"]:
        for finding in study["findings"]:
            e = finding["estimate"]
            if e and e["high"] is not None:
                assert e["low"] <= e["value"] <= e["high"], finding
    assert found["census"]["findings"][0]["shown"].split(" (")[0] in page
    missing = {g["name"] for g in data["missing"]}
    assert missing >= {"layers", "weight_decay"}
    assert "gpt" not in missing, "no command gets a corpus: the report is silent about it"


def test_the_page_loads_nothing_and_runs_only_its_own_script(made: Path) -> None:
    page = (made / "report.html").read_text()
    assert re.findall(r"<script[^>]*>", page) == [
        '<script type="application/octet-stream" id="page-data">',
        "<script>",
    ]
    code = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert code is not None
    digest = base64.b64encode(hashlib.sha256(code.group(1).encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in page
    assert not re.search(r"\son\w+=", page[: code.start()]), "a handler inside a tag"
    links = re.findall(r'(?:src|href)="([^"]*)"', page[: code.start()])
    assert all(link.startswith(("#", "figures/", "tables/", "seeds.csv", "data:")) for link in links), links
    for link in links:
        if not link.startswith(("#", "data:")):
            assert (made / link).is_file()
    assert len(re.findall(r"url\(#", page)) == len(
        [u for u in re.findall(r"url\(#([^)]+)\)", page) if f'id="{u}"' in page]
    )
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("no_png")
def test_the_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    store = write(census(6, np.random.default_rng(25)), tmp_path / "store")
    for name in ("first", "second"):
        assert report.main([str(store), "--out", str(tmp_path / name)]) == 0
    for path in sorted(p.relative_to(tmp_path / "first") for p in (tmp_path / "first").rglob("*") if p.is_file()):
        assert (tmp_path / "first" / path).read_bytes() == (tmp_path / "second" / path).read_bytes(), path


@pytest.mark.usefixtures("no_png")
def test_text_from_a_store_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[8m\u200f"
    found = simulate([Truth({"seed": i, "experiment": evil}, 900, numerics=evil) for i in range(6)])
    found.path = Path(evil)
    page = write_report(compile_report(found), tmp_path).read_text()
    assert evil not in page and not CONTROL.search(page)
    assert r"&lt;script&gt;alert(1)&lt;/script&gt;\x1b[8m\u200f" in page
    assert evil not in str(with_terms(f"seed {evil} censored"))


def test_an_empty_store_gives_a_page_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StoreWriter(tmp_path / "store"):
        pass
    assert report.main([str(tmp_path / "store"), "--out", str(tmp_path / "out")]) == 0
    assert "no finished run yet" in capsys.readouterr().out
    assert "<h1>No finished run yet</h1>" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.usefixtures("no_png")
def test_a_sweep_that_is_not_done_says_so(tmp_path: Path) -> None:
    truths = census(12, np.random.default_rng(23), train__stop_when_generalised=True)
    path = write(truths[:9], tmp_path / "store")
    command = ["python", "-m", "grok.run", "-m", "seed=range(0,12)", f"store.path={path}"]
    settings = {"train.stop_when_generalised": True}
    for name in ("20260101-000000-aaaaaa", "20260101-010000-bbbbbb"):  # interrupted, and given again
        with StoreWriter(path) as writer:
            for design, seen in plans([], [sweep(truths)]):
                writer.record_design(design, seen)
                writer.record_sweep(name, command, {"settings": settings, "designs": [design.design_id]})
    assert report.main([str(path), "--out", str(tmp_path / "out")]) == 0
    (note,) = json.loads((tmp_path / "out" / "report.json").read_text())["provenance"]["pending"]
    again = f"python -m grok.run -m 'seed=range(0,12)' store.path={path}"
    assert note.startswith(f"3 of 12 planned runs are not in the store yet: {again}."), "it can be pasted"
    assert "biased low" in note
    page = (tmp_path / "out" / "report.html").read_text()
    assert "3 of 12 planned runs" in page
    write(truths, path)
    assert pending(Observations.read(path)) == []


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write(census(2, np.random.default_rng(24)), tmp_path / "store")
    assert report.main([str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "file").write_text("x")
    assert report.main([str(store), "--out", str(tmp_path / "file" / "out")]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert report.main([str(tmp_path)]) == 2


@pytest.mark.usefixtures("no_png")
@pytest.mark.parametrize("name", ["census", "layers", pytest.param("crossed", marks=pytest.mark.slow)])
def test_a_single_study(name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert one_study([name, str(store), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    if name == "layers":
        assert "not enough data: needs" in said
        assert "get it with: grok " in said
    else:
        assert list((tmp_path / "figures").glob("*.png"))
    assert one_study([name, str(tmp_path / "nothing")]) == 2


def test_the_guide_names_every_section() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "reading-the-report.md").read_text(encoding="utf-8")
    assert [q.title for q in QUESTIONS if q.title not in guide] == []
