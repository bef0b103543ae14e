"""``python -m tests.execute.kills [--kills N] [--out DIR]``: kill real sweeps at random moments and count what is lost.

A small sweep is started, killed at a random moment in one of six ways, and given again,
until it is through; its store is then compared with an undisturbed one, row by row and
bit by bit, times and hosts aside. The next sweep begins, until there were N kills. The
slow suite does the same with :func:`kill_sweeps`.

Writes DIR/kills.json and DIR/kills.md (default results/faults). Exit status 0 when no run
was lost, none counted twice and every store came out equal; 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from grok.store import Provenance
from tests.doors.conftest import TINY, command, start
from tests.execute.content import content, raw_run_ids

RUNS = 4
SWEEP = [
    "-m", f"seed=range(0,{RUNS})", *(word for word in TINY if not word.startswith(("train.steps", "eval"))),
    "train.steps=200", "eval.every=20", "workers=2", "checkpoint.every=40", "store.flush_seconds=0.5", "store.path=S",
]  # fmt: skip
"""Runs of about a second, checkpointed often."""

WAYS = {
    "SIGKILL of a worker": "a worker",
    "SIGKILL of the parent": "the parent",
    "SIGKILL of everything": "everything",
    "SIGTERM of the parent": signal.SIGTERM,
    "SIGUSR1 of the parent": signal.SIGUSR1,
    "SIGINT of the process group": signal.SIGINT,
}

LONGEST = 6.0
"""Seconds after its start by which a sweep is killed at the latest: most are through by then."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill and what it met."""

    sweep: int
    way: str
    after: float
    """Seconds since the command was given."""
    stage: str
    """``starting`` (no store yet), ``training`` or ``ending`` (all runs stored)."""
    stored: int
    """Runs committed just before it."""
    lost: int
    """Of those, missing just after it."""
    doubled: int
    """Runs counted twice just after it."""
    status: int
    """Exit status of the killed command."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A sweep that was killed until it was through."""

    sweep: int
    kills: int
    missing: int
    """Planned runs that the finished store lacks."""
    doubled: int
    equal: bool
    """Whether the finished store equals the undisturbed one, bit by bit."""


def children(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the processes that train: those that work, apart from the resource tracker."""
    found = []
    for child in children(process):
        with suppress(psutil.NoSuchProcess):
            if child.memory_info().rss > 150e6:
                found.append(child)
    return found


def end_all(process: subprocess.Popen[Any], others: Sequence[psutil.Process] = ()) -> None:
    """Kill a process, all that it started, and ``others``."""
    for child in [*children(process), *others]:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    with suppress(ProcessLookupError):
        process.kill()
    process.communicate()


def kill_once(process: subprocess.Popen[str], way: str, chance: random.Random) -> bool:
    """Kill in this way, wait until nothing of the sweep works any more, and return whether anything was killed.

    A worker's death does not end its sweep: that is waited for.
    """
    workers = workers_of(process)
    target: Any = WAYS[way]
    if target == "a worker" and not workers:  # the last one ended by itself a moment before
        process.communicate(timeout=300)
        return False
    if target == "a worker":
        with suppress(psutil.NoSuchProcess):
            chance.choice(workers).kill()
    elif target == "the parent":
        process.kill()
    elif target == "everything":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
    elif target == signal.SIGINT:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(target)
    process.communicate(timeout=300)
    psutil.wait_procs(workers, timeout=300)  # orphans leave their checkpoints first
    return True


def kill_sweeps(folder: Path, *, kills: int, seed: int) -> Iterator[Kill | Outcome]:
    """Kill sweeps in ``folder`` until there were at least ``kills``; yield each kill, and each sweep's outcome.

    Raises:
        AssertionError: a sweep that was left alone did not finish.
    """
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir(parents=True)
    ended = command(*SWEEP, "executor=inline", folder=undisturbed)
    assert ended.status == 0, ended
    wanted, planned = content(undisturbed / "S"), set(raw_run_ids(undisturbed / "S"))
    chance = random.Random(seed)
    done = sweep = 0
    while done < kills:
        sweep += 1
        here = folder / f"sweep-{sweep}"
        here.mkdir()
        before = done
        while True:
            process = start(*SWEEP, folder=here)
            try:
                begun = time.monotonic()
                way, after = chance.choice(list(WAYS)), chance.uniform(0.2, LONGEST)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(after)
                while WAYS[way] == "a worker" and process.poll() is None and not workers_of(process):
                    time.sleep(0.05)  # too early: there is none yet
                if process.poll() is not None:
                    assert process.returncode == 0, f"ended by itself with {process.returncode}"
                    break
                stored = raw_run_ids(here / "S")
                waited = time.monotonic() - begun
                killed = kill_once(process, way, chance)
            finally:
                end_all(process, workers_of(process))
            left = raw_run_ids(here / "S")
            assert killed or process.returncode == 0, f"ended by itself with {process.returncode}"
            if not killed or (process.returncode == 0 and way != "SIGKILL of a worker"):
                break  # it had ended by itself a moment before
            done += 1
            stage = "ending" if len(stored) == RUNS else "training" if (here / "S").exists() else "starting"
            yield Kill(
                sweep=sweep,
                way=way,
                after=round(waited, 2),
                stage=stage,
                stored=len(stored),
                lost=len(set(stored) - set(left)),
                doubled=len(left) - len(set(left)),
                status=process.returncode,
            )
        ended = command(*SWEEP, folder=here)
        assert ended.status == 0, ended
        found = raw_run_ids(here / "S")
        yield Outcome(
            sweep=sweep,
            kills=done - before,
            missing=len(planned - set(found)),
            doubled=len(found) - len(set(found)),
            equal=content(here / "S") == wanted,
        )
        shutil.rmtree(here)


def sound(results: list[Kill | Outcome]) -> bool:
    """Return whether nothing was lost, doubled or changed."""
    kills = [r for r in results if isinstance(r, Kill)]
    outcomes = [r for r in results if isinstance(r, Outcome)]
    return not any(k.lost or k.doubled for k in kills) and all(
        o.equal and not o.missing and not o.doubled for o in outcomes
    )


def page(results: list[Kill | Outcome], machine: dict[str, Any], words: str, seconds: float) -> str:
    """Return the figures as Markdown."""
    kills = [r for r in results if isinstance(r, Kill)]
    outcomes = [r for r in results if isinstance(r, Outcome)]
    stages = ("starting", "training", "ending")
    counted = Counter((k.way, k.stage) for k in kills)
    lines = [
        "# Sweeps killed at random moments",
        "",
        f"`{words}`: {machine['date']}, commit {machine['git_commit']}{' (dirty)' if machine['git_dirty'] else ''}, "
        f"torch {machine['torch_version']}, {seconds / 60:.0f} minutes.",
        "",
        f"Sweeps of {RUNS} runs of 200 steps on two workers, checkpointed every 40 steps, flushed every half second. "
        f"Each was killed at a random moment of its first {LONGEST:.0f} seconds and given again until it was through "
        "(a few were through before the first one); then its store was compared with that of an undisturbed sweep, row "
        "by row and bit by bit, times and hosts aside.",
        "",
        "| what | how many |",
        "|---|---|",
        f"| kills | {len(kills)} |",
        f"| sweeps that were killed | {len({k.sweep for k in kills})} |",
        f"| sweeps that ended before their first kill | {sum(not o.kills for o in outcomes)} |",
        f"| finished runs lost | {sum(k.lost for k in kills) + sum(o.missing for o in outcomes)} |",
        f"| runs counted twice | {sum(k.doubled for k in kills) + sum(o.doubled for o in outcomes)} |",
        f"| stores that differ from the undisturbed one | {sum(not o.equal for o in outcomes)} |",
        "",
        "| kill | " + " | ".join(stages) + " | all |",
        "|---|---|---|---|---|",
        *(
            f"| {way} | "
            + " | ".join(str(counted[way, stage]) for stage in stages)
            + f" | {sum(counted[way, stage] for stage in stages)} |"
            for way in WAYS
        ),
        "",
        "*starting*: there was no store yet; *training*: some runs were not stored yet; *ending*: all were.",
        "",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Kill, write the figures and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.execute.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/faults"))
    given = parser.parse_args(argv)
    begun = time.monotonic()
    results: list[Kill | Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        for result in kill_sweeps(Path(folder), kills=given.kills, seed=given.seed):
            results.append(result)
            print(result, flush=True)
    here = Provenance.collect().on_this_machine()
    machine = {
        "date": time.strftime("%Y-%m-%d"),
        "git_commit": here.git_commit,
        "git_dirty": here.git_dirty,
        "torch_version": here.torch_version,
    }
    words = f"python -m tests.execute.kills --kills {given.kills} --seed {given.seed}"
    given.out.mkdir(parents=True, exist_ok=True)
    table = [{"what": type(r).__name__.lower(), **asdict(r)} for r in results]
    (given.out / "kills.json").write_text(
        json.dumps({"command": words, **machine, "results": table}, indent=1) + "\n", encoding="utf-8"
    )
    text = page(results, machine, words, time.monotonic() - begun)
    (given.out / "kills.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if sound(results) else 1


if __name__ == "__main__":
    sys.exit(main())
