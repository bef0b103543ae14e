"""``python -m tests.execute.random_kills [--kills N] [--minutes M] [--out DIR]``: kill every kind of work at random.

Five kinds of work in turn: a sweep (sometimes two at once in one store), a search, a merge, a
compaction, a language model. Each is started in a process group of its own, killed at a random
moment (SIGKILL of the group, or SIGTERM, SIGINT, SIGUSR1), and started again until it is
through. Then its store is compared with that of undisturbed work, row by row and bit by bit,
times and hosts aside. Work that is killed until it is through is a *chain*.

This process imports everything once and forks for each start, so that a kill costs no import;
it never opens a store itself. The kill of a worker of a pool is counted by
``tests.execute.kills``, which starts whole commands.

Appends one row for each finished chain to DIR/random_kills.csv (default results/faults) and
writes DIR/random_kills.md from the whole table: given again, it goes on from the chains in the
table until there are N kills of each kind, or M minutes are over. A chain that was not finished
counts nothing. Exit status 0 when nothing was lost, doubled or changed; 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow.parquet as pq

import grok.run
import sweeps.search.__main__
from analysis.documents import searches
from grok.cli import store as store_commands
from grok.execute import worker  # noqa: F401  (imported before the forks, with torch)
from grok.gpt.training import engine  # noqa: F401
from grok.store import StoreWriter, open_store
from grok.store.contract import contents
from grok.store.designs import keys_of
from grok.store.testing import example_design, example_rows
from sweeps.search import carry_out  # noqa: F401
from tests.chains import append, machine, read_table
from tests.doors.conftest import TINY
from tests.execute.content import content, raw_run_ids
from tests.execute.random_kills_page import KINDS, PAGE, SHARDS, TABLE, Chain, page, sound
from tests.gpt.conftest import prepare_text, text_of

T = TypeVar("T")

WAYS: Final = {
    "SIGKILL": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
    "SIGINT": signal.SIGINT,
    "SIGUSR1": signal.SIGUSR1,
}

INLINE: Final = ("executor=inline", "numerics.compile=false", "store.flush_seconds=0.3", "store.path=S")
SWEEP: Final = (
    "-m", "seed=range(0,4)", *(word for word in TINY if not word.startswith(("train.steps", "eval"))),
    "train.steps=60", "eval.every=10", "checkpoint.every=15", *INLINE,
)  # fmt: skip
SEARCH: Final = (
    "study=quickstart", "task.modulus=7", "train.steps=30", "eval.every=10", "model.d_model=8", "model.d_ff=16",
    "train.batch_size=20", "study.trials=3", "study.seeds=2", "study.parallel=1", "checkpoint.every=10", *INLINE,
)  # fmt: skip
LANGUAGE_MODEL: Final = (
    "mode=gpt", "experiment=gpt/shakespeare_char", "model.layers=1", "model.d_model=16", "model.heads=2",
    "model.context=8", "optim.warmup_steps=10", "train.steps=80", "train.batch_size=4", "train.threads=1",
    "eval.every=20", "eval.windows=4", "eval.sample_tokens=2", "checkpoint.every=10", "log.quiet=true", *INLINE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: how a chain is set up, what is started, and where its result lies."""

    prepare: Callable[[Path], None]
    main: Callable[[Sequence[str]], int]
    words: tuple[str, ...]
    store: str = "S"


def filled(folder: Path, seeds: range) -> None:
    """Make a store of one shard a run, each with a folder of weights and a design of its own."""
    with StoreWriter(folder) as writer:
        for row in example_rows(seeds):
            writer.record_design(example_design([row.result.run_id]))
            weights = folder / "checkpoints" / row.result.run_id / "weights-final"
            weights.mkdir(parents=True)
            (weights / "weights.bin").write_bytes(bytes(2000))
            writer.commit([row])


def works(corpus: Path) -> dict[str, Work]:
    """Return the kinds of work; the language model's is read from ``corpus``."""

    def nothing(folder: Path) -> None:
        pass

    def two(folder: Path) -> None:
        filled(folder / "A", range(SHARDS))
        filled(folder / "B", range(SHARDS // 2, SHARDS * 3 // 2))

    return {
        "sweep": Work(nothing, grok.run.main, SWEEP),
        "search": Work(nothing, sweeps.search.__main__.main, SEARCH),
        "merge": Work(two, store_commands.main, ("merge", "A", "B", "--into", "S")),
        "compaction": Work(lambda folder: filled(folder / "S", range(SHARDS)), store_commands.main, ("compact", "S")),
        "language model": Work(nothing, grok.run.main, (*LANGUAGE_MODEL, f"data.path={corpus}")),
    }


def begin(main: Callable[[Sequence[str]], int], words: Sequence[str], folder: Path) -> int:
    """Fork a process with a session of its own that carries out a command in ``folder``; return its number."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        os.chdir(folder)
        said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv = ["grok", *words]
        status = main(list(words))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def aside(function: Callable[..., T], *arguments: Any) -> T:
    """Return what ``function`` gives in a forked process: this one stays without threads and open files."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        status = 1
        try:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(function(*arguments), pipe)
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"{function.__name__}{arguments} failed"
    result: T = pickle.loads(answer)
    return result


def seen(store: Path) -> set[object]:
    """Return the runs and rows of designs that a reader of the store sees, also while somebody works in it."""
    if not (store / "store.json").is_file():
        return set()
    opened = open_store(store)
    return {*opened.run_ids(), *keys_of(opened.designs_table())}


def doubled(store: Path) -> int:
    """Return how many runs and rows of designs are there twice for a reader of the files alone."""
    raw: list[object] = list(raw_run_ids(store))
    for file in (store / "designs").glob("*.parquet"):
        raw += keys_of(pq.read_table(file))
    return len(raw) - len(set(raw))


def result(store: Path) -> tuple[Any, ...]:
    """Return runs, curves, designs and the trials of the searches of a finished store."""
    designs = contents(store, "designs").drop_columns(["results_seen"]).to_pylist()
    trials = [study["trials"] for study in searches(store)]
    return (*content(store), designs, trials)


def ended(pid: int, seconds: float, watched: Path | None = None, changes: int = 0) -> int | None:
    """Return how a process ended (as waitpid says it), None when it works on.

    It works on after ``seconds``, or when the files below ``watched`` have changed ``changes`` times.
    """
    until = time.monotonic() + seconds
    last, many = files_of(watched), 0
    while True:
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            return status
        if watched is not None and (now := files_of(watched)) != last:
            last, many = now, many + 1
        if time.monotonic() >= until or (watched is not None and many >= changes):
            return None
        time.sleep(0.002)


def undisturbed(work: Work, place: Path) -> tuple[float, int]:
    """Run ``work`` to its end; return its seconds and how often the files of its store changed."""
    pid, begun = begin(work.main, work.words, place), time.monotonic()
    last, many = files_of(place / work.store), 0
    while (status := ended(pid, 0)) is None:
        if (now := files_of(place / work.store)) != last:
            last, many = now, many + 1
        time.sleep(0.002)
    assert os.waitstatus_to_exitcode(status) == 0, (place / "said.txt").read_text()
    return time.monotonic() - begun, many


def files_of(folder: Path | None) -> frozenset[tuple[str, int]]:
    """Return path and size of every file below ``folder``, as far as they stay while they are listed."""
    files = set()
    for place, _, names in os.walk(folder) if folder is not None else ():
        for name in names:
            with suppress(OSError):
                files.add((f"{place}/{name}", os.lstat(f"{place}/{name}").st_size))
    return frozenset(files)


def kill_chain(
    work: Work, folder: Path, wanted: Any, longest: tuple[float, int], chance: random.Random, kind: str
) -> dict[str, Any]:
    """Kill ``work`` in ``folder`` until it is through; return the numbers of its row.

    ``longest`` are the seconds of undisturbed work and how often it changes its files. Every second kill waits for a
    number of changes: most of a short work's seconds are its start.
    """
    store = folder / work.store
    counts = dict.fromkeys(("kills", "sigkill", "sigterm", "sigint", "sigusr1", "pairs", "starting"), 0)
    lost = twice = 0
    first = aside(seen, store)
    while True:
        pair = kind == "sweep" and chance.random() < 0.25
        at_work = [begin(work.main, work.words, folder) for _ in range(2 if pair else 1)]
        through = False
        while at_work:
            if chance.random() < 0.5:
                status = ended(at_work[0], chance.uniform(0, longest[0]))
            else:
                status = ended(at_work[0], float("inf"), store, chance.randint(1, max(1, longest[1])))
            if status is not None:  # it was through before its kill
                assert os.waitstatus_to_exitcode(status) == 0, (folder / "said.txt").read_text()
                at_work.pop(0)
                through = True
                continue
            pid = at_work.pop(chance.randrange(len(at_work)))
            way = chance.choice(("SIGKILL", *WAYS))
            before = aside(seen, store)
            with suppress(ProcessLookupError):
                os.killpg(pid, WAYS[way])
            killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if killed == 0:  # it had ended by itself a moment before
                through = True
                continue
            assert killed == (-signal.SIGKILL if way == "SIGKILL" else 1) or killed == -WAYS[way], (
                f"{way}: exit {killed}: {(folder / 'said.txt').read_text()}"
            )
            lost += len(before - aside(seen, store))
            if not at_work:
                twice += aside(doubled, store)
            counts["kills"] += 1
            counts[way.lower()] += 1
            counts["pairs"] += pair
            counts["starting"] += before == first
        if through:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(begin(work.main, work.words, folder), 0)[1]) == 0
    runs = aside(seen, store)
    twice += aside(doubled, store)
    found = aside(result, store)
    missing = {row["run_id"] for row in wanted[0]} - runs
    return {**counts, "lost": lost, "doubled": twice, "missing": len(missing), "equal": found == wanted}


def kill_chains(folder: Path, out: Path, *, kills: int, minutes: float, kinds: Sequence[str]) -> list[Chain]:
    """Go on with the chains of ``out`` until there are ``kills`` of each kind or the time is over; return all."""
    until = time.monotonic() + 60 * minutes
    corpus = aside(_corpus, folder)
    every, wanted, longest = works(corpus), {}, {}
    here = aside(machine)
    for kind in kinds:
        start, place = folder / f"start of a {kind}", folder / f"undisturbed {kind}"
        start.mkdir()
        aside(every[kind].prepare, start)
        shutil.copytree(start, place)
        longest[kind] = undisturbed(every[kind], place)
        wanted[kind] = aside(result, place / "S")
    chains = read_table(out / TABLE, Chain)
    while time.monotonic() < until:
        count = {kind: sum(c.kills for c in chains if c.kind == kind) for kind in kinds}
        kind = min(kinds, key=lambda kind: count[kind])
        if count[kind] >= kills:
            break
        number = sum(c.kind == kind for c in chains)
        place = folder / f"{kind} {number}"
        begun = time.monotonic()
        shutil.copytree(folder / f"start of a {kind}", place)
        numbers = kill_chain(every[kind], place, wanted[kind], longest[kind], random.Random(f"{kind} {number}"), kind)
        seconds = round(time.monotonic() - begun, 1)
        chains.append(Chain(kind=kind, chain=number, **numbers, seconds=seconds, **here))
        append(out / TABLE, chains[-1])
        (out / PAGE).write_text(page(chains), encoding="utf-8")
        print(chains[-1], flush=True)
        if sound([chains[-1]]):
            shutil.rmtree(place)
    return chains


def _corpus(folder: Path) -> Path:
    (folder / "text").mkdir()
    return prepare_text(folder / "text", text_of(400)).path


def main(argv: list[str] | None = None) -> int:
    """Kill, write the table and the page, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.execute.random_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="kills of each kind (default 200)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="longest time of this stretch")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of work (default all)")
    parser.add_argument("--out", type=Path, default=Path("results/faults"))
    given = parser.parse_args(argv)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="random-kills-") as folder:
        chains = kill_chains(Path(folder), out, kills=given.kills, minutes=given.minutes, kinds=given.kinds)
    return 0 if sound(chains) else 1


if __name__ == "__main__":
    sys.exit(main())
