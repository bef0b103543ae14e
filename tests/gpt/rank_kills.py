"""``python -m tests.gpt.rank_kills [--kills N] [--minutes M] [--out DIR]``: kill a shared run's processes.

A *chain* is one run of a language model, by DDP and by FSDP2 in turn: started by ``torchrun`` with 2 or 4 processes, or
by one process, killed with SIGKILL at a random moment (after some checkpoints, or at a random time of its start), and
started again with another number of processes until it is through. What is killed is one rank, all ranks, or
``torchrun`` alone. Then every step and every evaluation are compared with those of a run that nobody killed.

Appends one row for each finished chain to DIR/rank_kills.csv (default results/faults) and writes DIR/rank_kills.md from
the whole table: given again, it goes on from the chains in the table until there are N kills, or M minutes are over. A
chain that was not finished counts nothing. Exit status 0 when nothing was lost or changed; 1 otherwise.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from grok.store import open_store
from tests.chains import append, machine, read_table
from tests.doors.conftest import command, environment
from tests.gpt.conftest import prepare_text, text_of

STEPS: Final = 300
RUN: Final = (
    "mode=gpt", "experiment=gpt/shakespeare_char", "model.layers=2", "model.d_model=24", "model.heads=3",
    "model.context=16", "model.dropout=0.1", "optim.warmup_steps=50", f"train.steps={STEPS}", "train.batch_size=8",
    "train.micro_batch=4", "train.threads=1", "eval.every=60", "eval.windows=8", "eval.sample_tokens=0", "save=final",
    "checkpoint.every=10", "log.quiet=true", "numerics.compile=false", "store.path=S",
)  # fmt: skip
PARALLEL: Final = ("ddp", "fsdp")
VICTIMS: Final = ("rank", "all", "launcher")
ROUNDING: Final = 1e-3
"""Largest relative difference of a loss that other orders of the same sums explain after so many steps."""
TABLE: Final = "rank_kills.csv"
PAGE: Final = "rank_kills.md"


@dataclass(frozen=True, slots=True)
class Chain:
    """One run that was killed until it was through: one row of the table."""

    parallel: str
    chain: int
    kills: int
    rank_of_2: int
    all_of_2: int
    launcher_of_2: int
    rank_of_4: int
    all_of_4: int
    launcher_of_4: int
    alone: int
    """Of the kills, those of a run by one process."""
    starting: int
    """Of the kills, those at a random time of a start."""
    lost: int
    """Kills after which the newest checkpoint was older than before."""
    steps_changed: int
    """Steps that are missing, doubled, or trained on other data or at another rate."""
    loss_difference: float
    """Largest relative difference of a step's loss."""
    final_difference: float
    """Relative difference of the last validation loss."""
    seconds: float
    date: str
    commit: str
    torch: str


def saved(folder: Path) -> int:
    """Return the number of the newest checkpoint: how many were written so far."""
    return max((int(p.name.split("-")[0]) for p in folder.glob("S/checkpoints/*/[0-9]*-step-*")), default=0)


def start(processes: int, words: Sequence[str], folder: Path, *options: str) -> subprocess.Popen[str]:
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
    launcher.wait(timeout=300)
    _, left = psutil.wait_procs(ranks, timeout=300)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in left)


def killed_until_through(folder: Path, words: Sequence[str], chance: random.Random) -> dict[str, int]:
    """Give the command in ``folder`` until it is through, killed again and again; return the counts of its row."""
    counts = dict.fromkeys((f.name for f in fields(Chain) if f.type == "int"), 0)
    del counts["chain"], counts["steps_changed"]
    while True:
        processes, before, begun = chance.choice((2, 4, 2, 4, 1)), saved(folder), time.monotonic()
        launcher = start(processes, words, folder)
        starting = chance.random() < 0.25
        goal = before if starting else before + chance.randint(1, 6)
        until = begun + chance.uniform(0.5, 20) if starting else float("inf")
        while launcher.poll() is None and time.monotonic() < until and (starting or saved(folder) < goal):
            time.sleep(0.01)
        if not starting:
            time.sleep(chance.uniform(0, 0.2))
        if launcher.poll() is not None:
            assert launcher.returncode == 0, (folder / "said").read_text()[-4000:]
            return counts
        victim, newest = chance.choice(VICTIMS), saved(folder)
        kill(victim, launcher, chance)
        counts["kills"] += 1
        counts["alone" if processes == 1 else f"{victim}_of_{processes}"] += 1
        counts["starting"] += starting
        counts["lost"] += saved(folder) < newest


def difference(killed: Path, whole: Path) -> dict[str, Any]:
    """Return how the run of a store differs from that of another one."""
    steps, expected = (open_store(store).steps().sort_values("step") for store in (killed, whole))
    changed = abs(len(steps) - len(expected))
    if not changed:
        columns = ["step", "consumed_samples", "consumed_tokens", "lr"]
        changed = int((steps[columns].to_numpy() != expected[columns].to_numpy()).any(axis=1).sum())
        apart = np.abs(steps.train_loss.to_numpy() / expected.train_loss.to_numpy() - 1).max()
    last = [float(open_store(store).runs().val_loss.iloc[0]) for store in (killed, whole)]
    return {
        "steps_changed": changed,
        "loss_difference": float(f"{float('inf') if changed else apart:.2g}"),
        "final_difference": float(f"{abs(last[0] / last[1] - 1):.2g}"),
    }


def kill_chains(folder: Path, out: Path, *, kills: int, minutes: float) -> list[Chain]:
    """Go on with the chains of ``out`` until there are ``kills`` or the time is over; return all."""
    until = time.monotonic() + 60 * minutes
    corpus = prepare_text(folder, text_of(4000)).path
    words = {parallel: (*RUN, f"train.parallel={parallel}", f"data.path={corpus}") for parallel in PARALLEL}
    whole, here = folder / "whole", machine()
    whole.mkdir()
    assert command(*words["ddp"], folder=whole).status == 0
    chains = read_table(out / TABLE, Chain)
    while time.monotonic() < until and sum(c.kills for c in chains) < kills:
        parallel = min(PARALLEL, key=lambda kind: sum(c.kills for c in chains if c.parallel == kind))
        number = sum(c.parallel == parallel for c in chains)
        place, begun = folder / f"{parallel} {number}", time.monotonic()
        place.mkdir()
        counts = killed_until_through(place, words[parallel], random.Random(f"{parallel} {number}"))
        numbers = counts | difference(place / "S", whole / "S")
        seconds = round(time.monotonic() - begun, 1)
        chains.append(Chain(parallel=parallel, chain=number, **numbers, seconds=seconds, **here))
        append(out / TABLE, chains[-1])
        (out / PAGE).write_text(page(chains), encoding="utf-8")
        print(chains[-1], flush=True)
        if sound([chains[-1]]):
            shutil.rmtree(place)
    return chains


def sound(chains: Sequence[Chain]) -> bool:
    """Return whether nothing was lost or changed but for rounding."""
    return all(
        not c.lost and not c.steps_changed and max(c.loss_difference, c.final_difference) < ROUNDING for c in chains
    )


def page(chains: Sequence[Chain]) -> str:
    """Return the counts of the table as Markdown."""
    killed = [f.name for f in fields(Chain) if "_of_" in f.name]
    columns = ("kills", *killed, "alone", "starting", "lost", "steps_changed")

    def row(name: str, of: Sequence[Chain]) -> str:
        numbers = [len(of), *(sum(getattr(c, column) for c in of) for column in columns)]
        worst = (max(c.loss_difference for c in of), max(c.final_difference for c in of))
        return f"| {name} | " + " | ".join([*map(str, numbers), *(f"{value:.1e}" for value in worst)]) + " |"

    days = sorted({c.date for c in chains})
    return "\n".join(
        [
            "# Runs of several processes, killed at random moments",
            "",
            f"`python -m tests.gpt.rank_kills`: {' to '.join(dict.fromkeys((days[0], days[-1])))}, commit "
            f"{', '.join(dict.fromkeys(c.commit for c in chains))}, torch {chains[-1].torch}, "
            f"{sum(c.seconds for c in chains) / 3600:.1f} hours. Every row: `{TABLE}`.",
            "",
            f"A chain is one run of {STEPS} steps (2 layers, dropout, a checkpoint every 10 steps) that is killed "
            "with SIGKILL at a random moment and started again by another number of processes (2 or 4 gloo ranks under "
            "torchrun, or one process) until it is through. Then its steps and evaluations are compared with those of "
            "a run that nobody killed.",
            "",
            f"| what | chains | kills | {' | '.join(name.replace('_', ' ') for name in killed)} | one process "
            "| while starting | checkpoints lost | steps lost, doubled or changed "
            "| largest difference of a step's loss | of the final loss |",
            "|---|" + "---|" * (len(columns) + 3),
            *(row(p, [c for c in chains if c.parallel == p]) for p in PARALLEL if any(c.parallel == p for c in chains)),
            row("**all**", chains),
            "",
            "*launcher*: torchrun alone. *while starting*: at a random moment of the first 20 seconds, else after some "
            "more checkpoints. Differences are relative; other numbers of processes add in another order.",
            "",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Kill, write the table and the page, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpt.rank_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="kills in all (default 50)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="longest time of this stretch")
    parser.add_argument("--out", type=Path, default=Path("results/faults"))
    given = parser.parse_args(argv)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rank-kills-") as folder:
        chains = kill_chains(Path(folder), out, kills=given.kills, minutes=given.minutes)
    return 0 if sound(chains) else 1


if __name__ == "__main__":
    sys.exit(main())
