"""Reports and pages of results: whole on any store, escaped, the same twice, and what their stores give."""

import base64
import hashlib
import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grok.analysis import report
from grok.analysis.answers import compile_report, pending
from grok.analysis.observations import Observations
from grok.analysis.page import with_terms
from grok.analysis.pages import NOT_DRAWN, Page, main
from grok.analysis.statistics.estimate import write_csv
from grok.analysis.studies import QUESTIONS
from grok.analysis.writing import write_report
from grok.store import Purpose, Purposes, StoreWriter, open_store
from grok.terminal import CONTROL
from tests.analysis.simulate import Truth, census, crossed, plans, simulate, sweep, write

# Pages of results are what their committed stores give, to the last digit.

RESULTS = Path(__file__).parents[2] / "results"
PAGES = sorted(path.parent for path in RESULTS.glob("*/page.md.j2") if (path.parent / "store").is_dir())


@cache
def page_of(folder: Path) -> Page:
    """Return the page of a committed store; its studies are computed once."""
    return Page(folder)


@pytest.mark.parametrize(
    "folder", [pytest.param(f, id=f.name, marks=[pytest.mark.slow] * (f.name == "diary")) for f in PAGES]
)
def test_a_committed_page_is_what_its_store_gives(folder: Path) -> None:
    assert page_of(folder).text() == (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", [f for f in PAGES if (f / "opening.md.j2").is_file()], ids=lambda p: p.name)
def test_the_readme_opens_with_what_the_store_gives(folder: Path) -> None:
    readme = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert page_of(folder).opening(readme) == readme, "make results renews it"


def test_the_example_report_is_what_its_store_gives() -> None:
    def read(text: str) -> object:
        """Return the report without the digits that differ from processor to processor."""
        return json.loads(text, parse_float=lambda digits: float(f"{float(digits):.6g}"))

    made = json.dumps(compile_report(page_of(RESULTS / "quickstart-census").observations).as_json())
    committed = (RESULTS / "example-report" / "report.json").read_text(encoding="utf-8")
    assert read(made.replace(f"{RESULTS.parent}/", "")) == read(committed), "make results renews it"


@pytest.mark.parametrize("folder", [f for f in PAGES if f.name != "diary"], ids=lambda p: p.name)
def test_a_finished_page_lacks_no_figure(folder: Path) -> None:
    """A figure that was renamed in the code would else be lost without a word; the diary's runs are still trained."""
    assert NOT_DRAWN not in (folder / "README.md").read_text(encoding="utf-8")


WRITTEN = sorted(RESULTS.rglob("*.md"))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: str(p.relative_to(RESULTS)))
def test_what_a_page_cites_is_there(page: Path) -> None:
    """Figures, tables and data by their names in the text, also with ``*``."""
    text = page.read_text(encoding="utf-8")
    cited = re.findall(r"`((?:figures|tables|store)/[^`\s]+|[\w./-]+\.(?:csv|json|png|svg|html))`", text)
    pages_own = [name for name in cited if not name.startswith(("conf/", "tests/", "results/", "STORE/", "../"))]
    assert [name for name in pages_own if not list(page.parent.glob(name))] == []


def test_no_result_names_a_folder_of_the_machine_that_made_it() -> None:
    """``run --again`` on a committed store would write, or look, where nobody else has anything."""
    folder = re.compile(rb"[\"'=\s](/(?:root|home|tmp|Users|mnt|work)/[\w./-]+)")
    written = [p for p in RESULTS.rglob("*") if p.suffix in (".json", ".md", ".csv", ".html", ".sh") and p.is_file()]
    assert [
        (str(p.relative_to(RESULTS)), *folder.findall(p.read_bytes())) for p in written if folder.search(p.read_bytes())
    ] == []
    stores = [open_store(marker.parent).runs() for marker in RESULTS.rglob("store.json")]
    assert [path for runs in stores for path in runs["config.store.path"].unique() if Path(path).is_absolute()] == []


def test_of_every_committed_run_it_is_known_what_it_was_for() -> None:
    for marker in RESULTS.rglob("store.json"):
        store = open_store(marker.parent)
        stored = set(store.table("runs", None, ["run_id"])["run_id"].to_pylist())
        rows = store.designs()
        named = set(rows["run_id"]) | set(rows["parent_run_id"].dropna()) | set(rows["line"].dropna())
        assert stored <= set(rows["run_id"])
        assert set(rows["origin"]) == {"planned" if marker.parents[1].name == "fate" else "reconstructed"}
        assert named - stored == set(rows["run_id"][rows["retired"].notna()]) - stored  # planned, and given up


def test_a_page_takes_its_numbers_from_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truths = [
        Truth({"seed": seed, "train.steps": 3000, "eval.every": 500}, 2000.0 if seed else 9000) for seed in range(8)
    ]
    write(truths, tmp_path / "store")
    text = '{{ shown("census", "super seeds") }}|{{ shown("crossed", "x") }}\n'
    text += '{{ table("census", "best_seeds", ["seed", "class"]) }}\n'
    (tmp_path / "page.md.j2").write_text(text)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "of_another_day.csv").touch()
    (tmp_path / "tables" / "folder").mkdir()
    assert main([str(tmp_path)]) == 0
    assert f"removed {tmp_path / 'tables' / 'of_another_day.csv'}: no study" in capsys.readouterr().out
    assert (tmp_path / "tables" / "folder").is_dir()
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("88% (47 to 100)|not trained yet\n") and "| 7 | super |" in page
    assert list((tmp_path / "figures").glob("*.csv")) and (tmp_path / "tables" / "best_seeds.csv").is_file()
    assert not (tmp_path / "tables" / "of_another_day.csv").exists()


def test_a_page_tells_what_is_not_trained_and_what_limits_an_answer(tmp_path: Path) -> None:
    """Half of a design read as the whole of it: neither the missing runs nor the study's notes stood on the page."""
    truths = [Truth({"seed": seed, "train.steps": 3000, "eval.every": 500}, 9000) for seed in range(8)]
    write(truths, tmp_path / "store")
    stored = open_store(tmp_path / "store").runs()["run_id"].tolist()
    cells = [Purpose(role="cell", unit={"recipient": 1, "donor": 2, "repeat": n}) for n in range(3)]
    with StoreWriter(tmp_path / "store") as writer:
        writer.record_design(Purposes("layers", cells).named([*stored[:2], "not-trained"]))
    text = '{{ pending("layers") }}|{{ pending("branch") }}|{{ notes("census") }}|{{ notes("layers") }}|'
    (tmp_path / "page.md.j2").write_text(text + '{{ table("census", "no such") }}|{{ table("layers", "transplants") }}')
    unfinished, other, limits, *rest = Page(tmp_path).text().split("|")
    assert unfinished == "**Not finished:** 1 of 3 planned runs of this section are not in the store yet."
    assert (other, rest) == ("", ["", "", "Not trained yet."])
    assert limits.startswith("- ")


# The report: whole on any store, escaped, self-contained, the same twice, and honest exit statuses.


@pytest.fixture(scope="module")
def store(reported: Path) -> Path:
    return reported / "store"


@pytest.fixture(scope="module")
def made(reported: Path) -> Path:
    return reported / "out"


def test_every_figure_has_its_picture_and_its_data(made: Path) -> None:
    figures = sorted(p.stem for p in (made / "figures").glob("*.png"))
    assert {"logit_histogram", "time_histogram", "cumulative", "variance_shares", "heat_map"} <= set(figures)
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
    again = f"grok sweep 'seed=range(0,12)' store.path={path}"
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
    assert report.main([str(store), "--only", name, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    if name == "layers":
        assert "not enough data: needs" in said
        assert "get it with: grok " in said
    else:
        assert list((tmp_path / "figures").glob("*.png"))
    assert report.main([str(tmp_path / "nothing"), "--only", name]) == 2


def test_the_guide_names_every_section() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "reading-the-report.md").read_text(encoding="utf-8")
    assert [q.title for q in QUESTIONS if q.title not in guide] == []


# Stores that nobody planned for: the report comes out whole, warns of nothing, and prints no NaN.


def end_only() -> list[Truth]:
    return census(30, np.random.default_rng(40), eval__every=100_000)


def all_diverged() -> list[Truth]:
    return [Truth({"seed": i}, 900, status="diverged") for i in range(12)]


def all_failed() -> list[Truth]:
    return [Truth({"seed": i}, 900, status="failed") for i in range(12)]


def all_at_once() -> list[Truth]:
    return [Truth({"seed": i, "eval.every": 500}, 700, fast=True) for i in range(40)]


def none_ever() -> list[Truth]:
    return [Truth({"seed": i}, 1e6) for i in range(40)]


def one_run() -> list[Truth]:
    return [Truth({"seed": 3}, 900)]


def one_step() -> list[Truth]:
    return [Truth({"seed": i, "train.steps": 1}, 900) for i in range(8)]


def many_conditions() -> list[Truth]:
    return [Truth({"seed": i, "optim.lr": 1e-3 * (1 + i % 7)}, 900 + i) for i in range(50)]


def mixed_lengths() -> list[Truth]:
    rng = np.random.default_rng(41)
    return [Truth({"seed": i, "train.steps": 10 ** (1 + i % 4)}, float(rng.uniform(50, 9000))) for i in range(40)]


def equal_outcomes() -> list[Truth]:
    return crossed((2, 3, 3), np.random.default_rng(43), {})


def holes_in_the_grid() -> list[Truth]:
    truths = crossed((2, 5, 5), np.random.default_rng(44), {"init": 0.1, "chaos": 0.1})
    return [t for i, t in enumerate(truths) if i % 7]


STORES = [
    all_failed,
    none_ever,
    one_run,
    *(
        pytest.param(store, marks=pytest.mark.slow)
        for store in (
            *(end_only, mixed_lengths, all_diverged, all_at_once),
            *(one_step, many_conditions, equal_outcomes, holes_in_the_grid),
        )
    ),
]


@pytest.mark.usefixtures("no_png")
@pytest.mark.parametrize("make", STORES, ids=lambda f: f.__name__)
def test_the_report_comes_out_whole(make, tmp_path: Path) -> None:
    report = compile_report(simulate(make()))
    page = write_report(report, tmp_path).read_text()
    for study in report.studies:
        for finding in study.findings:
            assert "nan" not in finding.text.lower().split(), finding.text
            if finding.estimate:
                e = finding.estimate
                assert e.low <= e.value <= e.high, finding.text
    assert "</html>" in page


# Numbers in files do not depend on a processor's last bits.


def test_last_bits_change_no_file(tmp_path: Path) -> None:
    texts = []
    for third in (0.1 + 0.2, 0.3):
        frame = pd.DataFrame({
            "plain": [third, math.nan],
            "words": pd.Series([third, "all"], dtype=object),
            "nullable": pd.Series([third, None], dtype="Float64"),
            "seed": [2**62 + 1, 7],
            "text": ["0.30000000000000004", "b"],
        })  # fmt: skip
        write_csv(frame, tmp_path / "x.csv")
        texts.append((tmp_path / "x.csv").read_text())
        assert frame["plain"][0] == third, "the frame is left as it was"
    assert texts[0] == texts[1]
    assert texts[0].splitlines()[1] == f"0.3,0.3,0.3,{2**62 + 1},0.30000000000000004"
