"""The mean of kept checkpoints is a checkpoint that evaluation, sampling and export read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grok import average
from grok.checkpoints import load_checkpoint, run_folder, save_checkpoint
from grok.commands.trained import find_run
from grok.config.gpt import GptConfig
from grok.records import Checkpoint
from grok.store import StoreWriter
from tests.gpt.conftest import RUN, result_of, run

Build = Callable[..., GptConfig]


@pytest.fixture
def store(settings: Build, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run's checkpoints of steps 3, 6 and 9; its states to roll back to are inside them."""
    trained = tmp_path_factory.getbasetemp() / "averaged"
    if not trained.exists():
        new = tmp_path / "new"
        StoreWriter(new).close()
        config = settings(checkpoint__keep_every=3, checkpoint__minutes=0, stability__policy="cut_lr",
                          stability__snapshot_every=2)  # fmt: skip
        for event in run(config):
            if isinstance(event, Checkpoint):
                save_checkpoint(run_folder(new, RUN), event, keep=1, keep_every=3)
        new.rename(trained)
    shutil.copytree(trained, tmp_path / "store")
    return tmp_path / "store"


def averaged(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert average.main([RUN[:6], *words]) == 0
    return capsys.readouterr().out.split()[1]


@pytest.mark.parametrize(("words", "steps"), [((), (3, 6, 9)), (("--last", "2"), (6, 9)), (("--steps", "9,3"), (3, 9))])
def test_it_is_the_mean(
    store: Path, words: tuple[str, ...], steps: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    name = averaged(capsys, "--store", str(store), *words)
    weights = find_run(name, str(store)).weights("last")["last"]
    parts = [load_checkpoint(run_folder(store, RUN), step).tensors for step in steps]
    for n, mean in weights.items():
        expected = torch.stack([part[f"model.{n}"].double() for part in parts]).mean(0)
        torch.testing.assert_close(mean.double(), expected, rtol=0, atol=1e-7)
    assert all(f"model.{n}" in parts[0] for n in weights) and weights
    assert not any(n.startswith(("kept.", "optim.")) for n in load_checkpoint(run_folder(store, name)).tensors)


def test_going_back_to_any_kept_checkpoint_repeats_the_run(settings: Build, store: Path) -> None:
    """``resume.run`` and ``resume.step`` name it; from there the same steps have the same bits."""
    changes = {"checkpoint__minutes": 0, "stability__policy": "cut_lr", "stability__snapshot_every": 2}
    whole = result_of(run(settings(**changes)))
    for step in (3, 6):
        config = settings(**changes, resume__run=RUN, resume__step=step)
        again = result_of(run(config, load_checkpoint(run_folder(store, RUN), step)))
        assert again.weights_hash == whole.weights_hash
        assert (again.parent_run_id, again.branch_step) == (RUN, step)


def test_checkpoints_of_an_abandoned_branch_are_left_out(
    settings: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rollback from a later step to step 4; the branch has come to step 6, so steps 6 and 9 are of two branches."""
    config = settings(checkpoint__keep_every=3, checkpoint__minutes=0, stability__policy="cut_lr",
                      stability__snapshot_every=2)  # fmt: skip
    StoreWriter(tmp_path).close()
    folder = run_folder(tmp_path, RUN)
    made = {event.step: event for event in run(config) if isinstance(event, Checkpoint)}
    for step in (3, 6, 9):
        save_checkpoint(folder, made[step], keep=1, keep_every=3)
    branch = json.loads(json.dumps(made[6].state)) | {"tries": 1, "left": [4]}
    branch["moments"][0]["state"]["branch"] |= {"number": 1, "step": 4}
    save_checkpoint(folder, replace(made[6], state=branch), keep=1, keep_every=3)
    assert average.main([RUN, "--store", str(tmp_path), "--last", "2"]) == 0
    told = capsys.readouterr().out
    assert "the mean of run" in told and "at 2 steps, 3, 6; those at steps 9 are of a branch that a rollback" in told
    assert average.main([RUN, "--store", str(tmp_path), "--steps", "6,9"]) == 2
    assert "no checkpoint of step 9; checkpoints of run" in (told := capsys.readouterr().err)
    assert "kept at steps 3, 6; those at steps 9 are of a branch" in told
