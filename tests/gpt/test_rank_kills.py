"""A run of several processes under torchrun, killed at random moments and gone on with by another number of them."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grok.store import open_store
from tests.doors.conftest import command, environment
from tests.gpt.conftest import prepare_text, text_of

STEPS = 300
RUN = (
    "mode=gpt", "experiment=gpt/shakespeare_char", "model.layers=2", "model.d_model=24", "model.heads=3",
    "model.context=16", "model.dropout=0.1", "optim.warmup_steps=50", f"train.steps={STEPS}", "train.batch_size=8",
    "train.micro_batch=4", "train.threads=1", "eval.every=60", "eval.windows=8", "eval.sample_tokens=0", "save=final",
    "checkpoint.every=10", "log.quiet=true", "numerics.compile=false", "store.path=S",
)  # fmt: skip


def saved(folder: Path) -> int:
    """Return the number of the newest checkpoint: how many were written so far."""
    return max((int(p.name.split("-")[0]) for p in folder.glob("S/checkpoints/*/[0-9]*-step-*")), default=0)


def start(processes: int, words: list[str], folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start a run by ``processes`` processes; they and torchrun write into ``folder``/said."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", *options]
    if processes == 1:
        launch = [sys.executable]
    with (folder / "said").open("a") as said:
        return subprocess.Popen(
            [*launch, "-m", "grok.run", *words], cwd=folder, env=environment(), stdout=said, stderr=said, text=True
        )


def ranks_of(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the processes that torchrun started, or the one that was started without it."""
    try:
        own = psutil.Process(launcher.pid)
        return [child for child in own.children() if "grok.run" in child.cmdline()] or [own]
    except psutil.Error:
        return []


def kill(victim: str, launcher: subprocess.Popen[str], chance: random.Random) -> None:
    """Kill one rank, all ranks at once, or torchrun alone; wait until none of them is left."""
    ranks = ranks_of(launcher)
    doomed = {"rank": [chance.choice(ranks)] if ranks else [], "all": ranks, "launcher": []}[victim]
    for process in doomed:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    if victim == "launcher":
        launcher.kill()
    launcher.wait(timeout=120)
    psutil.wait_procs(ranks, timeout=120)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in ranks)


def killed_until_through(
    folder: Path, words: list[str], kills: int, seed: int, counts: tuple[int, ...]
) -> dict[str, int]:
    """Give the command until it is through, killed up to ``kills`` times; return how often what was killed.

    A kill may cost no step before the newest checkpoint.
    """
    chance, done, victims = random.Random(seed), {}, ("rank", "all", "launcher")
    while sum(done.values()) < kills:
        processes = chance.choice(counts)
        before = saved(folder)
        launcher = start(processes, words, folder)
        goal = before + chance.randint(1, 4)
        while launcher.poll() is None and saved(folder) < goal:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.2))
        if launcher.poll() is not None:
            assert launcher.returncode == 0, (folder / "said").read_text()[-4000:]
            return done
        victim = chance.choice(victims)
        kill(victim, launcher, chance)
        done[f"{victim} of {processes}"] = done.get(f"{victim} of {processes}", 0) + 1
        assert saved(folder) >= goal
    assert start(chance.choice(counts), words, folder).wait(timeout=600) == 0, (folder / "said").read_text()[-4000:]
    return done


def assert_same_run(killed: Path, whole: Path) -> None:
    """Every step once, the same data at each, losses equal to rounding."""
    steps = [open_store(store).steps().sort_values("step") for store in (killed, whole)]
    assert steps[0].step.tolist() == steps[1].step.tolist() == list(range(1, STEPS + 1))
    for name in ("consumed_samples", "consumed_tokens", "lr"):
        assert steps[0][name].tolist() == steps[1][name].tolist()
    assert steps[0].train_loss.tolist() == pytest.approx(steps[1].train_loss.tolist(), rel=1e-3)
    curves = [open_store(store).curves().sort_values("step") for store in (killed, whole)]
    assert curves[0].step.tolist() == curves[1].step.tolist()
    assert curves[0].val_loss.tolist() == pytest.approx(curves[1].val_loss.tolist(), rel=1e-3)
    assert open_store(killed).runs().status.tolist() == ["completed"]


def words_for(folder: Path, *more: str) -> list[str]:
    return [*RUN, f"data.path={prepare_text(folder, text_of(4000)).path}", *more]


@pytest.mark.timeout(300)
def test_a_process_that_dies_ends_all_and_the_step_before_is_kept(tmp_path: Path) -> None:
    """No checkpoint is due, so the one that is left is that of the end; torchrun goes on from it by itself."""
    words = words_for(
        tmp_path, "checkpoint.every=0", "checkpoint.minutes=0", "log.quiet=false", "eval.every=20", "train.steps=100"
    )
    launcher = start(2, words, tmp_path, "--max-restarts=1")
    said = tmp_path / "said"
    deadline = time.monotonic() + 120
    while "step 20:" not in said.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks = ranks_of(launcher)
    other = next(rank for rank in ranks if rank.environ()["RANK"] == "1")
    other.kill()
    assert launcher.wait(timeout=200) == 0, said.read_text()[-4000:]
    text = said.read_text()
    # torchrun's SIGTERM may come while rank 0 is at its last line
    assert len(re.findall(r"^(Stopped: another process of this run ended|Interrupted: ).* goes on", text, re.M)) == 1, (
        text
    )
    assert "Traceback" not in re.split("Stopped:|Interrupted:", text)[0]
    steps = open_store(tmp_path / "S").steps().sort_values("step")
    assert steps.step.tolist() == list(range(1, 101))
    assert "1 run stored in S (1 new)." in text


@pytest.mark.slow  # more than fifty launches of two to four processes
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("parallel", "kills"), [("ddp", 30), ("fsdp", 20)], ids=["each has the whole", "in shares"])
def test_killed_at_random_and_gone_on_with_by_another_number(tmp_path: Path, parallel: str, kills: int) -> None:
    words = words_for(tmp_path, f"train.parallel={parallel}")
    folders = [tmp_path / name for name in ("killed", "whole")]
    for folder in folders:
        folder.mkdir()
    assert command(*words, folder=folders[1]).status == 0
    done: dict[str, int] = {}
    rounds = 0
    while sum(done.values()) < kills:
        folder = folders[0] / str(rounds)
        folder.mkdir()
        for what, n in killed_until_through(folder, words, kills - sum(done.values()), rounds, (2, 4, 1)).items():
            done[what] = done.get(what, 0) + n
        assert_same_run(folder / "S", folders[1] / "S")
        rounds += 1
    print(f"{parallel}: {sum(done.values())} kills in {rounds} runs: {done}", file=sys.stderr)
    if out := os.environ.get("KILL_COUNTS"):
        with Path(out).open("a") as file:
            file.write(f"{parallel}: {sum(done.values())} kills in {rounds} runs: {dict(sorted(done.items()))}\n")
