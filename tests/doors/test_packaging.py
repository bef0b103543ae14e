"""An installed wheel finds its settings and its Hydra plugins from any folder."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "checkout"
    # what git tracks, so that leftovers of earlier builds cannot help
    subprocess.run(["git", "-C", str(ROOT), "checkout-index", "--all", f"--prefix={source}/"], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out)]
    subprocess.run([*build, str(source)], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_an_installed_wheel_plans_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    # -S leaves out this checkout's editable install; the dependencies come in behind the wheel
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{dependencies}"}
    code = (
        "import sys, grok, grok.run, grok.commands.compose, hydra_plugins.grok_lanes.launcher as launcher; "
        f"assert grok.__file__.startswith({str(site)!r}) and launcher.__file__.startswith({str(site)!r}); "
        "assert grok.commands.compose.conf_source() == 'pkg://grok.conf'; "
        "sys.exit(grok.run.main(['-m', 'experiment=nanda', 'seed=range(0,3)', 'dry_run=true']))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 planned, 0 stored")
    assert list(elsewhere.iterdir()) == []


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
