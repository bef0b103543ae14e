"""Compaction, migration, verification and merging: no row, checkpoint or kept weight is lost."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from grok import files
from grok.checkpoints import load_checkpoint, load_weights, run_folder, save_checkpoint, save_weights
from grok.commands.store import main
from grok.config import identify, load_config
from grok.errors import StoreError
from grok.execute import execute
from grok.records import Checkpoint, StepPoint
from grok.store import DamagedShardWarning, StoreWriter, open_store
from grok.store import schema as versions
from grok.store import upkeep as verify_module
from grok.store.layout import Layout, check_path, read_marker
from grok.store.merge import merge
from grok.store.provenance import stored_config
from grok.store.schema import KINDS, TABLES, VERSION_KEY
from grok.store.shards import write_parquet
from grok.store.upkeep import compact, migrate, verify
from tests.store.conftest import store_of
from tests.store.contract import assert_contract, contents, example_row, example_rows, failed, with_other_bits


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with StoreWriter(tmp_path / "S") as writer:
        for start in (0, 2, 4):
            writer.commit(example_rows(range(start, start + 2)))
    return tmp_path / "S"


class TestCompact:
    def test_large_shards_are_left_alone_and_nothing_is_done_twice(self, store: Path) -> None:
        store_of(store, [example_row(6, step_log=[StepPoint(step=k, grad_norm=k / 7) for k in range(1, 4)])])
        whole = {kind: contents(store, kind) for kind in TABLES}
        assert str(compact(store, shard_rows=25)) == "4 shards, now 2"
        assert str(compact(store, shard_rows=25)) == "2 shards: nothing to do"
        assert str(compact(store)) == "2 shards, now 1"
        assert_contract(store)
        assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)
        assert not (store / "steps" / "empty.parquet").exists()


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
        done = sorted((store / "runs").iterdir())[0]  # before the migration was killed
        table = versions.conform("runs", pq.read_table(done))
        with done.open("w+b") as file:
            write_parquet(table, file)
        before = sorted((p, p.stat().st_mtime_ns) for p in store.rglob("*"))
        planned = load_config({"seed": 9, "dry_run": True, "store": {"path": str(store)}})
        for refused in (StoreWriter, check_path, lambda _: execute([planned])):
            with pytest.raises(StoreError, match=r"older version .*run `grok store migrate"):
                refused(store)
        assert check_path(store, to_write=False), "notebooks and `report --watch` read it"
        assert verify(store) != []
        # reading needs no migration
        assert open_store(store).runs()["config.task.label_noise"].tolist() == [0.0] * 6
        assert sorted((p, p.stat().st_mtime_ns) for p in store.rglob("*")) == before
        assert migrate(store).shards == 5
        assert_contract(store)
        assert all(contents(store, kind).equals(whole[kind]) for kind in TABLES)
        assert migrate(store).shards == 0

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
        row = example_row(0)
        store_of(tmp_path / "S", [replace(row, result=replace(row.result, curve=row.result.curve[:-1]))])
        (problem,) = verify(tmp_path / "S")
        assert problem.endswith("completed at step 200, its curve's last step is 150")

    @pytest.mark.parametrize("moment", KINDS)
    def test_a_store_in_use_is_intact(self, store: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
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
        store_of(tmp_path / "S", [example_row(0), with_other_bits(example_row(0, settings={"replicate": 1}), 150)])
        (problem,) = verify(tmp_path / "S")
        assert "equal trajectory and numerics, different bits" in problem


class TestCommand:
    def test_exit_statuses_and_one_line_errors(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for command in ("verify", "status", "compact", "migrate"):
            assert main([command, str(store)]) == 0
        assert f"{store}: 3 shards, now 1\n" in capsys.readouterr().out
        assert main(["status", str(store / "no")]) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("error: no store at")
        assert errors.count("\n") == 1
        assert main(["mend", str(store)]) == 2
        assert capsys.readouterr().err.startswith("error: ")

    def test_a_merge_that_had_to_leave_a_shard_out_ends_with_1(
        self, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        next((store / "runs").iterdir()).write_bytes(b"")
        assert main(["merge", str(store), "--into", str(tmp_path / "new")]) == 1
        said = capsys.readouterr()
        assert "warning: left out" in said.err


class TestMerge:
    def test_two_halves_become_the_whole(self, tmp_path: Path) -> None:
        rows, b = example_rows(range(6)), tmp_path / "B"
        a = store_of(tmp_path / "A", [*rows[:3], failed(rows[3])])
        with StoreWriter(b) as writer:
            writer.commit([failed(rows[0]), *rows[2:]])
            writer.record_sweep("s1", ["x"], {})
        own = run_folder(b, rows[5].result.run_id)
        save_weights(own, "final", {"w": torch.ones(2)})
        for step in (1, 2):  # checkpoints of a run that have a part in common
            common = Checkpoint(
                run_id=own.name, step=step, tensors={"best.w": torch.ones(3)}, state={}, parts=("best.",)
            )
            save_checkpoint(own, common, keep=None)
        report = merge(a, [b])
        assert (report.added, report.replaced, report.duplicates, report.conflicts) == (2, 1, 2, [])
        assert report.checkpoints == 1
        assert load_weights(run_folder(a, own.name), "final")["w"].tolist() == [1, 1]
        assert load_checkpoint(run_folder(a, own.name), 1).tensors["best.w"].tolist() == [1, 1, 1]
        assert len({path.stat().st_ino for path in a.glob("checkpoints/*/*/part-*/tensors.safetensors")}) == 1
        assert (a / "sweeps" / "s1.json").exists()
        assert open_store(a).run_ids("completed") == {row.result.run_id for row in rows}
        for path in (a, b):
            assert_contract(path)
        again = merge(a, [b])
        assert (again.added, again.replaced, again.conflicts, again.checkpoints) == (0, 0, [], 0)

    def test_a_large_source_is_written_as_several_shards(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("grok.store.merge.MERGED_ROWS", 9)
        with StoreWriter(tmp_path / "A") as writer:
            for start in (0, 2, 4):
                writer.commit(example_rows(range(start, start + 2)))  # five evaluations each
        assert merge(tmp_path / "A", [], into=tmp_path / "B").added == 6
        for kind in TABLES:
            assert contents(tmp_path / "B", kind).equals(contents(tmp_path / "A", kind))
        assert len(open_store(tmp_path / "B").layout.names("runs")) == 3
        assert_contract(tmp_path / "B")

    def test_searches_come_along_unless_their_name_is_taken(
        self, tmp_path: Path, lost_in_a_power_cut: set[str]
    ) -> None:
        for store, names in (("A", ["both", "same"]), ("B", ["both", "same", "mine"])):
            StoreWriter(tmp_path / store).close()
            (tmp_path / store / "search").mkdir()
            for name in names:
                (tmp_path / store / "search" / f"{name}.journal").write_text("same" if name == "same" else store)
                (tmp_path / store / "search" / f"{name}.lock").touch()
        report = merge(tmp_path / "A", [tmp_path / "B"])
        assert (report.studies, report.studies_left) == (["mine"], ["both"])
        found = {p.name: p.read_text() for p in (tmp_path / "A" / "search").glob("*.journal")}
        assert found == {"both.journal": "A", "same.journal": "same", "mine.journal": "B"}
        assert lost_in_a_power_cut == set()
        assert merge(tmp_path / "A", [tmp_path / "B"]).studies == []
        assert_contract(tmp_path / "A")

    @pytest.mark.parametrize(
        "column", ["train_loss", "train_acc", "val_loss", "val_acc", "weight_norm", "weight_norm_all", "lr"]
    )
    def test_one_trajectory_seen_at_other_steps_must_have_the_same_bits(self, tmp_path: Path, column: str) -> None:
        short, long = example_row(0, steps=200), example_row(0, steps=400, every=100)
        assert short.identity.trajectory_id == long.identity.trajectory_id
        assert short.identity.run_id != long.identity.run_id
        a = store_of(tmp_path / "A", [short])
        report = merge(a, [store_of(tmp_path / "B", [with_other_bits(long, 100, column)])])
        (conflict,) = report.conflicts
        assert (conflict.run_id, conflict.other_run_id) == (short.identity.run_id, long.identity.run_id)
        assert (conflict.step, conflict.what) == (100, column)
        (record,) = (a / "conflicts").iterdir()
        content = json.loads(record.read_text())
        assert float.fromhex(content["value"]["hex"]) == getattr(short.result.curve[2], column)
        assert {side["host"] for side in content["sides"].values()} == {"somewhere"}
        assert open_store(a).run_ids() == {short.identity.run_id}

    def test_weights_belong_to_the_row_that_stays(self, tmp_path: Path) -> None:
        same, elsewhere = example_row(0), example_row(1, numerics="gpu:other", weights_hash="f" * 64)
        a, b = store_of(tmp_path / "A", [same, example_row(1)]), store_of(tmp_path / "B", [same, elsewhere])
        for row in (same, elsewhere):
            save_weights(run_folder(b, row.result.run_id), "final", {"w": torch.ones(2)})
        report = merge(a, [b])
        assert (report.duplicates, report.checkpoints, report.conflicts) == (2, 1, [])
        assert load_weights(run_folder(a, same.result.run_id), "final")
        assert not run_folder(a, elsewhere.result.run_id).exists()

    @pytest.mark.parametrize("row_of_target", ["none", "failed"])
    def test_a_finished_run_brings_its_weights_where_an_interrupted_try_left_a_checkpoint(
        self, tmp_path: Path, row_of_target: str
    ) -> None:
        row = example_row(0)
        a = store_of(tmp_path / "A", [failed(row)] if row_of_target == "failed" else [])
        b = store_of(tmp_path / "B", [row])
        own, theirs = run_folder(a, row.result.run_id), run_folder(b, row.result.run_id)
        save_checkpoint(own, Checkpoint(run_id=own.name, step=50, tensors={}, state={}))
        save_weights(theirs, "final", {"w": torch.ones(2)})
        assert merge(a, [b]).checkpoints == 1
        assert open_store(a).run_ids("completed") == {row.result.run_id}
        assert load_weights(own, "final")["w"].tolist() == [1, 1]
        assert [path.name for path in own.iterdir()] == ["weights-final"]
        assert [path.name for path in (a / "checkpoints").iterdir()] == [own.name]

    def test_a_stored_run_gets_the_weights_that_it_lacks(self, tmp_path: Path) -> None:
        stores, row = (tmp_path / "A", tmp_path / "B"), example_row(0)
        for value, store in enumerate(stores):
            store_of(store, [row])
            save_weights(run_folder(store, row.result.run_id), "init", {"w": torch.full((2,), float(value))})
        own, theirs = (run_folder(store, row.result.run_id) for store in stores)
        save_weights(theirs, "final", {"w": torch.full((2,), 7.0)})
        save_checkpoint(theirs, Checkpoint(run_id=own.name, step=50, tensors={}, state={}))
        assert merge(stores[0], [stores[1]]).checkpoints == 1
        assert load_weights(own, "final")["w"].tolist() == [7, 7]
        assert load_weights(own, "init")["w"].tolist() == [0, 0], "its own stay"
        assert sorted(path.name for path in own.iterdir()) == ["weights-final", "weights-init"]
        assert merge(stores[0], [stores[1]]).checkpoints == 0

    def test_a_failed_run_replaces_no_checkpoint_that_a_run_can_go_on_from(self, tmp_path: Path) -> None:
        row = failed(example_row(0))
        a, b = store_of(tmp_path / "A", []), store_of(tmp_path / "B", [row])
        for store, step in ((a, 90), (b, 10)):
            folder = run_folder(store, row.result.run_id)
            save_checkpoint(folder, Checkpoint(run_id=folder.name, step=step, tensors={}, state={}))
        assert merge(a, [b]).checkpoints == 0
        assert load_checkpoint(run_folder(a, row.result.run_id)).step == 90

    def test_copies_are_on_the_disk_and_what_a_killed_merge_left_goes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        row = example_row(0)
        a, b = store_of(tmp_path / "A", []), store_of(tmp_path / "B", [row])
        save_weights(run_folder(b, row.result.run_id), "final", {"w": torch.ones(2)})
        (run_folder(b, row.result.run_id) / "00000001-step-50").mkdir()  # damaged: without files
        left: list[Path] = []

        def killed(path: Path, target: Path) -> None:
            left.append(path)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(files, "_put_in_place", killed)
            patch.setattr(files.shutil, "rmtree", lambda *_, **__: None)
            patch.setattr(files, "start_of", lambda pid: "0")
            with pytest.raises(KeyboardInterrupt):
                merge(a, [b])
        assert left[0].is_dir()
        assert main(["verify", str(a)]) == 0
        assert main(["status", str(a)]) == 0
        assert "have a checkpoint and no row" not in capsys.readouterr().out
        flushed: list[str] = []
        flush = files.flush_file
        monkeypatch.setattr(files, "flush_file", lambda path: (flushed.append(path.name), flush(path)))
        assert merge(a, [b]).checkpoints == 1
        assert {"tensors.safetensors", "manifest.json"} <= set(flushed)
        assert [path.name for path in (a / "checkpoints").iterdir()] == [row.result.run_id]

    def test_runs_that_changed_machine_never_conflict(self, tmp_path: Path) -> None:
        """Where each of them changed is not in the row, so their bits may differ."""
        row = example_row(0, numerics="cpu:a | cpu:b")
        a = store_of(tmp_path / "A", [row])
        report = merge(a, [store_of(tmp_path / "B", [with_other_bits(row, 100)])])
        assert (report.duplicates, report.conflicts) == (1, [])
        store_of(a, [with_other_bits(example_row(0, steps=400, numerics="cpu:a | cpu:b"), 100)])
        assert verify(a) == []

    def test_refused(self, store: Path, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="cannot be merged into itself"):
            merge(store, [store])
        with pytest.raises(StoreError, match="no store at"):
            merge(store, [tmp_path / "nothing"], into=tmp_path / "new")
        with pytest.raises(StoreError, match="name at least one more store"):
            merge(store, [])
        assert not (tmp_path / "new").exists()
