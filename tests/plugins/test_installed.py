"""Installed code is named by its version and by all Python files of its distribution."""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grok.plugins import code_of, installed

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution of text files into a folder on ``sys.path``, as pip does: with the hash of each file."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "stairs_lab", raising=False)

    def to_site(name: str, files: dict[str, str], *, record: bool = True) -> None:
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        rows = []
        for path, text in {**files, f"{info.name}/METADATA": f"Name: {name}\nVersion: 1.0\n"}.items():
            file = site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text)}\n")
        (info / "top_level.txt").write_text("stairs_lab\n", encoding="utf-8")
        if record:
            (info / "RECORD").write_text("".join(rows), encoding="utf-8")
        importlib.invalidate_caches()
        monkeypatch.setattr(installed, "_distributions", lambda: {"stairs_lab": [*names, name]})
        names.append(name)

    names: list[str] = []
    return to_site


def stairs(helper: int = 1, **further: str) -> dict[str, str]:
    """Return the files of a package whose task needs its helper."""
    task = "from stairs_lab.helper import g\ndef f(): return g"
    package = {"__init__": "", "tasks": task, "helper": f"g = {helper}"}
    return {**{f"stairs_lab/{name}.py": text for name, text in package.items()}, **further}


def fingerprint(folder: Path, target: str = "stairs_lab.tasks.f") -> str:
    return code_of(folder, [target]).targets[target].fingerprint


def test_a_changed_helper_of_the_same_version_counts(tmp_path: Path, install: Install) -> None:
    install("stairs-lab", stairs())
    first = fingerprint(tmp_path)
    assert first.startswith("stairs-lab 1.0:")
    install("stairs-lab", stairs(**{"stairs_lab/data.txt": "no code", "../../bin/stairs.py": "#!/here/python"}))
    assert fingerprint(tmp_path) == first, "only Python files inside count"
    install("stairs-lab", stairs(helper=2))
    assert fingerprint(tmp_path) != first


def test_of_a_namespace_package_the_distribution_with_the_module_counts(tmp_path: Path, install: Install) -> None:
    install("other", {"stairs_lab/other.py": "x = 1"})
    install("tasks", {"stairs_lab/tasks.py": "from stairs_lab.helper import g\nf = g", "stairs_lab/helper.py": "g = 1"})
    first = fingerprint(tmp_path)
    assert first.startswith("tasks 1.0:")
    install("other", {"stairs_lab/other.py": "x = 2"})
    assert fingerprint(tmp_path) == first


def test_without_a_record_the_modules_own_file_counts(tmp_path: Path, install: Install) -> None:
    install("stairs-lab", stairs(), record=False)
    own = hashlib.sha256(stairs()["stairs_lab/tasks.py"].encode()).hexdigest()
    assert fingerprint(tmp_path) == f"stairs-lab 1.0:{own[:16]}"


@pytest.mark.parametrize("module", ["torch.optim.adamw", "grok.arithmetic.model"])
def test_fingerprints_that_stored_runs_carry_stay(tmp_path: Path, module: str) -> None:
    """Of torch and of this project only the module's own file counts."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    own = hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
    name = module.split(".")[0].replace("grok", "grok-lab")
    assert fingerprint(tmp_path, f"{module}.X") == f"{name} {importlib.metadata.version(name)}:{own[:16]}"
