"""The command itself, killed with SIGKILL at random moments and given again: its store says nothing of it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from grok.checkpoint import load_checkpoint, load_weights, run_folder
from grok.gpt.training.history import NUMBERS
from grok.store import open_store
from tests.doors.conftest import command, start
from tests.execute.content import content
from tests.gpt.conftest import prepare_text, text_of

TIMINGS = ("tokens_per_second", "mfu", "peak_memory", "data_wait")
KILLS = 8
RUN = (
    "mode=gpt", "experiment=gpt/shakespeare_char", "model.layers=2", "model.d_model=24", "model.heads=3",
    "model.context=16", "model.dropout=0.1", "optim.warmup_steps=50", "train.steps=900", "train.batch_size=6",
    "train.threads=1", "eval.every=60", "eval.windows=8", "eval.sample_tokens=4", "save=init,final",
    "checkpoint.every=20", "checkpoint.keep=true", "log.quiet=true", "store.path=S",
)  # fmt: skip


def saved(folder: Path) -> int:
    """Return the number of the newest checkpoint: how many were written so far."""
    return max((int(p.name.split("-")[0]) for p in folder.glob("S/checkpoints/*/[0-9]*-step-*")), default=0)


def killed_until_through(folder: Path, words: list[str], chance: random.Random) -> int:
    """Give the command again and again, killed ``KILLS`` times some checkpoints and milliseconds on; return kills."""
    kills = 0
    while kills < KILLS:
        process = start(*words, folder=folder)
        goal = saved(folder) + chance.randint(1, 4)
        while process.poll() is None and saved(folder) < goal:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))  # so that some die while they write
        if process.poll() is not None:
            process.communicate()
            break
        process.kill()
        process.communicate()
        kills += 1
    assert command(*words, folder=folder).status == 0
    return kills


def all_of_the_steps(store: Path) -> list[list[str]]:
    steps = open_store(store).steps().drop(columns=list(TIMINGS)).sort_values(["run_id", "step"])
    return [[v.hex() if isinstance(v, float) else str(v) for v in row] for row in steps.astype(object).to_numpy()]


RAMPED = ("train.batch_size=8", "train.micro_batch=4", "train.batch_ramp=[4,2,900]", "optim.schedule=one_cycle")
ROLLED_BACK = (
    "train.batch_size=2", "optim.lr=1e-2", "optim.schedule=constant", "stability.policy=skip_data",
    "stability.spike=0.8", "stability.sigma=4", "stability.window=16", "stability.snapshot_every=8",
    "stability.margin=4", "stability.skip_steps=1", "stability.tries=20",
)  # fmt: skip


@pytest.mark.slow  # eleven processes each
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", [(), RAMPED, ROLLED_BACK], ids=["plain", "accumulated and ramped", "rolled back"])
def test_killed_at_random_it_ends_as_if_it_never_was(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Curves, the log of every step, samples, weights, moments and counters, to the last bit."""
    text = text_of(4000)
    if words == ROLLED_BACK:  # signs that the model never saw, in a block or two
        text = text[:5000] + "#$%&*@+=~^<>#$%&*@+=~^<>" + text[5000:]
    corpus = prepare_text(tmp_path, text)
    given = [*RUN, "numerics.compile=false", f"data.path={corpus.path}", *words]
    folders = [tmp_path / name for name in ("killed", "whole")]
    for folder in folders:
        folder.mkdir()
    assert killed_until_through(folders[0], given, random.Random(len(words))) >= 5
    assert command(*given, folder=folders[1]).status == 0
    killed, whole = (folder / "S" for folder in folders)

    assert content(killed) == content(whole)
    assert all_of_the_steps(killed) == all_of_the_steps(whole)
    runs = open_store(whole).runs(["run_id", "status", "steps"])
    assert set(runs.status) == {"completed", "rolled_back"} if words == ROLLED_BACK else list(runs.steps) == [900]
    for run_id in runs.run_id:
        ours, theirs = (run_folder(store, run_id) for store in (killed, whole))
        kept = {path.name.removeprefix("weights-") for path in theirs.glob("weights-*")}
        assert kept >= {"init", "final", "best"}
        for moment in kept:
            a, b = load_weights(ours, moment), load_weights(theirs, moment)
            assert a.keys() == b.keys() and all(torch.equal(t, b[n]) for n, t in a.items())

    (run_id,) = runs.run_id[runs.status == "completed"]
    ends = [load_checkpoint(run_folder(store, run_id)) for store in (killed, whole)]
    assert ends[0].step == ends[1].step == 900
    a, b = (without_times(end.tensors) for end in ends)
    assert any(name.startswith("optim.exp_avg_sq.") for name in a)
    assert {n: t.dtype for n, t in a.items()} == {n: t.dtype for n, t in b.items()}
    assert all(torch.equal(t, b[n]) for n, t in a.items())
    assert ends[0].state["moments"] == ends[1].state["moments"]


def without_times(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    columns = [i for i, name in enumerate(NUMBERS) if name not in TIMINGS]
    return {n: t[:, columns] if n.endswith("log") else t for n, t in tensors.items()}
