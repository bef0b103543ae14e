"""Compaction, migration, verification, and the command in front of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grok.commands.store import main
from grok.config import identify
from grok.errors import StoreError
from grok.records import StepPoint
from grok.store import DamagedShardWarning, StoreWriter, open_store
from grok.store import schema as schema_module
from grok.store import schema as versions
from grok.store import upkeep as verify_module
from grok.store.contract import assert_contract, contents, example_row, example_rows, with_other_bits
from grok.store.layout import Layout, check_path, read_marker
from grok.store.provenance import stored_config
from grok.store.schema import KINDS, TABLES, VERSION_KEY
from grok.store.shards import write_parquet
from grok.store.upkeep import compact, migrate, verify


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six runs in three shards."""
    with StoreWriter(tmp_path / "S") as writer:
        for start in (0, 2, 4):
            writer.commit(example_rows(range(start, start + 2)))
    return tmp_path / "S"


class TestCompact:
    def test_large_shards_are_left_alone_and_nothing_is_done_twice(self, store: Path) -> None:
        whole = {kind: contents(store, kind) for kind in TABLES}
        assert str(compact(store, shard_rows=25)) == "3 shards, now 2"
        assert str(compact(store, shard_rows=25)) == "2 shards: nothing to do"
        assert str(compact(store)) == "2 shards, now 1"
        assert_contract(store)
        assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)

    def test_step_logs_come_along(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path / "S") as writer:
            writer.commit([example_row(0, step_log=[StepPoint(step=k, grad_norm=k / 7) for k in range(1, 9)])])
            writer.commit([example_row(1)])
        compact(tmp_path / "S")
        assert_contract(tmp_path / "S")
        assert open_store(tmp_path / "S").steps()["grad_norm"].tolist() == [k / 7 for k in range(1, 9)]
        assert not (tmp_path / "S" / "steps" / "empty.parquet").exists()


def make_older(store: Path, drop: dict[str, list[str]], version: int | None = None) -> None:
    """Rewrite every shard without some columns, as a version that did not have them wrote it."""
    marker = json.loads((store / "store.json").read_text())
    for kind in TABLES:
        for path in (store / kind).iterdir():
            file = pq.ParquetFile(path)
            metadata = dict(file.metadata.metadata)
            if version is not None:
                metadata[VERSION_KEY] = str(version).encode()
            table = file.read().drop_columns(drop.get(kind, []))
            with path.open("w+b") as out:
                write_parquet(table.replace_schema_metadata(metadata), out)
        for name in drop.get(kind, []):
            del marker["columns"][kind][name]
    if version is not None:
        marker["schema_version"] = version
    (store / "store.json").write_text(json.dumps(marker))


ADDED_LATER = {"runs": ["config.task.label_noise", "lane_width"], "curves": ["sample"]}


class TestMigrate:
    def test_columns_that_came_later(self, store: Path) -> None:
        whole = {kind: contents(store, kind) for kind in TABLES}
        make_older(store, ADDED_LATER)
        before = sorted((p, p.stat().st_mtime_ns) for p in store.rglob("*"))
        with pytest.raises(StoreError, match=r"older version .*run `grok store migrate"):
            StoreWriter(store)
        assert verify(store) != []
        # reading needs no migration
        assert check_path(store, to_write=False)
        assert open_store(store).runs()["config.task.label_noise"].tolist() == [0.0] * 6
        assert sorted((p, p.stat().st_mtime_ns) for p in store.rglob("*")) == before
        assert migrate(store).shards == 6
        assert_contract(store)
        assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)
        assert migrate(store).shards == 0

    def test_a_store_without_rows_needs_no_migration(self, tmp_path: Path) -> None:
        StoreWriter(tmp_path / "S").close()
        make_older(tmp_path / "S", ADDED_LATER)
        StoreWriter(tmp_path / "S").close()
        assert_contract(tmp_path / "S")

    def test_half_done_it_is_finished(self, store: Path) -> None:
        shard = sorted((store / "runs").iterdir())[0]
        make_older(store, ADDED_LATER)
        with shard.open("rb") as file:
            table = schema_module.conform("runs", pq.ParquetFile(file).read())
        with shard.open("w+b") as file:
            write_parquet(table, file)
        assert len(open_store(store).runs()) == 6
        migrate(store)
        assert len(open_store(store).runs()) == 6

    def test_a_damaged_shard_goes_to_quarantine(self, store: Path) -> None:
        make_older(store, ADDED_LATER)
        sorted((store / "curves").iterdir())[0].write_bytes(b"")
        with pytest.warns(DamagedShardWarning):
            assert open_store(store).curves()["run_id"].nunique() == 4
        assert len(migrate(store).recovered) == 1
        assert_contract(store)
        assert len(open_store(store).run_ids()) == 4

    def test_a_renamed_column(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """From version to version a step says what changed; here one that calls `val_loss` something else."""
        whole = contents(store, "curves")

        def rename(kind: str, table: pa.Table) -> pa.Table:
            return table.rename_columns(["val_loss" if n == "valid_loss" else n for n in table.column_names])

        make_older(store, {}, version=0)
        for path in (store / "curves").iterdir():
            table = pq.ParquetFile(path).read()
            metadata = pq.ParquetFile(path).metadata.metadata
            names = ["valid_loss" if n == "val_loss" else n for n in table.column_names]
            with path.open("w+b") as out:
                write_parquet(table.rename_columns(names).replace_schema_metadata(metadata), out)
        with pytest.raises(StoreError, match="schema 0 of runs is too old to migrate"):
            migrate(store)
        monkeypatch.setitem(versions.MIGRATIONS, 0, rename)
        assert open_store(store).curves()["val_loss"].notna().all()
        assert migrate(store).from_version == 0
        assert_contract(store)
        assert contents(store, "curves").equals(whole)


@pytest.mark.parametrize("path", sorted(Path("results").glob("*/store")), ids=lambda path: path.parent.name)
def test_a_stored_run_keeps_its_name_when_settings_go(path: Path, tmp_path: Path) -> None:
    """In every committed store, read as it is and migrated."""
    shutil.copytree(path, tmp_path / "S")
    assert migrate(tmp_path / "S").from_version == read_marker(Layout(path))["schema_version"]
    assert verify(tmp_path / "S") == []
    for store in (open_store(path), open_store(tmp_path / "S")):
        rows = store.table("runs", None, None).to_pylist()
        for row in rows[:: max(1, len(rows) // 30)]:
            if row["own_code"] in (None, "{}"):
                names = identify(stored_config(row), row["data_hash"])
                assert asdict(names) == {name: row[name] for name in asdict(names)}


class TestVerify:
    def test_points_that_a_row_does_not_agree_with(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path / "S") as writer:
            row = example_row(0)
            short = replace(row, result=replace(row.result, curve=row.result.curve[:-1]))
            writer.commit([short])
        (problem,) = verify(tmp_path / "S")
        assert problem.endswith("completed at step 200, its curve's last step is 150")

    @pytest.mark.parametrize("moment", KINDS)
    def test_a_store_in_use_is_intact(self, store: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
        """A sweep commits, then merges shards, between two readings of tables."""
        read = verify_module._read_raw
        writes: list[Callable[[], object]] = [
            lambda: StoreWriter(store).commit([example_row(9)]),
            lambda: compact(store),
        ]

        def disturbed(layout: Layout, kind: str, names: set[str]) -> pa.Table:
            table = read(layout, kind, names)
            if kind == moment and writes:
                writes.pop(0)()
            return table

        monkeypatch.setattr(verify_module, "_read_raw", disturbed)
        assert verify(store) == []
        assert verify(store) == []
        assert not writes

    def test_a_commit_between_two_renames_is_no_orphan(self, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        last, later = sorted((store / "runs").iterdir())[0], store / "runs.later"
        last.rename(later)
        monkeypatch.setattr("grok.store.upkeep.time.sleep", lambda seconds: later.rename(last))
        assert not [problem for problem in verify(store) if "orphan" in problem]

    def test_replicates_with_other_bits(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path / "S") as writer:
            writer.commit([example_row(0), with_other_bits(example_row(0, settings={"replicate": 1}), 150)])
        (problem,) = verify(tmp_path / "S")
        assert "equal trajectory and numerics, different bits" in problem
        assert "val_loss at step 150" in problem


class TestCommand:
    def test_exit_statuses_and_one_line_errors(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(store)]) == 0
        assert capsys.readouterr().out == f"{store}: every guarantee holds\n"
        assert main(["status", str(store)]) == 0
        assert "6 runs, schema 2" in capsys.readouterr().out
        assert main(["compact", str(store)]) == 0
        assert capsys.readouterr().out == f"{store}: 3 shards, now 1\n"
        assert main(["migrate", str(store)]) == 0
        assert main(["status", str(store / "no")]) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("error: no store at")
        assert errors.count("\n") == 1
        assert main(["mend", str(store)]) == 2
        assert capsys.readouterr().err.startswith("error: ")

    def test_conflicts_end_with_1(self, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with StoreWriter(tmp_path / "B") as writer:
            writer.commit([with_other_bits(example_row(0), 50), example_row(9)])
        assert main(["merge", str(store), str(tmp_path / "B"), "--into", str(tmp_path / "C")]) == 1
        said = capsys.readouterr().out
        assert "val_loss at step 50" in said
        assert "nothing was chosen" in said
        assert main(["verify", str(tmp_path / "C")]) == 1
        assert main(["status", str(tmp_path / "C")]) == 0
        assert "records a conflict" in capsys.readouterr().out

    def test_a_merge_that_had_to_leave_a_shard_out_ends_with_1(
        self, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        next((store / "runs").iterdir()).write_bytes(b"")
        assert main(["merge", str(store), "--into", str(tmp_path / "new")]) == 1
        said = capsys.readouterr()
        assert "4 runs added" in said.out
        assert "warning: left out" in said.err
