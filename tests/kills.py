"""``python -m tests.kills [--kills N] [--minutes M] [--kinds KIND...] [--out DIR]``: kill every kind of work at random.

Each kind in turn: a sweep (sometimes two at once in one store), a sweep on a pool of workers, a long run, a search, a
merge, a compaction, language models (plain, ramped, rolled back), and a language model of several processes under
``torchrun``, which another number of processes continues. Each is started in a session of its own, killed at a random
moment of its time or after some changes of its files, and started again until it is through. Then its store is compared
with that of undisturbed work, row by row and bit by bit, times and hosts aside; of several processes up to rounding.
Work that is killed until it is through is a *chain*.

Kills: SIGKILL of everything, SIGKILL of the parent alone or of one worker (rank), SIGTERM, SIGINT, SIGUSR1. This
process imports everything once and forks for each start, so that a kill costs no import; it never opens a store itself.

Appends one row for each finished chain to DIR/kills.csv (default results/faults) and writes DIR/kills.md from the whole
table: given again, it goes on from the chains in the table until there are N kills of each kind, or M minutes are over.
A chain that was not finished counts nothing. Exit status 0 when nothing was lost, doubled or changed; 1 otherwise.
"""

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq

from grok.store import Provenance, StoreWriter, open_store
from grok.store.designs import keys_of
from tests.doors.conftest import TINY, environment
from tests.execute.content import content, raw_run_ids
from tests.gpt.conftest import prepare_text, text_of
from tests.store.contract import contents, example_design, example_rows

T = TypeVar("T")
TABLE: Final = "kills.csv"
PAGE: Final = "kills.md"
SHARDS: Final = 16
"""Shards of one run each that are merged or compacted."""
ROUNDING: Final = 1e-3
"""Largest relative difference of a loss that other orders of the same sums explain after some hundred steps."""
TIMINGS: Final = ("tokens_per_second", "mfu", "peak_memory", "data_wait")

SIGNALS: Final = {name: getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1")}
ALONE: Final = ("SIGKILL", *SIGNALS)
"""What kills work of one process: SIGKILL as often as two others."""
POOL: Final = (*SIGNALS, "worker", "parent")
RANKS: Final = ("SIGKILL", "worker", "parent")

SMALL: Final = tuple(word for word in TINY if not word.startswith(("train.steps", "eval")))
RUNS: Final = 4
SWEEP: Final = (
    "-m", f"seed=range(0,{RUNS})", *SMALL, "train.steps=200", "eval.every=20", "workers=2", "checkpoint.every=40",
    "store.flush_seconds=0.5", "store.path=S",
)  # fmt: skip
"""Runs of about a second on a pool of two workers, checkpointed often."""
INLINE: Final = ("executor=inline", "numerics.compile=false", "store.flush_seconds=0.3", "store.path=S")
LANGUAGE_MODEL: Final = (
    "mode=gpt", "experiment=gpt/shakespeare_char", "model.layers=2", "model.d_model=24", "model.heads=3",
    "model.context=16", "model.dropout=0.1", "optim.warmup_steps=50", "train.threads=1", "eval.every=60",
    "eval.windows=8", "eval.sample_tokens=4", "log.quiet=true", "numerics.compile=false", "store.path=S",
)  # fmt: skip
WHOLE: Final = (*LANGUAGE_MODEL, "train.steps=400", "train.batch_size=6", "save=init,final", "checkpoint.every=20",
                "checkpoint.keep=true", "executor=inline")  # fmt: skip
SHARED: Final = (*LANGUAGE_MODEL, "train.steps=300", "train.batch_size=8", "train.micro_batch=4", "save=final",
                 "checkpoint.every=10")  # fmt: skip
RAMPED: Final = ("train.batch_size=8", "train.micro_batch=4", "train.batch_ramp=[4,2,400]", "optim.schedule=one_cycle")
ROLLED_BACK: Final = (
    "train.batch_size=2", "optim.lr=1e-2", "optim.schedule=constant", "stability.policy=skip_data",
    "stability.spike=0.8", "stability.sigma=4", "stability.window=16", "stability.snapshot_every=8",
    "stability.margin=4", "stability.skip_steps=1", "stability.tries=20",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chain:
    """Work that was killed until it was through: one row of the table."""

    kind: str
    chain: int
    kills: int
    ways: str
    """How often in which way: ``SIGKILL 2, worker 1``."""
    pairs: int
    """Of the kills, those of one of two sweeps that worked in one store."""
    starting: int
    """Of the kills, those before anything was added to the store."""
    lost: int
    """Runs stored before a kill and missing after it, and kills that took the newest checkpoint along."""
    doubled: int
    """Runs that were there twice after a kill or at the end."""
    missing: int
    """Runs, or steps of a shared run, that the finished store lacks."""
    equal: bool
    """Whether the finished store equals that of undisturbed work."""
    difference: float
    """Largest relative difference of a loss: 0 but for several processes, which add in another order."""
    seconds: float
    date: str
    commit: str
    torch: str


def read_table(path: Path) -> list[Chain]:
    """Return the chains of a table, none where there is no table yet."""
    if not path.exists():
        return []
    rows = pd.read_csv(path, keep_default_na=False, dtype={field.name: field.type for field in fields(Chain)})
    return [Chain(**row) for row in rows.to_dict("records")]


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row to a table, with a head where it is new."""
    pd.DataFrame([row]).to_csv(path, mode="a", header=not path.exists(), index=False)


def sound(chains: Sequence[Chain]) -> bool:
    """Return whether nothing was lost, doubled or changed."""
    return all(c.equal and not c.lost and not c.doubled and not c.missing and c.difference < ROUNDING for c in chains)


def page(chains: Sequence[Chain]) -> str:
    """Return the counts of the table as Markdown."""
    kinds = dict.fromkeys(c.kind for c in chains)
    commits, days = ", ".join(dict.fromkeys(c.commit for c in chains)), sorted({c.date for c in chains})

    def row(name: str, of: Sequence[Chain]) -> str:
        ways: Counter[str] = Counter()
        for chain in of:
            for way, count in (entry.rsplit(" ", 1) for entry in chain.ways.split(", ") if entry):
                ways[way] += int(count)
        counts = [sum(getattr(c, column) for c in of) for column in ("pairs", "starting", "lost", "doubled", "missing")]
        shown = ", ".join(f"{way} {count}" for way, count in sorted(ways.items()))
        numbers = [len(of), sum(c.kills for c in of), shown, *counts, sum(not c.equal for c in of)]
        return f"| {name} | {' | '.join(map(str, numbers))} | {max(c.difference for c in of):.1e} |"

    return "\n".join(
        [
            "# Every kind of work killed at random moments",
            "",
            f"`python -m tests.kills`: {' to '.join(dict.fromkeys((days[0], days[-1])))}, commits {commits}, torch "
            f"{chains[-1].torch}. Every row: `{TABLE}`.",
            "",
            "A chain is one piece of work that is killed at a random moment (of its time, or after some changes of its "
            "files) and started again until it is through. Then its store is compared with that of undisturbed work, "
            "row by row and bit by bit, times and hosts aside; a run of several processes up to rounding.",
            "",
            "| work | chains | kills | of which | of a pair | before anything was added | runs lost | runs doubled "
            "| missing at the end | stores that differ | largest difference of a loss |",
            "|---|" + "---|" * 10,
            *(row(kind, [c for c in chains if c.kind == kind]) for kind in kinds),
            row("**all**", chains),
            "",
            "*worker*: SIGKILL of one worker of a pool or one rank; *parent*: SIGKILL of the command or of torchrun "
            "alone; *SIGKILL*: of everything. *of a pair*: the kill of one of two sweeps that worked in one store.",
            "",
        ]
    )


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: how a chain is set up, what is started, and how it is killed."""

    main: Callable[[Sequence[str]], int] | None
    """Called in a fork; None: ``python -m grok.run``, or torchrun with some processes, takes its place."""
    words: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None
    ways: tuple[str, ...] = ALONE
    pieces: int = 1
    """Kills that an undisturbed piece of work has time for, about: of long ones more."""


def filled(folder: Path, seeds: range) -> None:
    """Make a store of one shard a run, each with a folder of weights and a design of its own."""
    with StoreWriter(folder) as writer:
        for row in example_rows(seeds):
            writer.record_design(example_design([row.result.run_id]))
            weights = folder / "checkpoints" / row.result.run_id / "weights-final"
            weights.mkdir(parents=True)
            (weights / "weights.bin").write_bytes(bytes(2000))
            writer.commit([row])


def works(place: Path) -> dict[str, Work]:
    """Return the kinds of work; corpora are made in ``place``."""
    import grok.run
    import grok.sweeps.search.__main__
    from grok.commands import store as store_commands
    from grok.execute import worker  # noqa: F401  (imported before the forks, with torch)
    from grok.gpt.training import engine  # noqa: F401
    from grok.sweeps.search import driver  # noqa: F401

    text = text_of(4000)
    texts = {"plain": text, "odd": text[:5000] + "#$%&*@+=~^<>#$%&*@+=~^<>" + text[5000:]}  # signs that are not learnt
    for name in texts:
        (place / name).mkdir()
    plain, odd = (f"data.path={aside(lambda *of: prepare_text(*of).path, place / n, t)}" for n, t in texts.items())
    often = ("train.steps=60", "eval.every=10", "checkpoint.every=15", *INLINE)
    search = ("study=quickstart", "task.modulus=7", "train.steps=30", "eval.every=10", "model.d_model=8",
              "model.d_ff=16", "train.batch_size=20", "study.trials=3", "study.seeds=2", "study.parallel=1",
              "checkpoint.every=10", *INLINE)  # fmt: skip
    long = (*SMALL, "seed=5", "train.steps=100000", "eval.every=100", "checkpoint.every=1000", "checkpoint.keep=true",
            *INLINE)  # fmt: skip
    run, store = grok.run.main, store_commands.main
    return {
        "sweep": Work(run, ("-m", "seed=range(0,4)", *SMALL, *often)),
        "pool": Work(None, SWEEP, ways=POOL),
        "search": Work(grok.sweeps.search.__main__.main, search),
        "merge": Work(store, ("merge", "A", "B", "--into", "S"), _two_stores),
        "compaction": Work(store, ("compact", "S"), lambda folder: filled(folder / "S", range(SHARDS))),
        "language model": Work(run, (*WHOLE, plain), pieces=4),
        "ramped language model": Work(run, (*WHOLE, plain, *RAMPED), pieces=4),
        "rolled back language model": Work(run, (*WHOLE, odd, *ROLLED_BACK), pieces=4),
        "ddp": Work(None, (*SHARED, plain, "train.parallel=ddp"), ways=RANKS, pieces=5),
        "fsdp": Work(None, (*SHARED, plain, "train.parallel=fsdp"), ways=RANKS, pieces=5),
        "long run": Work(run, long, ways=("SIGKILL",), pieces=10),
    }


KINDS: Final = (
    "sweep", "pool", "search", "merge", "compaction", "language model", "ramped language model",
    "rolled back language model", "ddp", "fsdp", "long run",
)  # fmt: skip


def _two_stores(folder: Path) -> None:
    filled(folder / "A", range(SHARDS))
    filled(folder / "B", range(SHARDS // 2, SHARDS * 3 // 2))


def begin(work: Work, folder: Path, processes: int = 1) -> int:
    """Fork a process with a session of its own that does ``work`` in ``folder``; return its number."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        os.chdir(folder)
        output = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.argv = ["grok", *work.words]
        if work.main is None:
            launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
            words = [sys.executable, *(launch if processes > 1 else []), "-m", "grok.run", *work.words]
            os.execve(sys.executable, words, environment())
        status = work.main(list(work.words))
    except BaseException:
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


def children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the processes that train for a command: those that work, apart from the resource tracker."""
    workers = []
    for child in children(pid):
        with suppress(psutil.NoSuchProcess):
            if child.memory_info().rss > 150e6:
                workers.append(child)
    return workers


def end_all(process: subprocess.Popen[Any], others: Sequence[psutil.Process] = ()) -> None:
    """Kill a process, all that it started, and ``others``."""
    for child in [*children(process.pid), *others]:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    with suppress(ProcessLookupError):
        process.kill()
    process.communicate()


def kill(pid: int, way: str, chance: random.Random) -> None:
    """Kill in this way, and wait until nothing that trained works any more."""
    workers = workers_of(pid)
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        if way == "worker" and workers:
            chance.choice(workers).kill()
        elif way in ("worker", "parent"):  # without workers the command is its own
            os.kill(pid, signal.SIGKILL)
        elif way in ("SIGTERM", "SIGUSR1"):
            os.kill(pid, SIGNALS[way])
        else:
            os.killpg(pid, SIGNALS[way])
    for process in workers if way == "SIGKILL" else []:
        with suppress(psutil.NoSuchProcess):
            process.kill()


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


def result(store: Path) -> dict[str, Any]:
    """Return all that must be equal: runs, curves, steps, designs, trials, kept weights and the last checkpoints."""
    from safetensors.torch import load_file

    designs = contents(store, "designs").drop_columns(["results_seen"]).to_pylist()
    trials = [json.loads(path.read_text())["trials"] for path in sorted((store / "search").glob("quickstart.json"))]
    steps = open_store(store).steps().drop(columns=list(TIMINGS), errors="ignore").sort_values(["run_id", "step"])
    runs, curves = content(store)
    done, tensors = open_store(store).run_ids("completed"), {}
    for manifest in sorted((store / "checkpoints").glob("*/*/manifest.json")):
        newest = max(manifest.parents[1].glob("[0-9]*-step-*"), default=None)
        last = manifest.parent == newest and manifest.parts[-3] in done
        if manifest.parent.name.startswith("weights-") or last:
            name = f"{manifest.parts[-3]} {manifest.parent.name.rpartition('-')[2]}"
            for file in manifest.parent.glob("*.safetensors"):
                for key, tensor in load_file(file).items():
                    if not key.endswith("log"):  # it holds times
                        tensors[name, file.name, key] = tensor.flatten().view(-1).numpy(force=True).tobytes()
    steps = steps.fillna("").astype(str).to_numpy().tolist()  # a column of nulls alone is read in two ways
    return {"runs": runs, "curves": curves, "designs": designs, "trials": trials, "steps": steps, "tensors": tensors}


def same_steps(store: Path, whole: Path) -> tuple[int, float]:
    """Return how many steps of a shared run are missing or were trained on other data, and how far losses differ."""
    ours, theirs = (open_store(place).steps().sort_values("step") for place in (store, whole))
    columns = ["step", "consumed_samples", "consumed_tokens", "lr"]
    if len(ours) != len(theirs):
        return abs(len(ours) - len(theirs)), float("inf")
    changed = int((ours[columns].to_numpy() != theirs[columns].to_numpy()).any(axis=1).sum())
    last = [float(open_store(place).runs().val_loss.iloc[0]) for place in (store, whole)]
    apart = np.abs(ours.train_loss.to_numpy() / theirs.train_loss.to_numpy() - 1).max()
    return changed, float(f"{max(apart, abs(last[0] / last[1] - 1)):.2g}")


def newest(store: Path) -> int:
    """Return the number of the newest checkpoint: how many were written so far."""
    while True:
        with suppress(FileNotFoundError):  # a folder went while it was listed
            return max((int(p.name.split("-")[0]) for p in store.glob("checkpoints/*/[0-9]*-step-*")), default=0)


def ended(pid: int, seconds: float, watched: Path | None = None, changes: int = 0) -> tuple[int | None, int]:
    """Return how a process ended (as waitpid says it; None: it works on) and how often the files changed.

    It works on after ``seconds``, or when the files below ``watched`` have changed ``changes`` times.
    """
    until = time.monotonic() + seconds
    last, many = files_of(watched), 0
    while True:
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            return status, many
        if watched is not None and (now := files_of(watched)) != last:
            last, many = now, many + 1
        if time.monotonic() >= until or (changes and many >= changes):
            return None, many
        time.sleep(0.002)


def files_of(folder: Path | None) -> frozenset[tuple[str, int]]:
    """Return path and size of every file below ``folder``, as far as they stay while they are listed."""
    files = set()
    for place, _, names in os.walk(folder) if folder is not None else ():
        for name in names:
            with suppress(OSError):
                files.add((f"{place}/{name}", os.lstat(f"{place}/{name}").st_size))
    return frozenset(files)


def undisturbed(work: Work, place: Path) -> tuple[float, int]:
    """Do ``work`` to its end; return its seconds and how often the files of its store changed."""
    pid, begun = begin(work, place), time.monotonic()
    status, many = ended(pid, float("inf"), place / "S")
    assert os.waitstatus_to_exitcode(status or 0) == 0, (place / "said.txt").read_text()
    return time.monotonic() - begun, many


def kill_chain(work: Work, folder: Path, longest: tuple[float, int], chance: random.Random, kind: str) -> Counter[str]:
    """Kill ``work`` in ``folder`` until it is through; return the counts of its row, and of each way.

    ``longest`` are the seconds of undisturbed work and how often it changes its files. Every second kill waits for a
    number of changes: most of a short work's seconds are its start.
    """
    store, counts = folder / "S", Counter[str]()
    first = aside(seen, store)
    through = False
    while not through:
        pair = kind == "sweep" and chance.random() < 0.25
        processes = chance.choice((2, 4, 2, 4, 1)) if work.ways == RANKS else 1
        at_work = [begin(work, folder, processes) for _ in range(2 if pair else 1)]
        while at_work:
            if chance.random() < 0.5:
                status, _ = ended(at_work[0], chance.uniform(0, longest[0] / work.pieces))
            else:
                changes = chance.randint(1, max(1, longest[1] // work.pieces))
                status, _ = ended(at_work[0], float("inf"), store, changes)
            if status is not None:  # it was through before its kill
                assert os.waitstatus_to_exitcode(status) == 0, (folder / "said.txt").read_text()
                at_work.pop(0)
                through = True
                continue
            pid, way = at_work.pop(chance.randrange(len(at_work))), chance.choice(work.ways)
            before, checkpoint, trained = aside(seen, store), newest(store), workers_of(pid)
            kill(pid, way, chance)
            exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            psutil.wait_procs(trained, timeout=300)  # orphans leave their checkpoints first
            through = through or exit_code == 0
            if exit_code == 0 and way != "worker":  # it had ended by itself a moment before
                continue
            expected = {-signal.SIGKILL} if way in ("SIGKILL", "parent") else {1, -SIGNALS.get(way, signal.SIGKILL)}
            expected |= {0} if way == "worker" else set()
            assert exit_code in expected, f"{way}: exit {exit_code}: {(folder / 'said.txt').read_text()}"
            after = aside(seen, store)  # orphans may have ended the run, which then needs no checkpoint
            gone = work.ways == RANKS and after == before and newest(store) < checkpoint
            counts["lost"] += len(before - after) + gone
            counts["doubled"] += 0 if at_work else aside(doubled, store)
            counts.update({"kills": 1, "pairs": pair, "starting": before == first, f"way {way}": 1})
    status, _ = ended(begin(work, folder), float("inf"))
    assert status == 0, (folder / "said.txt").read_text()
    counts["doubled"] += aside(doubled, store)
    return counts


def kill_chains(folder: Path, out: Path, *, kills: int, minutes: float, kinds: Sequence[str]) -> list[Chain]:
    """Go on with the chains of ``out`` until there are ``kills`` of each kind or the time is over; return all."""
    until = time.monotonic() + 60 * minutes
    every, wanted, longest, here = works(folder), {}, {}, aside(machine)
    for kind in kinds:
        start, place = folder / f"start of a {kind}", folder / f"undisturbed {kind}"
        start.mkdir()
        aside(every[kind].prepare, start)
        shutil.copytree(start, place)
        longest[kind] = undisturbed(every[kind], place)
        wanted[kind] = aside(result, place / "S")
    chains = read_table(out / TABLE)
    while time.monotonic() < until:
        count = {kind: sum(c.kills for c in chains if c.kind == kind) for kind in kinds}
        kind = min(kinds, key=lambda kind: count[kind])
        if count[kind] >= kills:
            break
        number, begun = sum(c.kind == kind for c in chains), time.monotonic()
        place = folder / f"{kind} {number}"
        shutil.copytree(folder / f"start of a {kind}", place)
        counts = kill_chain(every[kind], place, longest[kind], random.Random(f"{kind} {number}"), kind)
        missing, difference, equal = (
            len({row["run_id"] for row in wanted[kind]["runs"]} - aside(seen, place / "S")),
            0.0,
            True,
        )
        if every[kind].ways == RANKS:
            changed, difference = aside(same_steps, place / "S", folder / f"undisturbed {kind}" / "S")
            missing += changed
        else:
            made = aside(result, place / "S")
            equal = made == wanted[kind]
            print(*(f"{place}: other {part}" for part in made if made[part] != wanted[kind][part]), sep="\n")
        ways = ", ".join(f"{name.removeprefix('way ')} {n}" for name, n in sorted(counts.items()) if name[:4] == "way ")
        numbers = {name: counts[name] for name in ("kills", "pairs", "starting", "lost", "doubled")}
        chain = Chain(
            kind=kind, chain=number, **numbers, ways=ways, missing=missing, equal=equal, difference=difference,
            seconds=round(time.monotonic() - begun, 1), **here,
        )  # fmt: skip
        chains.append(chain)
        append(out / TABLE, asdict(chain))
        (out / PAGE).write_text(page(chains), encoding="utf-8")
        print(chain, flush=True)
        if sound([chain]):
            shutil.rmtree(place)
    return chains


def machine() -> dict[str, str]:
    """Return the columns that say when, and with which commit and torch, a chain was made."""
    here = Provenance.collect().on_this_machine()
    commit = f"{(here.git_commit or 'none')[:10]}{'+' if here.git_dirty else ''}"
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit, "torch": str(here.torch_version)}


def main(argv: list[str] | None = None) -> int:
    """Kill, write the table and the page, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="kills of each kind (default 200)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="longest time of this stretch")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of work (default all)")
    parser.add_argument("--out", type=Path, default=Path("results/faults"))
    words = parser.parse_args(argv)
    out = words.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        chains = kill_chains(Path(folder), out, kills=words.kills, minutes=words.minutes, kinds=words.kinds)
    return 0 if sound(chains) else 1


if __name__ == "__main__":
    sys.exit(main())
