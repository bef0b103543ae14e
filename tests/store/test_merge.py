"""Merging of stores: no row, checkpoint or kept weight is lost, and none of another run is taken."""

import json
from pathlib import Path

import pytest
import torch

from grok import files
from grok.checkpoints import load_checkpoint, load_weights, run_folder, save_checkpoint, save_weights
from grok.commands.store import main
from grok.errors import StoreError
from grok.records import Checkpoint
from grok.store import StoreWriter, open_store
from grok.store.contract import assert_contract, contents, example_row, example_rows, failed, with_other_bits
from grok.store.merge import merge
from grok.store.schema import TABLES
from grok.store.upkeep import verify


class TestMerge:
    def test_two_halves_become_the_whole(self, tmp_path: Path) -> None:
        a, b = tmp_path / "A", tmp_path / "B"
        rows = example_rows(range(6))
        with StoreWriter(a) as writer:
            writer.commit([*rows[:3], failed(rows[3])])
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
            with StoreWriter(tmp_path / store):
                pass
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
        a, b = tmp_path / "A", tmp_path / "B"
        short, long = example_row(0, steps=200), example_row(0, steps=400, every=100)
        assert short.identity.trajectory_id == long.identity.trajectory_id
        assert short.identity.run_id != long.identity.run_id
        with StoreWriter(a) as writer:
            writer.commit([short])
        with StoreWriter(b) as writer:
            writer.commit([with_other_bits(long, 100, column)])
        report = merge(a, [b])
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
        with StoreWriter(tmp_path / "A") as writer:
            writer.commit([same, example_row(1)])
        with StoreWriter(tmp_path / "B") as writer:
            writer.commit([same, elsewhere])
        for row in (same, elsewhere):
            save_weights(run_folder(tmp_path / "B", row.result.run_id), "final", {"w": torch.ones(2)})
        report = merge(tmp_path / "A", [tmp_path / "B"])
        assert (report.duplicates, report.checkpoints, report.conflicts) == (2, 1, [])
        assert load_weights(run_folder(tmp_path / "A", same.result.run_id), "final")
        assert not run_folder(tmp_path / "A", elsewhere.result.run_id).exists()

    @pytest.mark.parametrize("row_of_target", ["none", "failed"])
    def test_a_finished_run_brings_its_weights_where_an_interrupted_try_left_a_checkpoint(
        self, tmp_path: Path, row_of_target: str
    ) -> None:
        a, b, row = tmp_path / "A", tmp_path / "B", example_row(0)
        own, theirs = run_folder(a, row.result.run_id), run_folder(b, row.result.run_id)
        with StoreWriter(a) as writer:
            if row_of_target == "failed":
                writer.commit([failed(row)])
        save_checkpoint(own, Checkpoint(run_id=own.name, step=50, tensors={}, state={}))
        with StoreWriter(b) as writer:
            writer.commit([row])
        save_weights(theirs, "final", {"w": torch.ones(2)})
        assert merge(a, [b]).checkpoints == 1
        assert open_store(a).run_ids("completed") == {row.result.run_id}
        assert load_weights(own, "final")["w"].tolist() == [1, 1]
        assert [path.name for path in own.iterdir()] == ["weights-final"]
        assert [path.name for path in (a / "checkpoints").iterdir()] == [own.name]

    def test_a_stored_run_gets_the_weights_that_it_lacks(self, tmp_path: Path) -> None:
        stores, row = (tmp_path / "A", tmp_path / "B"), example_row(0)
        for value, store in enumerate(stores):
            with StoreWriter(store) as writer:
                writer.commit([row])
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
        a, b, row = tmp_path / "A", tmp_path / "B", failed(example_row(0))
        with StoreWriter(a), StoreWriter(b) as writer:
            writer.commit([row])
        for store, step in ((a, 90), (b, 10)):
            folder = run_folder(store, row.result.run_id)
            save_checkpoint(folder, Checkpoint(run_id=folder.name, step=step, tensors={}, state={}))
        assert merge(a, [b]).checkpoints == 0
        assert load_checkpoint(run_folder(a, row.result.run_id)).step == 90

    def test_copies_are_on_the_disk_and_what_a_killed_merge_left_goes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        a, b, row = tmp_path / "A", tmp_path / "B", example_row(0)
        StoreWriter(a).close()
        with StoreWriter(b) as writer:
            writer.commit([row])
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
        for name, one in (("A", row), ("B", with_other_bits(row, 100))):
            with StoreWriter(tmp_path / name) as writer:
                writer.commit([one])
        report = merge(tmp_path / "A", [tmp_path / "B"])
        assert (report.duplicates, report.conflicts) == (1, [])
        longer = with_other_bits(example_row(0, steps=400, numerics="cpu:a | cpu:b"), 100)
        with StoreWriter(tmp_path / "A") as writer:
            writer.commit([longer])
        assert verify(tmp_path / "A") == []

    def test_refused(self, store: Path, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="cannot be merged into itself"):
            merge(store, [store])
        with pytest.raises(StoreError, match="no store at"):
            merge(store, [tmp_path / "nothing"], into=tmp_path / "new")
        with pytest.raises(StoreError, match="name at least one more store"):
            merge(store, [])
        assert not (tmp_path / "new").exists()
