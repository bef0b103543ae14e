"""What is installed: names, README's commands from any folder, versions that install."""

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that ``make dist`` makes of the source archive, and checks."""
    source = tmp_path_factory.mktemp("source") / "checkout"
    # what git tracks, so that leftovers of earlier builds cannot help
    subprocess.run(["git", "-C", str(ROOT), "checkout-index", "--all", f"--prefix={source}/"], check=True)
    make = ["make", "-C", str(source), "dist", f"PYTHON={sys.executable}"]
    done = subprocess.run([*make, "TAG=v0.0.0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "the tag v0.0.0 is not v" in done.stderr
    subprocess.run(make, check=True, capture_output=True)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.mark.slow
def test_a_wheel_takes_no_name_of_a_users_folder(wheel: Path, tmp_path: Path) -> None:
    """README's commands, from an empty folder with folders of the user's own that must stay as they are."""
    with zipfile.ZipFile(wheel) as archive:
        assert {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" not in name} == {
            "grok",
            "hydra_plugins",
        }
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    for name in ("analysis", "sweeps", "conf", "benchmarks"):
        (elsewhere / name).mkdir(parents=True)
        (elsewhere / name / "__init__.py").write_text("raise RuntimeError('the user\\'s own')")
    before = {file: file.read_text() for file in elsewhere.rglob("*.py")}
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    # -S leaves out this checkout's editable install; the dependencies come in behind the wheel
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", str(site), dependencies])}
    for words in (
        ["sweep", "experiment=quickstart", "seed=range(0,3)", "train.steps=40", "store.path=results/quickstart"],
        ["report", "results/quickstart"],
        ["list", "results/quickstart", "class=early"],
        ["sweep", "sweep=crossed", "experiment=toy", "dry_run=true"],
        ["search", "study=quickstart", "dry_run=true", "store.path=results/quickstart"],
        ["examples", "own"],
    ):
        done = subprocess.run(
            [sys.executable, "-S", "-m", "grok", *words], cwd=elsewhere, env=environment, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
    assert (elsewhere / "results/quickstart/report/report.html").is_file()
    assert (elsewhere / "own/digits.py").is_file()
    assert {file: file.read_text() for file in before} == before
    assert not list(elsewhere.rglob("__pycache__/__init__*"))


def test_every_pinned_version_installs_on_the_oldest_python() -> None:
    """A version that needs a later 3.11.x makes ``make setup`` fail where the system's Python is older."""
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
    )
    needs = {
        name: requirement
        for d in importlib.metadata.distributions()
        if (name := canonicalize_name(d.metadata["Name"])) in pinned
        and pinned[name] == d.version
        and (requirement := d.metadata.get("Requires-Python"))
    }
    assert len(needs) > 100
    assert {name: r for name, r in needs.items() if not SpecifierSet(r).contains("3.11.0")} == {}
