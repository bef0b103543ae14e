"""Only shards of this schema count: what else lies among them is named and left alone, copies count once."""

import os
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grok.commands.store import main
from grok.errors import StoreError
from grok.store import DamagedShardWarning, ForeignFileWarning, StoreGone, StoreWriter, open_store
from grok.store.contract import assert_contract, contents, example_row, example_rows, failed, with_other_bits
from grok.store.layout import Layout
from grok.store.rows import Shard, to_shard
from grok.store.schema import TABLES
from grok.store.shards import SEAL_KEY, concat, read_whole, write_shard
from grok.store.upkeep import compact, verify


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
    said = "\n".join(verify(store))
    assert all(str(path) in said for path in made.values())
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
    """A data set under version control may be there before its files are fetched."""
    path = sorted((store / "runs").iterdir())[0]
    path.rename(tmp_path / "kept")
    path.mkdir() if what == "a folder" else path.symlink_to("not/fetched")
    with pytest.warns(DamagedShardWarning, match=f"{path.name}: not a file, or a link to none"):
        assert len(open_store(store).runs()) == 3
    assert any("its runs cannot be read" in line for line in verify(store))
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
    with pytest.warns(DamagedShardWarning, match="a copy of"):
        assert open_store(store).runs()["run_id"].is_unique
        assert len(open_store(store).curves()) == whole["curves"].num_rows
    assert verify(store)
    with StoreWriter(store) as writer:
        (put,) = writer.recovered
        assert put.copy and "3 of its runs are in shard" in put.reason
    assert_contract(store)
    assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)
    assert not list((store / "conflicts").iterdir())


def test_a_worker_that_commits_notices_copies_too(store: Path) -> None:
    with StoreWriter(store, thorough=False) as writer:
        copied(store, sorted(path.stem for path in (store / "runs").iterdir())[0])
        report = writer.commit([example_row(9)])
        assert [one.copy for one in report.recovered] == [True]
    assert_contract(store)
    assert len(open_store(store).run_ids()) == 7


def test_shards_that_overlap_keep_what_only_one_of_them_has(store: Path) -> None:
    """A shard from a backup, say, beside the compacted one that holds half of its runs."""
    layout = Layout(store)
    names = sorted(path.stem for path in (store / "runs").iterdir())
    merged = concat([read_whole(layout, name) for name in names])
    some = set(merged.runs["run_id"].to_pylist()[:2])
    write_shard(layout, "fedcba9876543210", merged.only(some))
    write_shard(layout, "0000000000000000", merged)
    with pytest.warns(DamagedShardWarning, match="rows are copies of others"):
        assert len(open_store(store).runs()) == 6
    with StoreWriter(store) as writer:
        assert all(one.copy for one in writer.recovered) and len(writer.recovered) == 3
    assert_contract(store)
    assert open_store(store).run_ids() == set(merged.runs["run_id"].to_pylist())


def test_of_two_rows_of_a_run_the_one_that_did_not_fail_stays(tmp_path: Path) -> None:
    row = example_row(0)
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit([row])
    write_shard(Layout(tmp_path / "S"), "0000000000000000", to_shard([failed(row)]))  # the first name
    with StoreWriter(tmp_path / "S") as writer:
        assert [put.name for put in writer.recovered] == ["0000000000000000"]
    assert open_store(tmp_path / "S").run_ids("completed") == {row.result.run_id}
    assert_contract(tmp_path / "S")


def test_copies_of_other_bits_are_a_conflict_and_both_are_kept(store: Path, tmp_path: Path) -> None:
    row = example_row(1)
    with StoreWriter(tmp_path / "other") as writer:
        writer.commit([with_other_bits(row, 50), example_row(20)])
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
