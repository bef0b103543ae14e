"""Code of the user's own: found, named by its text, imported from that text alone; examples, reports."""

import importlib.metadata
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from grok.__main__ import main
from grok.analysis.answers import own_studies
from grok.analysis.observations import Observations
from grok.analysis.writing import write_studies
from grok.commands.compose import compose
from grok.config import load_config
from grok.errors import ConfigError
from grok.execute.groups import prepare_runs
from grok.execute.refusals import refuse_unusable_code
from grok.plugins import activate, build, code_of, load
from grok.store import Purpose, Purposes, StoreWriter
from tests.analysis.simulate import census, simulate
from tests.plugins.conftest import Write
from tests.store.contract import example_rows


def fingerprint(folder: Path, target: str = "mine.f") -> str:
    return code_of(folder, [target]).targets[target].fingerprint


def test_a_fingerprint_follows_the_text_and_not_the_place(tmp_path: Path, write: Write) -> None:
    write({"elsewhere/mine": "def f(): return 1"}, mine="def f(): return 1")
    first = fingerprint(tmp_path)
    assert first == fingerprint(tmp_path / "elsewhere")
    write(mine="def f(): return 2")
    assert fingerprint(tmp_path) != first


@pytest.mark.parametrize(
    "statement",
    ["import helper", "from helper import g", "def f():\n    import helper", "from package import inner"],
)
def test_what_it_imports_from_its_folder_counts(tmp_path: Path, write: Write, statement: str) -> None:
    write({"package/inner": "import helper"}, mine=f"{statement}\ndef f(): return 1", helper="g = 1", unrelated="g = 1")
    first = fingerprint(tmp_path)
    write(unrelated="g = 2")
    assert fingerprint(tmp_path) == first
    write(helper="g = 2")
    assert fingerprint(tmp_path) != first


def test_changed_code_under_the_same_name_is_imported_anew(tmp_path: Path, write: Write) -> None:
    write(mine="import helper\ndef f(): return helper.g", helper="g = 1")
    activate(code_of(tmp_path, ["mine.f"]))
    assert build({"_target_": "mine.f"}) == 1
    write(helper="g = 2")
    assert build({"_target_": "mine.f"}) == 1, "a command goes on with the text that it was planned with"
    activate(code_of(tmp_path, ["mine.f"]))
    assert build({"_target_": "mine.f"}) == 2


def test_nothing_is_imported_that_the_command_does_not_name(tmp_path: Path, write: Write) -> None:
    write(mine="def f(): return 1\ndef g(): return 2", trap="raise SystemExit('imported')")
    activate(code_of(tmp_path, ["mine.f"]))
    for target in ("mine.g", "trap.f", "os.system"):
        with pytest.raises(ConfigError, match="this command does not name it"):
            load({"_target_": target})
    assert "trap" not in sys.modules


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"_target_": "absent.f"}, "there is no module 'absent'"),
        ({"_target_": "broken.f"}, r"broken.py is not Python \(SyntaxError: .*line 1\)"),
        ({"_target_": "short"}, "expected MODULE.NAME"),
        ({"_target_": "mine.absent"}, "mine has no 'absent': expected one of f$"),
        ({"_target_": "mine.ff"}, "mine has no 'ff', did you mean 'f'\\?: expected one of f$"),
        ({"_target_": "mine.f", "x": 1}, r"mine.f\(x=1\) refuses its arguments"),
        ({"_target_": "failing.f"}, r"importing failing failed \(ZeroDivisionError"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, write: Write, spec: dict[str, object], said: str) -> None:
    write(broken="def (", failing="1 / 0", mine="import json\nfrom pathlib import Path\ndef f(): return 1")
    with pytest.raises(ConfigError, match=said):
        activate(code_of(tmp_path, [str(spec["_target_"])]))
        build(spec)


def test_installed_code_is_named_by_its_version_and_does_not_travel(tmp_path: Path) -> None:
    code = code_of(tmp_path, ["joblib.hash"])
    assert code.modules == {}
    assert code.targets["joblib.hash"].fingerprint.startswith(f"joblib {importlib.metadata.version('joblib')}:")
    activate(code)
    assert load({"_target_": "joblib.hash"}) is importlib.import_module("joblib").hash


def test_the_standard_library_is_never_replaced(tmp_path: Path, write: Write) -> None:
    write(mine="import json\ndef f(): return json.dumps(1)", json="raise SystemExit")
    assert set(code_of(tmp_path, ["mine.f"]).modules) == {"mine"}


EXAMPLES = Path(__file__).parents[2] / "examples"
MODULES = sorted(EXAMPLES.glob("*.py"))


def command(file: Path) -> list[str]:
    """Return the words behind ``grok sweep``, ``grok report`` or ``grok prepare`` in a module's docstring."""
    text = file.read_text(encoding="utf-8").replace("\\\\\n", " ").replace("\\\n", " ")
    match = re.search(r"^ {4}grok (sweep|report|prepare) (.*)$", text, re.MULTILINE)
    assert match is not None, f"{file.name} opens with its own command"
    return [match[1], *shlex.split(match[2])]


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_an_example_is_short_and_its_command_can_be_carried_out(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) < 100
    kind, *words = command(file)
    if kind == "report":
        target = words[words.index("--with") + 1]
        assert target.startswith(f"{file.stem}.")
        return
    if kind == "prepare":  # carried out by tests/text/test_own_text.py
        assert words[0].startswith(f"{file.stem}.")
        return
    one = [word for word in words if not word.startswith("seed=")]
    config = load_config(compose([*one, f"plugin_path={EXAMPLES}", "numerics.compile=false"]))
    prepare_runs([config])
    refuse_unusable_code([config])


def test_muon_moves_matrices_along_orthogonal_directions() -> None:
    activate(code_of(EXAMPLES, ["muon.Muon", "muon.orthogonalised"]))
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(build({"_target_": "muon.orthogonalised"}, matrix))
    assert values.min() > 0.5 and values.max() < 1.3
    hidden, head = (torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(2))
    optimizer = build({"_target_": "muon.Muon", "lr": 0.1, "momentum": 0.0}, [("hidden", hidden), ("head", head)])
    for p in (hidden, head):
        p.grad = torch.eye(4) * torch.tensor([1.0, 10.0, 100.0, 1000.0])
    optimizer.step()
    assert torch.linalg.svdvals(hidden.detach()).max() < 0.13
    torch.testing.assert_close(head.detach().diagonal(), torch.full((4,), -0.01))


def test_examples_are_written_into_a_folder_and_never_over_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "new")
    assert main(["examples", out]) == 0
    assert {file.name for file in (tmp_path / "new").iterdir()} == {file.name for file in MODULES}
    assert "margin.py: Your own metric" in capsys.readouterr().out
    mine, lost = tmp_path / "new" / "margin.py", tmp_path / "new" / "muon.py"
    mine.write_text("mine")
    lost.unlink()
    assert main(["examples", out]) == 0
    assert mine.read_text() == "mine" and lost.exists()


OWN = """
import pandas as pd
from grok.analysis.figures.style import Drawing, canvas
from grok.analysis.studies import Finding, Study

def number(observations):
    return 3

def named(name, data=None):
    figure, axes = canvas()
    return Drawing(name, "Title", "Caption.", figure, pd.DataFrame({"x": [1]}) if data is None else data)

def escape(observations):
    return named("../../escape")

def twice(observations):
    return [named("same"), named("same")]

def census(observations):
    return named("other")

def outside(observations):
    return Study(name="mine", title="Mine", question="?", files={"../outside.csv": pd.DataFrame({"x": [1]})})

def unpictured(observations):
    return Drawing("none", "Title", "Caption.", None, pd.DataFrame({"x": [1]}))

def one_text(observations):
    return [named("fine"), "x"]

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
        ("own.number", "gave a int: expected a grok.analysis.figures.style.Drawing"),
        ("own.absent", "own has no 'absent'"),
        ("absent.f", "there is no module 'absent' in"),
        ("own.escape", "gave the figure name '../../escape': expected a plain name"),
        ("own.outside", "gave the file name '../outside': expected a plain name"),
        ("own.census", "gave the section name 'census', which the report uses itself"),
        ("own.unpictured", "at own.py:26 (the figure of the Drawing 'none' is a NoneType: expected a matplotlib"),
        ("own.one_text", "gave a str as element 1 of its list: expected a grok.analysis.figures.style.Drawing"),
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
