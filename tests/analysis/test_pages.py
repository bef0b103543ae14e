"""Pages of results are what their committed stores give, to the last digit."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from analysis.answers import compile_report
from analysis.pages import NOT_DRAWN, Page, main
from grok.store import Purpose, Purposes, StoreWriter, open_store
from tests.analysis.simulate import Truth, write

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
