"""Code of the user's own: found in a folder, named by its text, imported from that text alone."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from grok.errors import ConfigError
from grok.plugins import activate, build, code_of, load
from tests.plugins.conftest import Write


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
    ("target", "said"),
    [
        ("absent.f", "there is no module 'absent'"),
        ("broken.f", "broken.py:1 is not Python"),
        ("short", "expected MODULE.NAME"),
    ],
)
def test_what_cannot_be_found_is_refused(tmp_path: Path, write: Write, target: str, said: str) -> None:
    write(broken="def (")
    with pytest.raises(ConfigError, match=said):
        code_of(tmp_path, [target])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"_target_": "mine.absent"}, "mine has no 'absent', it has f$"),
        ({"_target_": "mine.ff"}, "mine has no 'ff', did you mean 'f'\\? It has f$"),
        ({"_target_": "mine.f", "x": 1}, r"mine.f\(x=1\) refuses its arguments"),
        ({"_target_": "failing.f"}, r"importing failing failed \(ZeroDivisionError"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, write: Write, spec: dict[str, object], said: str) -> None:
    write(mine="import json\nfrom pathlib import Path\ndef f(): return 1", failing="1 / 0")
    activate(code_of(tmp_path, [str(spec["_target_"])]))
    with pytest.raises(ConfigError, match=said):
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
