"""Going on from a checkpoint gives what an empty store would have given, or does not happen."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grok.checkpoints import (
    Origin,
    checkpoint_steps,
    load_checkpoint,
    load_weights,
    read_state,
    run_folder,
    save_checkpoint,
)
from grok.commands.store import main
from grok.config import identify
from grok.errors import OtherRunsCheckpoint
from grok.execute import worker
from grok.execute.groups import PlannedRun
from grok.records import Checkpoint, Event, Job, RunResult
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
    assert f"{manifest.parent} has format 9, this version reads 2" in ended.out + ended.err
    assert "trained anew" not in ended.out and hashes("S") == {}
    assert manifest.read_text() == newer and checkpoint_steps(manifest.parent.parent) == [6]


@pytest.mark.parametrize(
    ("name", "wrong"), [("run_id", "0" * 20), ("trajectory_id", "1" * 20), ("numerics", "device=cpu;model=another")]
)
def test_each_name_in_a_manifest_is_compared(door: Door, name: str, wrong: str) -> None:
    assert door(*KEEP, "save=final").status == 0
    (row,) = open_store("S").runs().to_dict("records")
    folder = run_folder("S", row["run_id"])
    of = Origin(row["run_id"], row["trajectory_id"], row["numerics"])
    assert _verified("S") == ["S: every guarantee holds"]
    assert load_checkpoint(folder, of=of).trajectory_id == row["trajectory_id"]
    for manifest in folder.glob("*/manifest.json"):
        relabel(manifest, **{name: wrong})
    for load in (lambda: load_checkpoint(folder, of=of), lambda: read_state(folder, 6, of=of),
                 lambda: load_weights(folder, "final", of=of)):  # fmt: skip
        with pytest.raises(OtherRunsCheckpoint, match=rf"expected .*{re.escape(row[name])}.*found .*{wrong}"):
            load()
    assert len(_verified("S")) == 3
    longer = door(*KEEP, "train.steps=9")
    assert longer.status == 1 and wrong in longer.out + longer.err
    for manifest in folder.glob("*/manifest.json"):  # as an older version wrote it
        relabel(manifest, run_id=row["run_id"], trajectory_id=None, numerics=None)
    assert _verified("S") == ["S: every guarantee holds"]
    assert door(*KEEP, "train.steps=9").status == 0


def relabel(manifest: Path, **names: str | None) -> None:
    """Change what an intact manifest says of its run; None takes the name out."""
    content = json.loads(manifest.read_text()) | names
    content = {key: value for key, value in content.items() if value is not None and key != "manifest_sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps({**content, "manifest_sha256": digest}))


def _verified(store: str) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(["verify", store])
    return printed.getvalue().splitlines()


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


def test_a_late_duplicate_leaves_the_weights_of_the_row_that_stays(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine took the run over, as this one seemed dead, and has stored it meanwhile."""
    train = worker.train

    def overtaken(jobs: list[Job], **settings: Any) -> Iterator[Event]:
        for event in train(jobs, **settings):
            if isinstance(event, RunResult):
                first = replace(event, numerics="elsewhere", tensors={"final": {"w": torch.full((2,), 7.0)}})
                with StoreWriter("S") as writer:
                    writer.commit(
                        [
                            worker.finished_row(
                                first, PlannedRun(jobs[0].config, identify(jobs[0].config)), Provenance.collect(), "S"
                            )
                        ]
                    )
            yield event

    monkeypatch.setattr(worker, "train", overtaken)
    assert door(*TINY, "store.path=S", "save=final", "executor=inline").status == 0
    (run_id,) = hashes("S")
    assert open_store("S").runs()["numerics"].tolist() == ["elsewhere"]
    assert load_weights(run_folder("S", run_id), "final")["w"].tolist() == [7, 7]
