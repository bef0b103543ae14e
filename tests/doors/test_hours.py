"""A budget of hours ends with a checkpoint, says so, and can be continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from grok.checkpoints import checkpoint_steps, run_folder
from grok.commands.store import main as store_command
from grok.gpt.training.engine import GptRun
from grok.store import open_store
from grok.text.preparation import Request, prepare
from tests.doors.conftest import Door

SMALL = ("mode=gpt", "experiment=gpt/shakespeare_char", "model.layers=1", "model.d_model=16", "model.heads=2",
         "train.steps=6", "train.batch_size=2", "eval.every=2", "eval.windows=2", "eval.sample_tokens=0",
         "train.threads=1", "numerics.compile=false", "save=none")  # fmt: skip


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    out = tmp_path / "fables"
    prepare(Request(form="fables", inputs=("20:0",), out=out, tokenizer="char"))
    return (*SMALL, f"data.path={out}")


def test_a_run_that_has_used_its_hours_continues_with_more(
    door: Door,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A clock that counts a step as an hour; the third command has no limit."""
    with monkeypatch.context() as patched:
        patched.setattr(GptRun, "seconds", lambda self: 3600.0 * self.step)
        for hours, step in ((2, 2), (2, 2), (5, 5)):
            paused = door(*words, f"train.hours={hours}", "store.path=S")
            assert paused.status == 1
            assert (
                f"train.hours={hours} is used at step {step} of 6: the same command with more train.hours" in paused.out
            )
            assert paused.out.splitlines()[-1].startswith("Paused: 0 of 1 run stored in S (0 new). Of run ")
            store = open_store(tmp_path / "S")
            (folder,) = store.layout.checkpoints.iterdir()
            assert len(store.runs()) == 0 and checkpoint_steps(folder)[0] == step
        assert store_command(["status", str(tmp_path / "S")]) == 0
        assert "1 runs have a checkpoint and no row" in capfd.readouterr().out
        assert door(*words, "store.path=S").status == 0
    assert door(*words, "train.hours=1000", "store.path=T").status == 0
    (ours,), (theirs,) = (open_store(tmp_path / s).runs().to_dict("records") for s in "ST")
    assert (ours["run_id"], ours["weights_hash"], ours["steps"]) == (theirs["run_id"], theirs["weights_hash"], 6)
    assert not checkpoint_steps(run_folder(tmp_path / "S", ours["run_id"]))
