"""What people who know Hydra type, and what it does here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.doors.conftest import TINY, Door, Ended

MINE = """# @package _global_
defaults:
  - quickstart
  - override /mode: arithmetic
experiment: mine
optim:
  lr: 0.02
"""


def axes(ended: Ended) -> list[str]:
    return [line.removeprefix("#   ") for line in ended.out.splitlines() if line.startswith("#   ")]


def test_a_word_replaces_the_axis_of_the_named_sweep(door: Door, tmp_path: Path) -> None:
    assert axes(door("-m", "--cfg", "job", "sweep=census", "seed=range(0,5)")) == ["seed=range(0,5)"]
    assert axes(door("-m", "--cfg", "job", "sweep=census", "seed=5", "optim.lr=1,2")) == ["optim.lr=1,2"]
    (tmp_path / "mine/sweep").mkdir(parents=True)
    (tmp_path / "mine/sweep/wide.yaml").write_text(
        "# @package _global_\nhydra:\n  sweeper:\n    params:\n      seed: 1,2\n"
    )
    assert axes(door("-m", "--cfg", "job", "--config-dir", "mine", "sweep=wide")) == ["seed=1,2"]
    (tmp_path / "mine/sweep/none.yaml").write_text("# @package _global_\nseed: 3\n")
    ended = door("-m", "--cfg", "job", "--config-dir", "mine", "sweep=none")
    assert axes(ended) == [] and "\nseed: 3\n" in ended.out


def test_a_launcher_is_answered_with_the_executor_to_use(door: Door) -> None:
    for launcher in ("submitit_slurm", "basic"):
        ended = door(*TINY, "-m", "seed=1,2", f"hydra/launcher={launcher}")
        assert ended.status == 2 and "loky, dask, ray or slurm" in ended.err and ended.err.count("\n") == 1


def test_set_ups_of_a_folder_of_ones_own(door: Door, tmp_path: Path) -> None:
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/mine.yaml").write_text(MINE)
    assert "1 to train" in door("--config-dir", "conf", "experiment=mine", "dry_run=true").out
    assert "1 to train" in door(f"hydra.searchpath=[file://{tmp_path}/conf]", "experiment=mine", "dry_run=true").out
    assert "experiment=mine\n" in door("--help", "--config-dir", "conf").out
    assert "mine, nanda" in door("--config-dir", "conf", "experiment=absent", "dry_run=true").err


CALLBACK = """
from hydra.experimental.callback import Callback

class Tell(Callback):
    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda config, **more: print("callback", name, config.hydra.job.name)
"""


def test_callbacks_and_job_names(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is a job; the runs of a sweep are trained together, so that none is a job of its own."""
    (tmp_path / "tell.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    told = ["+hydra.callbacks.tell._target_=tell.Tell", "hydra.job.name=mine", "dry_run=true"]
    for words, expected in (
        ([], ["on_run_start", "on_job_start", "on_job_end", "on_run_end"]),
        (["-m", "seed=1,2"], ["on_multirun_start", "on_multirun_end"]),
    ):
        ended = door(*TINY, *words, *told)
        calls = [line.split() for line in ended.out.splitlines() if line.startswith("callback")]
        assert [(name, job) for _, name, job in calls] == [(name, "mine") for name in expected], ended


@pytest.mark.parametrize(
    ("words", "says"),
    [
        # a batch or job would replace the outcome of the one before: a failure, Ctrl-C and rows were lost
        (["-m", "seed=1,2", "hydra.sweeper.max_batch_size=1"], "hydra.sweeper.max_batch_size: .* one plan"),
        (["-m", "seed=1,2", "hydra/launcher=basic", "hydra/sweeper=basic"], "hydra/launcher=basic: .*executor="),
        # what jobs have, and a plan has not
        (["-m", "seed=1,2", "+hydra.job.env_set.FOO=1"], "hydra.job.env_set: .*FOO=1 grok sweep"),
        (["-m", "seed=1,2", "+hydra.job.env_copy=[PATH]"], "hydra.job.env_set: "),
        (["-m", "seed=1,2", "hydra.job.chdir=true"], "hydra.job.chdir: .*store.path"),
        (["--experimental-rerun", "x"], "--experimental-rerun .*expected --again RUN"),
        (["-m", "model.layers=range(1,3),5"], "model.layers=range\\(1,3\\),5: a range among other values"),
    ],
)
def test_what_a_plan_cannot_do_is_refused(door: Door, tmp_path: Path, words: list[str], says: str) -> None:
    ended = door(*TINY, *words)
    assert ended.status == 2 and re.search(says, ended.err) and ended.err.count("\n") == 1, ended
    assert not (tmp_path / "results").exists(), "a store was made"
