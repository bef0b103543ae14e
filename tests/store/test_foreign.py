"""Only whole shards of this schema count: copies, foreign files, seals, quarantine, and reads that prove nothing."""

import builtins
import errno
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grok.commands.store import main
from grok.errors import StoreError
from grok.records import StepPoint
from grok.store import DamagedShardWarning, ForeignFileWarning, StoreGone, StoreWriter, open_store
from grok.store.layout import Layout
from grok.store.merge import restore
from grok.store.rows import Shard, to_shard
from grok.store.schema import TABLES, schema
from grok.store.shards import SEAL_KEY, SealBroken, check_seal, concat, read_whole, threads_refused, write_shard
from grok.store.upkeep import compact, verify
from tests.store.conftest import store_of
from tests.store.contract import (
    assert_contract,
    contents,
    example_design,
    example_row,
    example_rows,
    failed,
    with_other_bits,
)


def foreign_files(store: Path) -> dict[str, Path]:
    """Put into the tables what others might: return it by what it is."""
    runs = sorted((store / "runs").glob("*.parquet"))[0]
    whole = pq.ParquetFile(runs).read()
    made = {}
    for what, name in (("frame", "mine"), ("floats", "0123456789abcdef"), ("nulls", "nulls"), ("unsealed", "few")):
        made[what] = store / "runs" / f"{name}.parquet"
    pd.DataFrame({"run_id": ["a", "b"], "seed": [1.0, 2.0]}).to_parquet(made["frame"])
    floats = whole.set_column(6, "seed", whole["seed"].cast(pa.float64()))
    notes = {k: v for k, v in pq.ParquetFile(runs).metadata.metadata.items() if k != SEAL_KEY}
    pq.write_table(floats.replace_schema_metadata(notes), made["floats"])
    pq.write_table(whole.replace_schema_metadata(None), made["nulls"])
    pq.write_table(whole.select(["run_id", "seed"]), made["unsealed"])
    made["curves in runs"] = store / "runs" / "points.parquet"
    shutil.copy(sorted((store / "curves").glob("*.parquet"))[0], made["curves in runs"])
    made["text"] = store / "curves" / "README.md"
    made["text"].write_text("notes")
    made["no parquet"] = store / "curves" / "cut.parquet"
    made["no parquet"].write_text("notes")
    made["link"] = store / "steps" / "lost.parquet"
    made["link"].symlink_to(store / "nothing")
    os.mkfifo(store / "runs" / "pipe.parquet")
    made["pipe"] = store / "runs" / "pipe.parquet"
    return made


def test_foreign_files_count_for_nothing_and_stay(store: Path) -> None:
    whole = {kind: contents(store, kind) for kind in TABLES}
    made = foreign_files(store)
    before = {path: path.lstat().st_ino for path in made.values()}
    with pytest.warns(DamagedShardWarning, match="left out") as noticed:
        runs = open_store(store).runs()
        curves = open_store(store).curves()
    assert len(runs) == 6 and len(curves) == whole["curves"].num_rows
    assert {str(made[what]) for what in ("frame", "floats", "nulls", "unsealed", "curves in runs")} <= {
        word.rstrip(":") for warning in noticed for word in str(warning.message).split()
    }
    with pytest.warns(ForeignFileWarning, match="left alone"), StoreWriter(store) as writer:
        assert writer.recovered == []
        writer.commit([example_row(9)])
    with pytest.warns(ForeignFileWarning):
        assert str(compact(store)) == "3 shards, now 1, 1 fewer of designs"
    assert {path: path.lstat().st_ino for path in made.values()} == before, "none was touched"
    for path in made.values():
        path.unlink()
    assert_contract(store)
    assert len(open_store(store).run_ids()) == 7


def test_a_folder_among_shards_is_left_where_it_is(store: Path) -> None:
    (store / "runs" / "old" / "more.parquet").mkdir(parents=True)
    copied(store, sorted(path.stem for path in (store / "runs").glob("*.parquet"))[0])
    with pytest.raises(StoreError, match="old is a folder among shards"):
        compact(store)
    assert len(list((store / "runs").glob("*.parquet"))) == 3, "refused before copies are put aside"
    assert (store / "runs" / "old" / "more.parquet").is_dir()


@pytest.mark.parametrize("what", ["a folder", "a link to nothing"])
def test_what_has_the_place_of_a_shard_is_said_and_its_curves_stay(
    store: Path, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sorted((store / "runs").iterdir())[0]
    path.rename(tmp_path / "kept")
    path.mkdir() if what == "a folder" else path.symlink_to("not/fetched")
    with pytest.warns(DamagedShardWarning, match=f"{path.name}: not a file, or a link to none"):
        assert len(open_store(store).runs()) == 3
    assert main(["status", str(store)]) == 0
    said = capsys.readouterr().out
    assert f"{path} is ignored: not a parquet file, or a broken link" in said and "unfinished commits" not in said
    with pytest.warns(ForeignFileWarning, match="left alone"), StoreWriter(store) as writer:
        assert writer.recovered == []
    path.rmdir() if what == "a folder" else path.unlink()
    (tmp_path / "kept").rename(path)
    assert_contract(store)
    assert len(open_store(store).run_ids()) == 6


@pytest.mark.parametrize("record", ["sweeps/odd.json", "search/odd.journal"])
def test_records_that_cannot_be_read_are_said(store: Path, record: str, capsys: pytest.CaptureFixture[str]) -> None:
    (store / record).parent.mkdir(exist_ok=True)
    (store / record).write_text('{"sweep_id": \n')
    assert [line for line in verify(store) if f"{record}: the record cannot be read" in line]
    assert main(["status", str(store)]) == 0
    assert f"{record}: the record cannot be read" in capsys.readouterr().out


def copied(store: Path, name: str) -> None:
    for kind in TABLES:
        if (store / kind / f"{name}.parquet").exists():
            shutil.copy(store / kind / f"{name}.parquet", store / kind / "fedcba9876543210.parquet")


def test_a_copy_of_a_shard_counts_once(store: Path) -> None:
    whole = {kind: contents(store, kind) for kind in TABLES}
    copied(store, sorted(path.stem for path in (store / "runs").iterdir())[0])
    with pytest.warns(DamagedShardWarning, match="are copies of others"):
        assert open_store(store).runs()["run_id"].is_unique
        assert len(open_store(store).curves()) == whole["curves"].num_rows
    assert verify(store)
    with StoreWriter(store) as writer:
        (put,) = writer.recovered
        assert not put.lost and "3 of its runs are in shard" in put.reason
    assert_contract(store)
    assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)
    assert not list((store / "conflicts").iterdir())


def test_a_worker_that_commits_notices_copies_too(store: Path) -> None:
    with StoreWriter(store, thorough=False) as writer:
        copied(store, sorted(path.stem for path in (store / "runs").iterdir())[0])
        report = writer.commit([example_row(9)])
        assert [one.lost for one in report.recovered] == [""]
    assert_contract(store)
    assert len(open_store(store).run_ids()) == 7


def test_shards_that_overlap_keep_what_only_one_of_them_has(store: Path) -> None:
    layout = Layout(store)
    names = sorted(path.stem for path in (store / "runs").iterdir())
    merged = concat([read_whole(layout, name) for name in names])
    some = set(merged.runs["run_id"].to_pylist()[:2])
    write_shard(layout, "fedcba9876543210", merged.only(some))
    write_shard(layout, "0000000000000000", merged)
    with pytest.warns(DamagedShardWarning, match="rows are copies of others"):
        assert len(open_store(store).runs()) == 6
    with StoreWriter(store) as writer:
        assert not any(one.lost for one in writer.recovered) and len(writer.recovered) == 3
    assert_contract(store)
    assert open_store(store).run_ids() == set(merged.runs["run_id"].to_pylist())


def test_of_two_rows_of_a_run_the_one_that_did_not_fail_stays(tmp_path: Path) -> None:
    row = example_row(0)
    store_of(tmp_path / "S", [row])
    write_shard(Layout(tmp_path / "S"), "0000000000000000", to_shard([failed(row)]))  # the first name
    with StoreWriter(tmp_path / "S") as writer:
        assert [put.name for put in writer.recovered] == ["0000000000000000"]
    assert open_store(tmp_path / "S").run_ids("completed") == {row.result.run_id}
    assert_contract(tmp_path / "S")


def test_copies_of_other_bits_are_a_conflict_and_both_are_kept(store: Path, tmp_path: Path) -> None:
    row = example_row(1)
    store_of(tmp_path / "other", [with_other_bits(row, 50), example_row(20)])
    shard: Shard = read_whole(Layout(tmp_path / "other"), next((tmp_path / "other" / "runs").iterdir()).stem)
    write_shard(Layout(store), "ffffffffffffffff", shard)
    with StoreWriter(store) as writer:
        (put,) = writer.recovered
        assert "1 of its runs" in put.reason
    assert open_store(store).run_ids() == {r.result.run_id for r in [*example_rows(range(6)), example_row(20)]}
    (record,) = (store / "conflicts").iterdir()
    assert row.result.run_id in record.name
    assert (store / "quarantine" / "curves-ffffffffffffffff.parquet").exists(), "the other bits are not thrown away"
    record.unlink()
    assert_contract(store)


def test_a_store_that_is_gone_is_said_and_not_begun_again(tmp_path: Path) -> None:
    writer, worker = StoreWriter(tmp_path / "S"), StoreWriter(tmp_path / "S", thorough=False)
    (tmp_path / "S").rename(tmp_path / "moved")
    for use in (
        lambda: writer.commit([example_row(0)]),
        lambda: worker.claim(["a"]),
        lambda: writer.record_sweep("s", [], {}),
        lambda: StoreWriter(tmp_path / "S", create=False),
    ):
        with pytest.raises(StoreGone, match="was removed or moved while it was in use") as gone:
            use()
        assert gone.value.exit_status == 1
    assert not (tmp_path / "S").exists()
    (tmp_path / "moved").rename(tmp_path / "S")
    assert writer.commit([example_row(0)]).written
    assert_contract(tmp_path / "S")


def test_a_table_that_is_gone_is_said(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grok.store.reader._TRIES", 3)
    (store / "runs").rename(store / "elsewhere")
    for command in ("status", "compact", "restore", "migrate"):
        assert main([command, str(store)]) == 2
        assert "lacks its folders runs/" in capsys.readouterr().err
    assert main(["verify", str(store)]) == 1
    with pytest.raises(StoreError, match="lacks its folders runs/"):
        open_store(store).runs()
    (store / "elsewhere").rename(store / "runs")
    assert len(open_store(store).run_ids()) == 6


@pytest.mark.parametrize(
    "text",
    ["7", "[]", "null", "[" * 100_000, '{"store": "grok-lab", "schema_version": 1, "columns": []}',
     '{"store": "grok-lab", "schema_version": true, "columns": {}}', '{"store": 1}', "\udcff", "1" * 5000,
     '{"store": "grok-lab", "schema_version": 1, "columns": {"runs": ["a"]}}'],
    ids=range(10),
)  # fmt: skip
def test_a_marker_that_is_none_is_said(store: Path, text: str) -> None:
    (store / "store.json").write_text(text, errors="surrogateescape")
    for use in (open_store, StoreWriter, verify, compact):
        with pytest.raises(StoreError, match="cannot be read as a store's marker"):
            use(store)


@pytest.fixture
def restorable(tmp_path: Path) -> Path:
    """Six runs in two shards, one with a step log, and their design."""
    with StoreWriter(tmp_path / "S") as writer:
        writer.record_design(example_design([row.result.run_id for row in example_rows(range(6))]))
        writer.commit(example_rows(range(3)))
        writer.commit([*example_rows(range(3, 5)), example_row(5, step_log=[StepPoint(step=1)])])
    return tmp_path / "S"


def put_aside(restorable: Path) -> None:
    """Move good shards into the quarantine."""
    for name in sorted({path.stem for path in (restorable / "runs").iterdir()}):
        for kind in TABLES:
            path = restorable / kind / f"{name}.parquet"
            if path.exists():
                path.rename(restorable / "quarantine" / f"{kind}-{name}.parquet")
        (restorable / "quarantine" / f"{name}.json").write_text(json.dumps({"shard": name, "reason": "no thread"}))


def test_everything_comes_back(restorable: Path) -> None:
    whole = {kind: contents(restorable, kind) for kind in TABLES}
    put_aside(restorable)
    (design,) = (restorable / "designs").iterdir()
    design.rename(restorable / "quarantine" / f"designs-{design.name}")
    StoreWriter(restorable).close()
    assert open_store(restorable).run_ids() == set() and open_store(restorable).designs().empty
    done = restore(restorable)
    assert (len(done.runs), done.stored, done.designs, done.left, done.conflicts) == (6, 0, 6, [], [])
    assert_contract(restorable)
    assert all(contents(restorable, kind).equals(whole[kind]) for kind in TABLES)
    assert not list((restorable / "quarantine").iterdir())
    assert restore(restorable).runs == []


def test_what_is_damaged_or_lacks_its_points_stays(restorable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_aside(restorable)
    (step_log,) = (restorable / "quarantine").glob("steps-*")
    second = step_log.stem.removeprefix("steps-")
    (first,) = {path.stem for path in (restorable / "quarantine").glob("*.json")} - {second}
    damaged = restorable / "quarantine" / f"curves-{first}.parquet"
    sound = damaged.read_bytes()
    damaged.write_bytes(sound[:-30])
    assert main(["restore", str(restorable)]) == 0
    said = capsys.readouterr().out
    assert "3 runs restored, 0 already stored, 2 files left" in said
    assert f"curves-{first}.parquet" in said and "3 of its rows cannot be restored without others" in said
    assert {p.name for p in (restorable / "quarantine").iterdir()} == {
        f"runs-{first}.parquet", f"curves-{first}.parquet", f"{first}.json",
    }  # fmt: skip
    assert second not in said
    assert_contract(restorable)
    damaged.write_bytes(sound)  # from a backup
    assert len(restore(restorable).runs) == 3
    assert len(open_store(restorable).run_ids()) == 6
    assert_contract(restorable)


def test_a_shard_whose_tables_were_named_apart(restorable: Path) -> None:
    whole = {kind: contents(restorable, kind) for kind in TABLES}
    name = sorted(path.stem for path in (restorable / "runs").iterdir())[0]
    (restorable / "runs" / f"{name}.parquet").rename(restorable / "runs" / "0123456789abcdef.parquet")
    with StoreWriter(restorable) as writer:
        assert len(writer.recovered) == 2
    assert len(open_store(restorable).run_ids()) == 3
    assert len(restore(restorable).runs) == 3
    assert_contract(restorable)
    assert all(contents(restorable, kind).equals(whole[kind]) for kind in TABLES)


def test_what_is_stored_is_compared(restorable: Path) -> None:
    put_aside(restorable)
    rows = example_rows(range(3))
    store_of(restorable, [failed(rows[0]), rows[1], with_other_bits(rows[2], 50)])
    done = restore(restorable)
    assert (len(done.runs), done.stored) == (4, 1)  # the failed one is replaced
    (conflict,) = done.conflicts
    assert conflict.run_id == rows[2].result.run_id
    assert list((restorable / "quarantine").glob("runs-*")), "the other bits are kept"
    shutil.rmtree(restorable / "conflicts")
    assert_contract(restorable)


def test_a_row_without_its_points_is_not_compared_and_stays(restorable: Path) -> None:
    put_aside(restorable)
    for points in (restorable / "quarantine").glob("curves-*"):
        points.unlink()
    store_of(restorable, example_rows(range(3)))
    assert len(restore(restorable).left) == len(list((restorable / "quarantine").glob("*.parquet"))) == 3


def footer_of(whole: bytes) -> int:
    """Return where the footer starts."""
    return len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")


def intact(path: Path) -> bool:
    try:
        return check_seal(path, thorough=True)
    except SealBroken:
        return False


@pytest.mark.parametrize("apart", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_counts(store: Path, apart: int) -> None:
    """The fast form changes each byte of the footer and every ninth of the rest."""
    victim = sorted((store / "curves").iterdir())[0]
    whole = victim.read_bytes()
    assert intact(victim)
    noticed = []
    footer = footer_of(whole)
    for at in [*range(0, footer, apart), *range(footer, len(whole))]:
        victim.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        noticed.append(not intact(victim))
    assert all(noticed)
    for length in random.Random(0).sample(range(len(whole)), 100):
        victim.write_bytes(whole[:length])
        assert not intact(victim)


@pytest.mark.parametrize("what", [b"val_acc", b"grok.schema_version\x18\x012", b"config.seeds.init"])
def test_a_changed_footer_costs_its_shard_and_no_other(store: Path, what: bytes) -> None:
    victim = sorted((store / "runs").iterdir())[0]
    whole = victim.read_bytes()
    at = whole.index(what, footer_of(whole)) + len(what) - 1
    victim.write_bytes(whole[:at] + bytes([whole[at] ^ 3]) + whole[at + 1 :])
    with pytest.warns(DamagedShardWarning, match=victim.name):
        assert len(open_store(store).runs()) == 3
    assert any(victim.name in problem for problem in verify(store))
    with StoreWriter(store, thorough=False) as writer:
        (recovered,) = writer.recovered
        assert recovered.name == victim.stem
        assert len(writer.commit(example_rows(range(6))).written) == 3
    assert_contract(store)


def test_shards_of_before_have_no_seal_and_are_read_as_they_are(store: Path) -> None:
    before = open_store(store).runs()
    for kind in ("runs", "curves"):
        for path in (store / kind).iterdir():
            with pq.ParquetFile(path) as file:
                table, notes = file.read(), dict(file.metadata.metadata)
            del notes[SEAL_KEY]
            with pq.ParquetWriter(path, schema(kind).remove_metadata(), store_schema=False) as writer:
                writer.write_table(table.replace_schema_metadata(None))
                writer.add_key_value_metadata(notes)
            assert not check_seal(path, thorough=True)
    with StoreWriter(store) as writer:
        assert writer.recovered == []
    assert open_store(store).runs().equals(before)
    assert_contract(store)


def shards(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for kind in ("runs", "curves") for p in (store / kind).iterdir()}


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, victim: Path, number: int, times: int) -> Iterator[None]:
    """Let the first ``times`` openings of ``victim`` fail as the system would, by Python and by Arrow."""
    left = {"times": times}
    real_open, real_file = os.open, pq.ParquetFile

    def failing(name: object) -> None:
        if isinstance(name, (str, Path)) and str(name) == str(victim) and left["times"] > 0:
            left["times"] -= 1
            raise OSError(number, os.strerror(number), str(victim))

    def open_(path: object, *args: object, **more: object) -> int:
        failing(path)
        return real_open(path, *args, **more)  # type: ignore[arg-type]

    def parquet(path: object, *args: object, **more: object) -> pq.ParquetFile:
        failing(path)
        return real_file(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        patch.setattr(pq, "ParquetFile", parquet)
        yield


USES: tuple[Callable[[Path], object], ...] = (
    StoreWriter,
    compact,
    lambda path: StoreWriter(path, thorough=False).commit(example_rows(range(6, 8))),
)
REASONS = [
    errno.EIO, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOLINK, errno.ELOOP, errno.ENXIO, errno.EBUSY, errno.ESTALE,
    errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.EAGAIN, errno.EINVAL,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["runs", "curves"])
def test_no_error_of_the_system_moves_a_shard(store: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    before, victim = shards(store), sorted((store / kind).iterdir())[0]
    cases: list[tuple[Callable[[Path], object], int, int]] = []
    for look in (StoreWriter, lambda path: open_store(path).table(kind, None, None)):
        cases += [(look, number, 99) for number in REASONS]
    cases += [(use, errno.EIO, times) for use in USES for times in (1, 2, 99)]
    for use, number, times in cases:
        with refusing(monkeypatch, victim, number, times), pytest.raises(StoreError) as refused:
            use(store)
            raise StoreError("read after all")  # a look that was not needed
        assert "\n" not in str(refused.value)
    assert shards(store).items() >= before.items()
    assert not list((store / "quarantine").iterdir())
    with StoreWriter(store) as writer:
        assert writer.recovered == []


def test_an_error_of_arrows_own_about_sound_bytes_moves_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shards(store)

    def fail(*args: object, **more: object) -> None:
        raise pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read", fail)
        with pytest.raises(StoreError, match="its bytes are whole, so nothing was changed"):
            StoreWriter(store)
    assert shards(store) == before


def test_bytes_that_change_between_two_looks_prove_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = sorted((store / "runs").iterdir())[0]
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    real, looks = builtins.open, []

    def open_(file: object, *args: object, **more: object) -> object:
        opened = real(file, *args, **more)  # type: ignore[call-overload]
        if isinstance(file, int) and Path(f"/proc/self/fd/{file}").readlink() == victim:
            looks.append(file)
            victim.write_bytes(whole if len(looks) > 2 else whole[: len(whole) // 2])
        return opened

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", open_)
        with pytest.raises(StoreError, match="nothing was changed"):
            StoreWriter(store)
    assert victim.read_bytes() == whole
    assert open_store(store).run_ids() == {row.result.run_id for row in example_rows(range(6))}


@pytest.mark.parametrize("command", ["compact", "merge"])
def test_a_process_that_may_have_no_thread(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = shards(store)
    threads_refused.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        patch.setattr(pq, "ParquetFile", None)  # Arrow would wait for its threads forever
        assert main([command, str(store), *([str(store), "--into", str(tmp_path / "new")] * (command == "merge"))]) == 2
    threads_refused.cache_clear()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "refuses threads (can't start new thread)" in said
    assert shards(store) == before and not list((store / "quarantine").iterdir())


@pytest.mark.parametrize("command", ["compact", "verify", "status"])
def test_a_store_whose_path_is_not_utf_8(store: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    odd = Path(os.fsdecode(os.fsencode(str(store)) + b"\xff"))
    try:
        store.rename(odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    before = shards(odd)
    assert main([command, str(odd)]) == 2
    said = capsys.readouterr()
    assert "not UTF-8" in said.err and said.err.count("\n") == 1
    assert shards(odd) == before
