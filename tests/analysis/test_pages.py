"""Reports and pages of results: whole on any store, escaped, the same twice, and what their stores give."""

import base64
import contextlib
import hashlib
import io
import itertools
import json
import math
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from grok.__main__ import main as grok
from grok.analysis import report
from grok.analysis.answers import compile_report, pending
from grok.analysis.observations import Observations
from grok.analysis.page import with_terms
from grok.analysis.pages import NOT_DRAWN, Page, main
from grok.analysis.proposals import given_again, proposal
from grok.analysis.statistics.estimate import write_csv
from grok.analysis.studies import QUESTIONS, Missing
from grok.analysis.writing import write_report
from grok.commands.compose import arithmetic, compose
from grok.config import ArithmeticConfig, flatten
from grok.store import Purpose, Purposes, StoreWriter, open_store
from grok.terminal import CONTROL
from tests.analysis.simulate import BY_NAME, Truth, census, plans, simulate, sweep, write
from tests.analysis.simulate import crossed as grid

RESULTS = Path(__file__).parents[2] / "results"
PLANNED = ("fate", "precision", "language-fate", "language-grid", "threads", "val-shuffle", "weights")
PAGES = sorted(path.parent for path in RESULTS.glob("*/page.md.j2") if (path.parent / "store").is_dir())


@cache
def page_of(folder: Path) -> Page:
    """Return the page of a committed store; its studies are computed once."""
    return Page(folder)


SLOW_AMONG = [pytest.param(f, id=f.name, marks=[pytest.mark.slow] * (f.name == "diary")) for f in PAGES]
"""The pages: the studies of the large store take half a minute."""


@pytest.mark.parametrize("folder", SLOW_AMONG)
def test_a_committed_page_is_what_its_store_gives(folder: Path) -> None:
    assert page_of(folder).text() == (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", [p for p in SLOW_AMONG if (p.values[0] / "opening.md.j2").is_file()])
def test_the_readme_opens_with_what_the_store_gives(folder: Path) -> None:
    readme = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert page_of(folder).opening(readme) == readme, "make results renews it"


def test_the_example_report_is_what_its_store_gives() -> None:
    def read(text: str) -> object:
        """Return the report without its list of files and the digits that differ from processor to processor."""
        return json.loads(text, parse_float=lambda digits: float(f"{float(digits):.6g}")) | {"files": None}

    made = json.dumps(compile_report(page_of(RESULTS / "quickstart-census").observations).as_json())
    committed = (RESULTS / "example-report" / "report.json").read_text(encoding="utf-8")
    assert read(made.replace(f"{RESULTS.parent}/", "")) == read(committed), "make results renews it"


@pytest.mark.parametrize("folder", [f for f in PAGES if f.name != "diary"], ids=lambda p: p.name)
def test_a_finished_page_lacks_no_figure(folder: Path) -> None:
    assert NOT_DRAWN not in (folder / "README.md").read_text(encoding="utf-8")


WRITTEN = sorted(RESULTS.rglob("*.md"))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: str(p.relative_to(RESULTS)))
def test_what_a_page_cites_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    cited = re.findall(r"`((?:figures|tables|store)/[^`\s]+|[\w./-]+\.(?:csv|json|png|svg|html))`", text)
    pages_own = [name for name in cited if not name.startswith(("conf/", "tests/", "results/", "STORE/", "../"))]
    assert [name for name in pages_own if not list(page.parent.glob(name))] == []


def test_no_result_names_a_folder_of_the_machine_that_made_it() -> None:
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
        assert set(rows["origin"]) == {"planned" if marker.parents[1].name in PLANNED else "reconstructed"}
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
    truths = [Truth({"seed": seed, "train.steps": 3000, "eval.every": 500}, 9000) for seed in range(8)]
    write(truths, tmp_path / "store")
    stored = open_store(tmp_path / "store").runs()["run_id"].tolist()
    cells = [Purpose(role="cell", unit={"recipient": 1, "donor": 2, "repeat": n}) for n in range(3)]
    with StoreWriter(tmp_path / "store") as writer:
        writer.record_design(Purposes("layers", cells).named([*stored[:2], "not-trained"]))
    text = '{{ pending("layers") }}|{{ pending("branch") }}|{{ notes("census") }}|{{ notes("layers") }}|'
    (tmp_path / "page.md.j2").write_text(text + '{{ table("census", "no such") }}|{{ table("layers", "transplants") }}')
    unfinished, other, limits, *rest = Page(tmp_path).text().split("|")
    assert "1 of 3" in unfinished and "1 of 3" in limits
    assert (other, rest) == ("", ["", "", "Not trained yet."])


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
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) and set(re.findall(r"url\(#([^)]*)", page)) <= set(ids)


@pytest.mark.usefixtures("no_png")
def test_the_same_store_gives_the_same_bytes_whatever_was_reported_there_before(tmp_path: Path) -> None:
    few, many = (write(census(n, np.random.default_rng(25)), tmp_path / str(n)) for n in (6, 60))
    a, b = tmp_path / "a", tmp_path / "b"
    for out, store in ((a, many), (a, few), (b, few)):
        assert report.main([str(store), "--out", str(out)]) == 0
    one, other = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in (a, b))
    assert not [path for path in one.keys() | other.keys() if one.get(path) != other.get(path)]


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
    said = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {s["name"] for s in said["studies"] if "3 of 12" in str(s.get("lacks"))} == {"census"}
    (note,) = said["provenance"]["pending"] * ("3 of 12" in said["sentence"])
    again = f"grok sweep 'seed=range(0,12)' store.path={path}"
    assert note.startswith(f"3 of 12 planned runs are not in the store yet: {again}."), "it can be pasted"
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


def test_the_guide_names_every_section() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "reading-the-report.md").read_text(encoding="utf-8")
    assert [q.title for q in QUESTIONS if q.title not in guide] == []


def seeds(n: int, time: float, status: str = "completed", **overrides: Any) -> list[Truth]:
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    return [Truth({"seed": i, **given}, time, status=status) for i in range(n)]


ODD: dict[str, Callable[[np.random.Generator], list[Truth]]] = {
    "all failed": lambda rng: seeds(12, 900, "failed"),
    "none ever": lambda rng: seeds(40, 1e6),
    "one run": lambda rng: seeds(1, 900),
    "all diverged": lambda rng: seeds(12, 900, "diverged"),
    "all at once": lambda rng: seeds(40, 700, eval__every=500),
    "one step": lambda rng: seeds(8, 900, train__steps=1),
    "evaluated at the end": lambda rng: census(30, rng, eval__every=100_000),
    "seven conditions": lambda rng: [Truth({"seed": i, "optim.lr": 1e-3 * (1 + i % 7)}, 900 + i) for i in range(50)],
    "mixed lengths": lambda rng: [
        Truth({"seed": i, "train.steps": 10 ** (1 + i % 4)}, float(rng.uniform(50, 9000))) for i in range(40)
    ],
    "equal outcomes": lambda rng: grid((2, 3, 3), rng, {}),
    "holes in the grid": lambda rng: [
        t for i, t in enumerate(grid((2, 5, 5), rng, {"init": 0.1, "chaos": 0.1})) if i % 7
    ],
}
FAST = ("all failed", "none ever", "one run")


@pytest.mark.usefixtures("no_png")
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k not in FAST)) for k in ODD])
def test_the_report_comes_out_whole(kind: str, tmp_path: Path) -> None:
    report = compile_report(simulate(ODD[kind](np.random.default_rng(41))))
    page = write_report(report, tmp_path).read_text()
    for study in report.studies:
        for finding in study.findings:
            assert "nan" not in finding.text.lower().split(), finding.text
            if finding.estimate:
                e = finding.estimate
                assert e.low <= e.value <= e.high, finding.text
    assert "</html>" in page


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


DEFAULTS = flatten(ArithmeticConfig())
TOY = {
    name: value for name, value in flatten(arithmetic(compose(["experiment=toy"]))).items() if value != DEFAULTS[name]
}


def toy(*typed: str) -> Observations:
    store = simulate([Truth({"seed": i, **TOY}, 400 + i) for i in range(6)])
    store.path = None
    argv = ["python", "-m", "grok.run", "-m", "experiment=toy", *typed, "seed=range(0,6)", "workers=2", "store.path=x"]
    store.sweeps = [{"argv": argv}, {"argv": ["python", "-m", "sweeps.repeat", "--store", "x", "precision=float64"]}]
    return store


def test_a_proposal_has_the_settings_that_the_first_sweep_typed() -> None:
    crossed = "grok sweep sweep=crossed"
    assert proposal(crossed, toy()) == f"{crossed} experiment=toy"
    typed = ("optim.lr=0.03", "train.steps=200")
    now = f"train.steps={TOY['train.steps']}"  # made longer since
    assert proposal(crossed, toy(*typed)) == f"{crossed} experiment=toy optim.lr=0.03 {now}"
    assert proposal(f"{crossed} train.steps=50", toy(*typed)).endswith(" train.steps=50 experiment=toy optim.lr=0.03")
    assert proposal(crossed, toy(*typed), any_task=False) == crossed
    set_by_it = ("optim.weight_decay=1", "train.steps=400", "eval.every=20")
    assert proposal("grok sweep sweep=weight_decay", toy(*set_by_it)) == (
        "grok sweep sweep=weight_decay experiment=toy eval.every=20"
    )
    gap = BY_NAME["repeatability"].ask(simulate(grid((2, 2, 2), np.random.default_rng(0), {"init": 0.1})))
    assert isinstance(gap, Missing) and gap.first, "cells are nothing to choose from"
    assert gap.command.startswith("grok sweep sweep=census")
    assert proposal("grok sweep 'seed=range(0,6)'", toy()) == "", "the store has it"
    assert proposal("grok repeat --best 12", toy()).startswith("grok repeat --best 1 "), "of six seeds"
    layers, other = ("grok layers --recipient 0 --donor 1", "grok layers --recipient 1 --donor 0")
    store = toy()
    store.sweeps = [*store.sweeps, {"argv": shlex.split(proposal(other, store))}]
    assert proposal(layers, store) and not proposal(other, store), "the order of options counts"
    assert compile_report(store).next_step.name == "Train more seeds."
    failed = Observations(store.all_runs.assign(status="failed"), store.curves, sweeps=store.sweeps)
    assert compile_report(failed).next_step.text.startswith("grok store status")
    late = compile_report(simulate([Truth({"seed": seed, "train.steps": 700}, 1e9) for seed in range(20)]))
    assert "train.steps=1400" in late.next_step.text, "a cross of the same length would show as little"
    rare = simulate([Truth({"seed": seed, "train.steps": 3000}, 2500 if seed < 3 else 1e5) for seed in range(40)])
    assert "--best 3" in proposal("grok repeat --best 12", rare), "the others did not generalise"
    names, late = ("seed", "optim.weight_decay", "optim.lr"), {"train.steps": 12_000}
    runs = [
        Truth(dict(zip(names, of, strict=True)) | late, 6000 if (of[1] == 1) == (of[2] == 0.003) else 2000 + of[0])
        for of in itertools.product(range(8), (0.3, 1), (0.001, 0.003))  # each matters at each value of the other
    ]
    said = compile_report(simulate(runs)).sentence
    assert "optim.weight_decay 2 of 2" in said and "optim.lr 2 of 2" in said
    plain = toy("numerics.compile=false", "optim.lr=0.01,0.03")  # repeats and others are computed as the runs were
    for command, any_task in (("grok repeat --best 12", False), (crossed, True)):
        assert "numerics.compile=false" in proposal(command, plain, any_task)
    given = sorted(shlex.split(proposal("grok sweep", toy("optim.lr=0.01,0.03"))))  # several: those of the runs
    assert [word.partition("=")[0] for word in given if "=" in word] == sorted({*TOY} - {"experiment"})


def test_a_command_is_given_again_for_the_store_where_it_lies() -> None:
    for named in (["--store", "old"], ["--store=old"], ["store.path=old"]):
        argv = ["python", "-m", "grok.run", "-m", *named, "seed=range(0,4)"]
        assert given_again(argv, Path("new")) == "grok sweep 'seed=range(0,4)' store.path=new"
    branch = "python -m grok.sweeps.branch --best 2"  # to which the store is an option
    assert given_again([*branch.split(), "--store", "old"], Path("new")) == f"{branch} --store new"


@pytest.mark.parametrize("path", ["my runs/it's here", "/data/a=b,c/store", "results/x", "/tmp/{odd}"])
def test_a_path_survives_the_shell_and_hydra(path: str) -> None:
    store = toy()
    store.path = Path(path)
    words = shlex.split(proposal("grok sweep sweep=crossed", store))
    (parsed,) = OverridesParser.create().parse_overrides([words[-1]])
    assert parsed.key_or_group == "store.path"
    assert parsed.value() == path
    many = simulate(census(24, np.random.default_rng(0)))
    many.path = Path(path)
    words = shlex.split(proposal("grok branch --store STORE", many))
    assert words[words.index("--store") + 1] == path


def test_every_question_proposes_for_the_store_and_the_default_store_needs_no_name() -> None:
    store = toy()
    store.path = Path("results/store")
    for question in QUESTIONS:
        assert "store.path" not in proposal(question.command, store, question.any_task)
    store.path = Path("elsewhere")
    commands = {q.name: proposal(q.command, store, q.any_task) for q in QUESTIONS if q.command}
    assert all("elsewhere" in command for command in commands.values())
    assert commands["search"].startswith("grok search study=quickstart experiment=toy")


def stores() -> dict[str, list[Truth]]:
    rng = np.random.default_rng(3)
    scan = [
        Truth({"seeds.init": i, "seeds.order": 8, "eval.every": 250}, float(rng.lognormal(9, 1))) for i in range(30)
    ]
    decay = [
        Truth({"seed": i, "optim.weight_decay": wd, "eval.every": 250}, float(rng.lognormal(9, 1)))
        for wd in (0.0, 0.1, 1.0)
        for i in range(10)
    ]
    rates = [Truth({"seed": i, "optim.lr": (1 + i) / 1e3, "task.modulus": 97}, 900.0) for i in range(40)]
    few = census(2, rng)
    return {"scan": scan, "decay": decay, "few": few, "modulus": census(30, rng, task__modulus=97), "rates": rates}


def planned(command: str) -> str:
    """Return what a proposed command prints when it is pasted with ``dry_run=true``."""
    words = shlex.split(command)
    assert words[0] == "grok"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [*words, "dry_run=true"])
        assert grok([*words[1:], "dry_run=true"]) == 0, f"{command}\n{out.getvalue()}"
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scan", "decay", "few", "modulus", "rates"])
def test_every_proposed_command_runs_as_pasted(kind: str, tmp_path: Path) -> None:
    store = Observations.read(write(stores()[kind], tmp_path / "store"))
    report = compile_report(store)
    commands = [gap.command for gap in report.missing if gap.command] + [
        fact.text for fact in report.heading if fact.is_command
    ]
    assert len(commands) > 8
    for command in [*commands, report.next_step.text]:
        planned(command)
    assert kind != "rates" or "task.modulus=97" in shlex.split(report.next_step.text), "which no sweep typed"
