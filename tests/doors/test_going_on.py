"""Going on from a checkpoint gives what an empty store would have given, or does not happen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grok.checkpoint import checkpoint_steps, load_weights, run_folder, save_checkpoint
from grok.execute import worker
from grok.execute.planned import PlannedRun
from grok.execute.resume import checkpoint_to_resume
from grok.records import Checkpoint, Event, RunResult
from grok.store import Provenance, StoreWriter, open_store
from tests.doors.conftest import TINY, Door

KEEP = (*TINY, "store.path=S", "checkpoint.keep=true")


def hashes(store: str) -> dict[str, str]:
    runs = open_store(store).runs()
    return dict(zip(runs["run_id"], runs["weights_hash"], strict=True))


@pytest.mark.parametrize(
    "other",
    [("replicate=3",), ("train.stop_when_generalised=true",), ("eval.every=2",)],
)
def test_another_way_of_looking_stopping_or_repeating_starts_anew(door: Door, other: tuple[str, ...]) -> None:
    assert door(*KEEP).status == 0
    assert "from the end" not in door(*KEEP, "train.steps=9", *other, "dry_run=true").out
    assert "1 from the end of a shorter run" in door(*KEEP, "train.steps=9", "dry_run=true").out


def test_a_forced_repeat_is_computed_whole(door: Door) -> None:
    assert door(*KEEP).status == 0
    assert door(*KEEP, "train.steps=9").status == 0
    plan = door(*KEEP, "train.steps=9", "force=true", "dry_run=true").out
    assert "1 to train" in plan and "from the end" not in plan


def test_a_damaged_checkpoint_is_named_and_the_run_trained_anew(door: Door) -> None:
    assert door(*KEEP).status == 0
    (run_id,) = hashes("S")
    folder = Path("S/checkpoints") / run_id
    assert checkpoint_steps(folder) == [6]
    (tensors,) = folder.rglob("*.safetensors")
    damaged = bytearray(tensors.read_bytes())
    damaged[-1] ^= 1
    tensors.write_bytes(damaged)
    for shard in (*Path("S/runs").glob("*"), *Path("S/curves").glob("*")):
        if "empty" not in shard.name:
            shard.unlink()  # the row is lost as well: the same command trains it again
    again = door(*KEEP)
    assert again.status == 0
    assert f"Damaged: the checkpoint of run {run_id} at step 6; it was trained anew" in again.out
    fresh = door(*TINY, "store.path=T")
    assert fresh.status == 0
    assert hashes("S") == hashes("T")


def test_a_checkpoint_of_a_newer_version_stops_the_command_and_stays(door: Door) -> None:
    """Its run must not begin anew, as the next checkpoint would replace it."""
    assert door(*KEEP).status == 0
    (run_id,) = hashes("S")
    for shard in (*Path("S/runs").glob("*"), *Path("S/curves").glob("*")):
        if "empty" not in shard.name:
            shard.unlink()  # the same command trains the run again
    (manifest,) = Path("S/checkpoints", run_id).glob("*-step-6/manifest.json")
    newer = json.dumps({**json.loads(manifest.read_text()), "format": 9})
    manifest.write_text(newer)
    ended = door(*KEEP, "checkpoint.every=2")
    assert ended.status != 0
    assert f"{manifest.parent} has format 9, this version reads 1 and 2" in ended.out + ended.err
    assert "trained anew" not in ended.out and hashes("S") == {}
    assert manifest.read_text() == newer and checkpoint_steps(manifest.parent.parent) == [6]


def test_a_checkpoint_that_a_kill_left_beside_its_finished_run_goes(door: Door) -> None:
    assert door(*TINY, "store.path=S").status == 0
    (run_id,) = hashes("S")
    folder = Path("S/checkpoints") / run_id
    save_checkpoint(folder, Checkpoint(run_id=run_id, step=3, tensors={"w": torch.ones(2)}, state={}))
    assert door(*TINY, "store.path=S", "dry_run=true").status == 0
    assert checkpoint_steps(folder) == [3], "a dry run writes nothing"
    assert door(*TINY, "store.path=S").status == 0
    assert not folder.exists()
    assert door(*TINY, "store.path=T", "checkpoint.keep=true").status == 0
    assert door(*TINY, "store.path=T").status == 0
    assert checkpoint_steps(Path("T/checkpoints") / run_id) == [6], "kept on purpose"


def test_weights_asked_for_too_late_are_not_promised(door: Door) -> None:
    assert door(*TINY, "store.path=S").status == 0
    late = door(*TINY, "store.path=S", "save=final")
    assert late.status == 0
    assert "1 stored run kept no weights" in late.out and "force=true" in late.out


def test_measurements_asked_for_too_late_are_not_promised(door: Door) -> None:
    assert door(*TINY, "store.path=S", "eval.metrics=[logits]", "checkpoint.keep_every=2").status == 0
    same = door(*TINY, "store.path=S", "eval.metrics=[logits]", "checkpoint.keep_every=4", "dry_run=true")
    assert "did without" not in same.out + door(*TINY, "store.path=S", "dry_run=true").out
    words = ("eval.metrics=[logits,gradient]", "checkpoint.keep=true", "checkpoint.keep_every=3")
    for how in (("dry_run=true",), ()):
        late = door(*TINY, "store.path=S", *words, *how)
        assert late.status == 0
        assert f"Note: 1 stored run did without {', '.join(words)}; add force=true" in late.out
    assert "did without" not in door(*TINY, "store.path=S", *words, "force=true", "dry_run=true").out


@pytest.mark.parametrize("now", ["[logits]", "[]"])
def test_a_curve_is_measured_alike_from_its_start(door: Door, monkeypatch: pytest.MonkeyPatch, now: str) -> None:
    """A run that went on under other metrics had them at some of its evaluations, and nobody knew."""
    words = (*TINY, "store.path=S", "checkpoint.every=3")
    keep = worker.keep_checkpoint

    def keep_and_die(*given: Any) -> None:
        keep(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker, "keep_checkpoint", keep_and_die)
        assert door(*words, "eval.metrics=[gradient]").status == 1
    again = door(*words, f"eval.metrics={now}")
    assert again.status == 0 and "without the eval.metrics of now up to step 3: it was trained anew" in again.out
    (names,) = {frozenset(json.loads(text)) for text in open_store("S").curves()["metrics"].fillna("{}")}
    assert any("logit" in name for name in names) == (now == "[logits]") and "gradient_norm" not in names


def test_kept_weights_are_no_checkpoint_to_go_on_from(door: Door) -> None:
    assert door(*TINY, "store.path=S", "save=final").status == 0
    longer = door(*TINY, "store.path=S", "save=final", "train.steps=9")
    assert longer.status == 0
    assert "1 to train;" in longer.out and "from the end" not in longer.out and "Damaged" not in longer.out


def test_a_checkpoint_that_went_after_the_plan_is_not_called_damaged(tmp_path: Path) -> None:
    longer: Any = SimpleNamespace(run_id="longer", config=None, extends="shorter")
    notes: list[str] = []
    assert checkpoint_to_resume(longer, str(tmp_path), notes) is None
    assert notes == []
    kept = Checkpoint(run_id="shorter", step=3, tensors={"w": torch.ones(2)}, state={})
    saved = save_checkpoint(run_folder(tmp_path, "shorter"), kept)
    (saved / "manifest.json").write_text("{}")
    assert checkpoint_to_resume(longer, str(tmp_path), notes) is None
    assert notes == ["Damaged: the checkpoint of run shorter, which longer extends; it was trained anew"]


def test_a_late_duplicate_leaves_the_weights_of_the_row_that_stays(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine took the run over, as this one seemed dead, and has stored it meanwhile."""
    train = worker.engine_events

    def overtaken(runs: list[PlannedRun], *rest: Any) -> Iterator[Event]:
        for event in train(runs, *rest):
            if isinstance(event, RunResult):
                first = replace(event, numerics="elsewhere", tensors={"final": {"w": torch.full((2,), 7.0)}})
                with StoreWriter("S") as writer:
                    writer.commit([worker.finished_row(first, runs[0], Provenance.collect(), "S")])
            yield event

    monkeypatch.setattr(worker, "engine_events", overtaken)
    assert door(*TINY, "store.path=S", "save=final", "executor=inline").status == 0
    (run_id,) = hashes("S")
    assert open_store("S").runs()["numerics"].tolist() == ["elsewhere"]
    assert load_weights(run_folder("S", run_id), "final")["w"].tolist() == [7, 7]


def test_options_may_stand_behind_overrides(door: Door) -> None:
    ended = door(*TINY, "executor=inline", "store.path=S", "-m", "seed=range(0,2)")
    assert ended.status == 0
    assert ended.last.startswith("2 runs stored in S")


def test_numbers_beyond_the_store_are_refused(door: Door) -> None:
    ended = door(*TINY, "store.path=S", "replicate=99999999999999999999")
    assert ended.status == 2
    assert "at most 9223372036854775807" in ended.err
    assert not Path("S").exists()


@pytest.mark.parametrize(
    ("word", "said"), [("store.path=", "store.path='' is empty"), ("lr=0.1", "did you mean 'optim.lr'?")]
)
def test_what_a_tired_user_types_is_refused(door: Door, word: str, said: str) -> None:
    ended = door(*TINY, word)
    assert ended.status == 2
    assert said in ended.err
    assert list(Path().iterdir()) == []
