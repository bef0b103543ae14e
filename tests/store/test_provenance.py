"""Where results come from: git, versions, machine."""

import pickle
import shutil
import socket
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

import grok
from grok.store.contract import example_row
from grok.store.provenance import Provenance, git_state, git_state_of, installed
from grok.store.writer import StoreWriter


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package under version control; returns the package's folder."""
    package = tmp_path / "project" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / ".gitignore").write_text("/ignored/\n")
    git(package.parent, "init")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-m", "first")
    return package


def test_a_changed_or_an_untracked_file_makes_it_dirty(checkout: Path) -> None:
    new = checkout / "new.py"
    new.write_text("")
    assert git_state_of(checkout)[1] is True
    new.unlink()
    assert git_state_of(checkout)[1] is False
    (checkout / "__init__.py").write_text("changed")
    assert git_state_of(checkout)[1] is True


def test_ignored_files_and_stores_do_not(checkout: Path) -> None:
    (checkout.parent / "ignored").mkdir()
    (checkout.parent / "ignored" / "new.py").write_text("")
    with StoreWriter(checkout.parent / "out" / "a store") as writer:
        writer.commit([example_row(0)])
    assert git_state_of(checkout)[1] is False
    (checkout.parent / "out" / "notes.txt").write_text("")
    assert git_state_of(checkout)[1] is True


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert git_state_of(tmp_path / "plain") == (None, None)
    # a package installed inside somebody else's checkout is not theirs
    inside = checkout.parent / "ignored" / "site-packages" / "package"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    assert git_state_of(inside) == (None, None)


def test_variables_of_a_git_hook_do_not_mislead(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    commit, dirty = git_state_of(checkout)
    assert commit is not None
    assert dirty is False


def test_versions_and_machine() -> None:
    here = Provenance.collect(sweep_id="s")
    assert (here.host, here.torch_version) == (socket.gethostname(), version("torch"))
    assert installed("no-such-package-anywhere") is None
    worker = pickle.loads(pickle.dumps(here)).on_this_machine(lane_width=16)
    assert (worker.lane_width, worker.sweep_id, worker.git_commit) == (16, "s", here.git_commit)


def test_a_package_that_is_replaced_in_mid_sweep_is_not_that_which_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that had one version in memory said of its next runs that they came from the other."""
    monkeypatch.syspath_prepend(tmp_path)
    for number in (1, 2):
        (tmp_path / f"made_up-{number}.dist-info").mkdir()
        (tmp_path / f"made_up-{number}.dist-info" / "METADATA").write_text(f"Name: made-up\nVersion: {number}\n")
        assert installed("made-up") == "1"
        if number == 1:
            shutil.rmtree(tmp_path / "made_up-1.dist-info")


def test_a_worker_says_what_code_it_runs_itself() -> None:
    elsewhere = replace(Provenance.collect(), git_commit="0" * 40, git_dirty=None, grok_version="of the planner")
    worker = elsewhere.on_this_machine()
    here = git_state()
    assert (worker.git_commit, worker.git_dirty) == (here if here[0] else ("0" * 40, None))
    assert worker.grok_version == grok.__version__
