"""Whatever is done to a store: no traceback, no change outside it, no sound row lost."""

from __future__ import annotations

import io
import shutil
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.report import main as report
from analysis.study import main as study
from grok.commands.store import main as store_command
from grok.errors import GrokError
from grok.run import main as train
from grok.show import main as show
from grok.store import StoreWriter, open_store
from grok.store.contract import example_design, example_row, example_rows
from grok.store.designs import keys_of
from grok.store.schema import KEYS, TABLES
from grok.store.shards import SealBroken, check_seal
from sweeps.branch import main as branch
from sweeps.repeat import main as repeat
from tests.store.hostile import fill, outside_state
from tests.store.mutations import Harm

Command = Callable[[Path, Path], int]


def write(path: Path, room: Path) -> int:
    """What a sweep does to its store."""
    try:
        with StoreWriter(path) as writer:
            writer.claim(["a"])
            writer.heartbeat()
            writer.record_design(example_design([example_row(50).result.run_id]))
            writer.commit([example_row(50)])
    except GrokError as error:
        assert "\n" not in str(error).strip(), f"several lines: {error}"
        return error.exit_status
    return 0


COMMANDS: dict[str, Command] = {
    "status": lambda path, room: store_command(["status", str(path)]),
    "verify": lambda path, room: store_command(["verify", str(path)]),
    "write": write,
    "compact": lambda path, room: store_command(["compact", str(path)]),
    "migrate": lambda path, room: store_command(["migrate", str(path)]),
    "retire": lambda path, room: store_command(["retire", str(path), "s", "--why", "a try"]),
    "restore": lambda path, room: store_command(["restore", str(path)]),
    "merge from": lambda path, room: store_command(["merge", str(path), "--into", str(room / "into")]),
    "merge to": lambda path, room: store_command(["merge", str(path), str(room / "sound")]),
    "search": lambda path, room: study(["search", str(path), "--out", str(room / "searches")]),
    "repeat": lambda path, room: repeat(["--store", str(path), "--best", "1", "--controls", "0", "dry_run=true"]),
    "branch": lambda path, room: branch(["--store", str(path), "--best", "1", "--random", "0", "dry_run=true"]),
    "again": lambda path, room: train([f"--again={example_row(0).result.run_id}", f"--store={path}", "train.steps=x"]),
    "show": lambda path, room: show([example_row(0).result.run_id[:8], "--store", str(path)]),
}


def rows_of(file: pq.ParquetFile, kind: str) -> set[tuple[str, ...]]:
    """Return the keys of the rows of runs or designs."""
    keys = KEYS[kind]
    table = file.read(list(keys))
    return set(zip(*(table[name].to_pylist() for name in keys), strict=True))


def whole_rows(folder: Path) -> set[tuple[str, ...]]:
    """Return the runs and rows of designs in every whole shard below ``folder``, but not in ``tmp/`` itself."""
    found: set[tuple[str, ...]] = set()
    for path in folder.rglob("*"):
        try:
            if (
                path.parent == folder / "tmp"
                or path.is_symlink()
                or not path.is_file()
                or check_seal(path, thorough=True) is None
            ):
                continue
            with pq.ParquetFile(path) as file:
                kind = (file.metadata.metadata or {}).get(b"grok.table")
                if kind == b"runs" and "seed" in file.schema_arrow.names:
                    found |= rows_of(file, "runs")
                if kind == b"designs" and "choice" in file.schema_arrow.names:
                    found |= rows_of(file, "designs")
        except (SealBroken, OSError, KeyError, pa.ArrowException):
            continue
    return found


def untouched_rows(path: Path, sound: dict[Path, bytes]) -> set[tuple[str, ...]]:
    """Return the runs and rows of designs in the shards that are as they were, with all their tables."""
    found: set[tuple[str, ...]] = set()
    for name in {file.name for file in sound}:
        own = [file for file in sound if file.name == name]
        if all(
            (path / f).is_file() and not (path / f).is_symlink() and (path / f).read_bytes() == sound[f] for f in own
        ):
            kind = "runs" if Path("runs") / name in own else "designs"
            with pq.ParquetFile(path / kind / name) as file:
                found |= rows_of(file, kind)
    return found


def run(command: Command, path: Path, room: Path) -> tuple[int, str]:
    """Run one command and return its exit status and what it said to stderr."""
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        status = command(path, room)
    return status, said.getvalue()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound store, one to merge with, and a place outside with something precious in it."""
    place = tmp_path_factory.mktemp("sound")
    fill(place / "S", range(6))
    with StoreWriter(place / "S") as writer:
        writer.commit(example_rows(range(6, 8)))
    with StoreWriter(place / "other") as writer:
        writer.commit(example_rows(range(7, 9)))
    for name in ("secret", "run-1", "00000001-step-1"):
        (place / "outside" / name).mkdir(parents=True)
        (place / "outside" / name / "precious.txt").write_text("precious")
    (place / "outside" / "file").write_text("precious")
    (place / "outside" / "x.json").write_text('{"precious": 1}')
    return place


def mutated(sound: Path, place: Path, seed: int, with_report: bool) -> None:
    """Do harm ``seed`` to a copy of the sound store in ``place``, run some commands, and look."""
    path, outside, room = place / "S", place / "outside", place / "room"
    for name in ("S", "outside"):
        shutil.copytree(sound / name, place / name)
    room.mkdir()
    shutil.copytree(sound / "other", room / "sound")
    tables = {
        f.relative_to(path): f.read_bytes() for kind in TABLES for f in (path / kind).iterdir() if f.stem != "empty"
    }
    harm = Harm(path, outside, seed)
    harm.do()
    was_outside, whole, untouched = outside_state(outside), whole_rows(path), untouched_rows(path, tables)
    commands = COMMANDS | ({"report": lambda p, r: report([str(p), "--out", str(r / "report")])} if with_report else {})
    order = harm.random.sample(sorted(commands), k=4 if not with_report else len(commands))
    where = f"harm {seed}: {'; '.join(harm.done)}"
    for name in order:
        try:
            status, said = run(commands[name], path, room)
        except BaseException as error:
            raise AssertionError(f"{where}; {name}: {traceback.format_exc()}") from error
        context = f"{where}; {name} in {order}: {said}"
        assert status in (0, 1, 2), context
        if status == 2:
            assert sum(line.startswith("error: ") for line in said.splitlines()) in (0, 1), context
        assert outside_state(outside) == was_outside, f"changed outside, {context}"
        assert whole_rows(path) >= whole, f"rows lost, {context}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store = open_store(path)
            stored = {(run_id,) for run_id in store.run_ids()} | set(keys_of(store.designs_table()))
    except GrokError:
        return
    assert stored >= untouched, f"{where}; {order}: out of sight: {untouched - stored}"


def cases(count: int, first: int = 0) -> Iterator[int]:
    yield from range(first, first + count)


def test_a_few_mutations(sound: Path, tmp_path: Path) -> None:
    for seed in cases(3):
        mutated(sound, tmp_path / str(seed), seed, with_report=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_mutations(sound: Path, tmp_path: Path, part: int) -> None:
    """2,000 in all, every tenth with a report of what is left."""
    for seed in cases(100, 100 * part):
        place = tmp_path / str(seed)
        mutated(sound, place, seed, with_report=seed % 10 == 0)
        shutil.rmtree(place)
