"""Whatever is done to a store: no traceback, no change outside it, no sound row lost."""

import io
import json
import os
import random
import shutil
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grok.analysis.report import main as report
from grok.analysis.show import main as show
from grok.commands.store import main as store_command
from grok.errors import GrokError
from grok.run import main as train
from grok.store import StoreWriter, open_store
from grok.store.designs import keys_of
from grok.store.schema import KEYS, KINDS, TABLES
from grok.store.shards import SealBroken, check_seal, json_columns, write_parquet
from grok.sweeps.branch import main as branch
from grok.sweeps.repeat import main as repeat
from tests.store.conftest import store_of
from tests.store.contract import example_design, example_row, example_rows
from tests.store.hostile import COMMANDS as EVERY
from tests.store.hostile import fill, outside_state, precious

ODD_NAMES = (
    "empty.parquet", "notes.parquet", "0123456789abcdef.parquet", "x", ".hidden.parquet", "a b.parquet", "é.json",
    "store.json", "ready.json", "lock", "n" * 200 + ".parquet", "x.tmp-1", "-rf.parquet",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 1.5, "", "../../outside/secret", "/etc/passwd", "$x^{$", "\udcff",
    "x" * 400, [], {}, [[]], {"a": None}, "nan", ["x"], "a\nb",
)  # fmt: skip
GARBAGE = (b"", b"{", b"[" * 100_000, b"\xff\xfe\x00", b"null", b"7", b'"x"', b"[]", b"{}", b"1" * 5000, b"NaN")
JSON_COLUMNS = {*json_columns("runs"), *json_columns("curves"), "unit", "redrawn", "choice_detail"}
ODD_TEXTS = (
    *(json.dumps(value) for value in ODD_VALUES), "", "no JSON", "[" * 100_000, '{"a\\ud800": 1.0}', '{"a": true}',
    '{"a": "text"}', '{"a":1' + "0" * 400 + "}", '{"a":{"b":1}}', '{"' + "n" * 200_000 + '":1}',
    '["split", "no stream"]',
)  # fmt: skip


class NoFile(Exception):
    """There is no file to harm in this way."""


class Harm:
    """One chain of mutations of the store at ``root``, with ``outside`` as where links lead."""

    def __init__(self, root: Path, outside: Path, seed: int) -> None:
        self.root, self.outside = root, outside
        self.random = random.Random(seed)
        self.done: list[str] = []
        """What was done, in words."""

    def do(self) -> None:
        """Do one to three things."""
        for _ in range(self.random.choice((1, 1, 2, 3))):
            act = self.random.choice(ACTS)
            with suppress(NoFile):
                if said := act(self):
                    self.done.append(f"{act.__name__}: {said}")

    def files(self) -> list[Path]:
        return sorted(p for p in self.root.rglob("*") if p.is_file() and not p.is_symlink())

    def folders(self) -> list[Path]:
        return sorted(p for p in self.root.rglob("*") if p.is_dir() and not p.is_symlink())

    def a_file(self, among: str = "") -> Path:
        files = [path for path in self.files() if path.name.endswith(among)]
        if not files:
            raise NoFile
        return self.random.choice(files)

    def shown(self, path: Path) -> str:
        return str(path.relative_to(self.root))[:80]


def flip_bytes(harm: Harm) -> str:
    path = harm.a_file()
    if not (content := bytearray(path.read_bytes())):
        return ""
    for _ in range(harm.random.choice((1, 1, 3, 20))):
        at = harm.random.randrange(len(content))
        content[at] ^= 1 << harm.random.randrange(8)
    path.write_bytes(content)
    return harm.shown(path)


def cut_short(harm: Harm) -> str:
    path = harm.a_file()
    path.write_bytes(path.read_bytes()[: harm.random.randrange(path.stat().st_size + 1)])
    return harm.shown(path)


def append(harm: Harm) -> str:
    path = harm.a_file()
    path.write_bytes(path.read_bytes() + harm.random.randbytes(harm.random.choice((1, 8, 1000))))
    return harm.shown(path)


def overwrite(harm: Harm) -> str:
    path = harm.a_file()
    path.write_bytes(harm.random.choice((*GARBAGE, harm.random.randbytes(300), b"PAR1" + bytes(20) + b"PAR1")))
    return harm.shown(path)


def remove(harm: Harm) -> str:
    path = harm.a_file()
    path.unlink()
    return harm.shown(path)


def remove_folder(harm: Harm) -> str:
    folder = harm.random.choice(harm.folders())
    shutil.rmtree(folder)
    return harm.shown(folder)


def rename(harm: Harm) -> str:
    path = harm.a_file()
    folder = harm.random.choice([path.parent, *harm.folders()])
    target = folder / harm.random.choice((*ODD_NAMES, path.name))
    if target.exists() or target == path:
        return ""
    path.rename(target)
    return f"{harm.shown(path)} to {harm.shown(target)}"


def copy(harm: Harm) -> str:
    path = harm.a_file()
    target = harm.random.choice([path.parent, *harm.folders()]) / harm.random.choice(ODD_NAMES)
    if target.exists():
        return ""
    shutil.copy(path, target)
    return f"{harm.shown(path)} to {harm.shown(target)}"


def swap(harm: Harm) -> str:
    first, second = harm.a_file(), harm.a_file()
    if first == second:
        return ""
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    return f"{harm.shown(first)} and {harm.shown(second)}"


def copy_shard(harm: Harm) -> str:
    """All tables of a shard, under another name."""
    path = harm.a_file(".parquet")
    for kind in TABLES:
        if not (harm.root / kind).is_dir():
            continue
        source = harm.root / kind / path.name
        if source.is_file() and source.stem != "fedcba9876543210":
            shutil.copy(source, harm.root / kind / "fedcba9876543210.parquet")
    return harm.shown(path)


def link_instead(harm: Harm) -> str:
    """A link in the place of a file or folder, to somewhere outside, to itself, to nothing."""
    path = harm.random.choice([*harm.files(), *harm.folders()])
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    target = harm.random.choice((harm.outside, harm.outside / "file", path, harm.outside / "nothing"))
    path.symlink_to(target)
    return f"{harm.shown(path)} to {target.name}"


def link_more(harm: Harm) -> str:
    folder = harm.random.choice(harm.folders())
    path = folder / harm.random.choice(("more.parquet", "more.json", "more", "run-2", "compaction.00"))
    if path.exists() or path.is_symlink():
        return ""
    path.symlink_to(harm.random.choice((harm.outside, harm.outside / "file", harm.outside / "x.json", path)))
    return harm.shown(path)


def other_kind(harm: Harm) -> str:
    """A folder in the place of a file, a file or a pipe in the place of a folder."""
    path = harm.random.choice([*harm.files(), *harm.folders()])
    if path.is_dir():
        shutil.rmtree(path)
        os.mkfifo(path) if harm.random.random() < 0.5 else path.write_text("a file")
    else:
        path.unlink()
        os.mkfifo(path) if harm.random.random() < 0.5 else path.mkdir()
    return harm.shown(path)


def change_json(harm: Harm) -> str:
    """One value somewhere inside becomes another, or goes."""
    path = harm.a_file(".json")
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return ""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            places.append((value, key))
            walk(value[key])

    walk(content)
    if not places or harm.random.random() < 0.1:
        content = harm.random.choice(ODD_VALUES)
    else:
        inside, key = harm.random.choice(places)
        if harm.random.random() < 0.3:
            del inside[key]
        else:
            inside[key] = harm.random.choice(ODD_VALUES)
    path.write_text(json.dumps(content))
    return harm.shown(path)


def read_table(path: Path) -> tuple[pa.Table, dict[bytes, bytes]]:
    """Return the rows and the notes of a shard, as far as it is one with columns."""
    try:
        with pq.ParquetFile(path) as file:
            table, notes = file.read(), dict(file.metadata.metadata or {})
    except (OSError, ValueError, pa.ArrowException):
        raise NoFile from None
    if not table.num_columns:
        raise NoFile
    return table, notes


def write_table(path: Path, table: pa.Table, notes: dict[bytes, bytes], *, sealed: bool) -> None:
    notes = {key: value for key, value in notes.items() if key != b"grok.seal"}
    with path.open("w+b") as file:
        (write_parquet if sealed else pq.write_table)(table.replace_schema_metadata(notes), file)


def change_text(harm: Harm) -> str:
    """One JSON text of a shard becomes another, under a seal."""
    path = harm.a_file(".parquet")
    table, notes = read_table(path)
    names = [name for name in table.column_names if name in JSON_COLUMNS]
    if not names or not table.num_rows:
        return ""
    name, row = harm.random.choice(names), harm.random.randrange(table.num_rows)
    texts = [*table[name].to_pylist()]
    texts[row] = harm.random.choice(ODD_TEXTS)
    table = table.set_column(table.column_names.index(name), name, pa.array(texts, pa.string()))
    write_table(path, table, notes, sealed=True)
    return f"{harm.shown(path)}, {name} is {texts[row][:40]}"


def change_schema(harm: Harm) -> str:
    """A shard of other columns, types or notes; sealed anew, or not."""
    path = harm.a_file(".parquet")
    table, notes = read_table(path)
    at = harm.random.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    what = harm.random.choice(
        ("drop", "rename", "float", "text", "nulls", "add", "notes", "nothing", "foreign", "order")
    )
    if what == "drop":
        table = table.remove_column(at)
    elif what == "rename":
        table = table.rename_columns([f"{n}_" if n == name else n for n in table.column_names])
    elif what in ("float", "text"):
        try:
            table = table.set_column(at, name, column.cast(pa.float64() if what == "float" else pa.string()))
        except pa.ArrowException:
            return ""
    elif what == "nulls":
        table = table.set_column(at, name, pa.nulls(table.num_rows, column.type))
    elif what == "add":
        table = table.append_column("more", pa.nulls(table.num_rows, pa.string()))
    elif what == "notes":
        key = harm.random.choice(sorted(notes))
        if harm.random.random() < 0.5:
            del notes[key]
        else:
            notes[key] = harm.random.choice((b"", b"7", b"-1", b"x" * 300, b"runs", b"curves", b"designs", b"../x"))
    elif what == "foreign":
        table, notes = pa.table({"run_id": ["a", "b"], "seed": [1.5, None]}), {}
    elif what == "order":
        table = table.select(list(reversed(table.column_names)))
    sealed = harm.random.random() < 0.5 and what != "foreign"
    write_table(path, table, notes, sealed=sealed)
    return f"{harm.shown(path)}, {what}, {'sealed' if sealed else 'unsealed'}"


def half_compaction(harm: Harm) -> str:
    folder = harm.root / "tmp" / f"compaction.{harm.random.randrange(100)}"
    if not (harm.root / "tmp").is_dir() or folder.exists():
        return ""
    folder.mkdir()
    for kind in KINDS:
        if (harm.root / kind).is_dir() and harm.random.random() < 0.7:
            shutil.copytree(harm.root / kind, folder / kind, symlinks=True, ignore=_pipes)
            if harm.random.random() < 0.3:
                aside = folder / "aside"
                (folder / kind).rename(aside)
                (harm.root / kind).rename(folder / kind)
                aside.rename(harm.root / kind)
    (folder / "ready.json").write_bytes(harm.random.choice((*GARBAGE, b'{"runs": [], "curves": [], "steps": []}')))
    return harm.shown(folder)


def _pipes(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if not ((Path(folder) / n).is_file() or (Path(folder) / n).is_dir())]


ACTS: tuple[Callable[[Harm], str], ...] = (
    flip_bytes, cut_short, append, overwrite, remove, remove_folder, rename, copy, swap, copy_shard, link_instead,
    link_more, other_kind, change_json, change_json, change_schema, change_schema, change_text,
    change_text, half_compaction,
)  # fmt: skip


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


COMMANDS: dict[str, Callable[[Path, Path], int]] = {
    **{name: command for name, command in EVERY.items() if name not in ("export", "report", "merge to")},
    "write": write,
    "merge to": lambda path, room: store_command(["merge", str(path), str(room / "sound")]),
    "search": lambda path, room: report([str(path), "--only", "search", "--out", str(room / "searches")]),
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
                or not check_seal(path, thorough=True)
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


def run(command: Callable[[Path, Path], int], path: Path, room: Path) -> tuple[int, str]:
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
    store_of(place / "S", example_rows(range(6, 8)))
    store_of(place / "other", example_rows(range(7, 9)))
    precious(place / "outside")
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


def test_a_few_mutations(sound: Path, tmp_path: Path) -> None:
    for seed in range(3):
        mutated(sound, tmp_path / str(seed), seed, with_report=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_mutations(sound: Path, tmp_path: Path, part: int) -> None:
    for seed in range(100 * part, 100 * (part + 1)):
        place = tmp_path / str(seed)
        mutated(sound, place, seed, with_report=seed % 10 == 0)
        shutil.rmtree(place)
