"""Going on, training again and switching: what an empty store would have given, or nothing."""

import contextlib
import hashlib
import io
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from grok.arithmetic.engine import train
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
from grok.config.gpt import GptConfig
from grok.errors import OtherRunsCheckpoint
from grok.execute import worker
from grok.execute.groups import PlannedRun
from grok.gpt.training import engine as gpt
from grok.records import Checkpoint, Event, Job, RunResult
from grok.store import Provenance, Row, StoreWriter, open_store
from grok.store.merge import merge
from grok.store.upkeep import verify
from grok.text.corpus import Corpus
from tests.doors.conftest import TINY, Door, lose_rows
from tests.execute.conftest import tiny
from tests.gpt.conftest import corpus as corpus
from tests.gpt.conftest import settings as settings
from tests.gpt.test_stability import dirty as dirty
from tests.gpt.test_stability import of
from tests.store.conftest import store_of
from tests.store.contract import example_row, with_other_bits
from tests.store.hostile import outside_state

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
    lose_rows("S")
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
    lose_rows("S")
    (manifest,) = Path("S/checkpoints", run_id).glob("*-step-6/manifest.json")
    newer = json.dumps({**json.loads(manifest.read_text()), "format": 9})
    manifest.write_text(newer)
    ended = door(*KEEP, "checkpoint.every=2")
    assert ended.status != 0
    assert f"{manifest.parent} has format 9, this version reads 2" in ended.out + ended.err
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
                run = PlannedRun(jobs[0].config, identify(jobs[0].config))
                store_of("S", [worker.finished_row(first, run, Provenance.collect(), "S")])
            yield event

    monkeypatch.setattr(worker, "train", overtaken)
    assert door(*TINY, "store.path=S", "save=final", "executor=inline").status == 0
    (run_id,) = hashes("S")
    assert open_store("S").runs()["numerics"].tolist() == ["elsewhere"]
    assert load_weights(run_folder("S", run_id), "final")["w"].tolist() == [7, 7]


INLINE = ("executor=inline", "store.path=S")


def only_run(store: str = "S") -> str:
    (run_id,) = open_store(store).run_ids()
    return run_id


def verdict(text: str) -> str:
    return text.strip().splitlines()[-1].partition(":")[0]


def test_a_run_has_the_same_bits_and_nothing_is_stored(door: Door, tmp_path: Path) -> None:
    layers = "seeds.layers={head:5}"
    assert door(*TINY, *INLINE, "seed=3", "seeds.order=8", layers, "save=final", "checkpoint.keep=true").status == 0
    before = outside_state(tmp_path)
    ended = door("--again", only_run()[:8], "--store", "S")
    assert (ended.status, verdict(ended.out)) == (0, "same bits"), ended
    assert outside_state(tmp_path) == before


def store_with(path: str, change: Callable[[RunResult], RunResult]) -> None:
    """Write a store of one run as it was trained, but for ``change``."""
    config = tiny(4)
    identity = identify(config)
    (result,) = (e for e in train([Job(run_id=identity.run_id, config=config)]) if isinstance(e, RunResult))
    store_of(path, [Row(change(result), config, identity, Provenance.collect())])


def one_ulp(result: RunResult) -> RunResult:
    first, *rest = result.curve
    return replace(result, curve=[replace(first, val_loss=math.nextafter(first.val_loss, math.inf)), *rest])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (one_ulp, "other bits: val_loss at step 3: "),
        (lambda result: replace(result, weights_hash="0" * 64), "other bits: weights_hash at step 6: "),
        # the tag changes, but not the path of products, which decides the bits
        (lambda r: replace(r, numerics=re.sub("model=[^;]*", "model=another", r.numerics)), "same bits: "),
        (lambda result: replace(result, weights_hash=None), "same bits: 2 evaluations"),
    ],
)
def test_one_bit_is_enough_and_the_tag_alone_is_not(
    door: Door, change: Callable[[RunResult], RunResult], says: str
) -> None:
    store_with("S", change)
    ended = door("--again", only_run(), "--store", "S")
    assert ended.last.startswith(says), ended
    assert ended.status == (0 if says.startswith("same") else 1)


def test_an_extended_and_an_early_stopped_run_are_trained_from_their_first_step(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*TINY, *INLINE, "checkpoint.keep=true", "eval.every=1")
    assert door(*words).status == 0
    assert "from the end of a shorter run" in door(*words, "train.steps=9").out
    longer = open_store("S").runs().set_index("steps").loc[9, "run_id"]
    assert verdict(door("--again", str(longer), "--store", "S").out) == "same bits"
    monkeypatch.setattr("grok.arithmetic.run.GENERALISED_VAL_ACC", 0.0)  # else it takes thousands of steps
    stop = ("train.stop_when_generalised=true", "train.stop_horizon=3", "train.stop_every=2", "store.path=Q")
    assert door(*TINY, "executor=inline", *stop).status == 0
    assert open_store("Q").run(only_run("Q"))["stop_reason"] == "generalised"
    ended = door("--again", only_run("Q"), "--store", "Q")
    assert verdict(ended.out) == "same bits" and "ended early (generalised)" in ended.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--again", "zz", "--store", "S"), "begins with 'zz'"),
        (("--again", "{run}", "--store", "S", "seed=4"), "seed=4 cannot be given with --again"),
        (("--again", "{run}", "--store", "S", "device=tpu"), "device='tpu' is not known"),
        (("--again", "{run}", "--store", "S", "numerics.compile=7"), "numerics.compile=7: int given"),
        (("--again", "{run}", "--store", "S", "device=cpu,cuda"), "device=cpu,cuda: expected one value"),
        (("--again", "{run}", "--store", "S", "numerics.compile=²"), "'numerics.compile=²' cannot be read"),
        (("--again", "{run}"), "no store at results/store"),
    ],
)
def test_what_cannot_be_trained_again_is_refused(door: Door, words: tuple[str, ...], says: str) -> None:
    store_with("S", lambda result: result)
    ended = door(*(word.format(run=only_run()) for word in words))
    assert (ended.status, says in ended.err) == (2, True), ended
    assert "Traceback" not in ended.err


def language_model(config: GptConfig, corpus: Corpus) -> None:
    """Train into S what ``config`` says, in this process."""
    identity = identify(config, corpus.hash)
    run = PlannedRun(config, identity, corpus.hash)
    with StoreWriter("S") as writer:
        for event in gpt.train([Job(run_id=identity.run_id, config=config)]):
            if isinstance(event, RunResult):
                writer.commit([worker.finished_row(event, run, Provenance.collect(), "S")])


def test_a_language_model_needs_its_corpus(
    door: Door, corpus: Corpus, dirty: Corpus, settings: Callable[..., GptConfig], tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(corpus.path, moved)
    language_model(settings(train__steps=7, data__path=str(moved)), corpus)
    before = outside_state(tmp_path / "S")
    words = ("--again", only_run()[:6], "--store", "S")
    ended = door(*words)
    assert verdict(ended.out) == "same bits" and ended.status == 0, ended
    assert outside_state(tmp_path / "S") == before
    shutil.rmtree(moved)
    ended = door(*words)
    assert ended.status == 2 and f"and {moved} has no corpus" in ended.err
    ended = door(*words, f"data.path={dirty.path}")
    assert ended.status == 2 and f"and {dirty.path} has {dirty.hash}: give" in ended.err
    assert verdict(door(*words, f"data.path={corpus.path}").out) == "same bits"


def test_both_branches_of_a_rollback_have_the_same_bits(
    door: Door, dirty: Corpus, settings: Callable[..., GptConfig]
) -> None:
    language_model(settings(**of(dirty, stability__policy="new_data_seed")), dirty)
    statuses = open_store("S").statuses()
    assert sorted(statuses.values()) == ["completed", "rolled_back"]
    for run_id in statuses:
        ended = door("--again", run_id, "--store", "S")
        assert (ended.status, verdict(ended.out)) == (0, "same bits"), ended


WORDS = (*TINY, "train.steps=12", "executor=inline")
SWITCH = ("switch.step=4", "switch.order=7")


def run_of(store: str, **wanted: Any) -> dict[str, Any]:
    runs = open_store(store).runs()
    for name, value in wanted.items():
        column = runs[f"config.{name.replace('__', '.')}"]
        runs = runs[column.isna() if value is None else column == value]
    (row,) = runs.to_dict("records")
    return row


@pytest.mark.parametrize(
    "changes",
    [
        SWITCH,
        pytest.param(("switch.step=4", "switch.ulps=30"), marks=pytest.mark.slow),
        ("switch.step=4", "switch.ulps=30", "seeds.perturb=3"),  # of the move: the trunk is a plain run
        pytest.param((*SWITCH, "train.steps=9"), marks=pytest.mark.slow),
    ],
)
def test_a_child_from_the_trunks_checkpoint_equals_one_from_step_0(door: Door, changes: tuple[str, ...]) -> None:
    assert door(*WORDS, "checkpoint.keep_steps=[4,6]", "store.path=S").status == 0
    trunk = run_of("S")
    assert checkpoint_steps(run_folder("S", trunk["run_id"])) == [6, 4]
    planned = door(*WORDS, *changes, "store.path=S", "dry_run=true")
    assert "1 to train (1 from a checkpoint of their trunk)" in planned.out
    for store in ("S", "T"):
        assert door(*WORDS, *changes, f"store.path={store}").status == 0
    (child, whole) = (run_of(store, switch__step=4) for store in ("S", "T"))
    assert child["weights_hash"] == whole["weights_hash"] != trunk["weights_hash"]
    curves = [open_store(store).curves([child["run_id"]]) for store in ("S", "T")]
    pd.testing.assert_frame_equal(*curves)
    assert child["branch_step"] == whole["branch_step"] == 4
    if "train.steps=9" not in changes:  # a trunk of the same length: its own row
        assert child["parent_run_id"] == whole["parent_run_id"] == trunk["run_id"]
    assert verify("S") == []
    again = door("--again", child["run_id"], "--store", "S")
    assert again.status == 0 and "same bits" in again.out
    longer = door(*WORDS, *changes, "train.steps=15", "store.path=S", "dry_run=true")
    assert "1 from a checkpoint of their trunk" in longer.out, "the child kept none; its trunk has"


def test_another_schedule_step_or_setting_begins_at_step_0(door: Door) -> None:
    assert door(*WORDS, "checkpoint.keep_steps=[4]", "store.path=S").status == 0
    for other in ("eval.every=4", "replicate=1", "switch.step=5", "optim.lr=0.1"):
        assert "1 to train;" in door(*WORDS, *SWITCH, other, "store.path=S", "dry_run=true").out, other
    assert "their trunk" in door(*WORDS, *SWITCH, "store.path=S", "dry_run=true").out


@pytest.mark.parametrize(("step", "conflicts"), [pytest.param(50, 1, marks=pytest.mark.slow), (100, 1), (150, 0)])
def test_verify_and_merge_compare_a_run_with_its_trunk_up_to_the_switch(
    tmp_path: Path, step: int, conflicts: int
) -> None:
    trunk, switch = example_row(0), {"switch": {"step": 100, "order": 7}}
    before = [point for point in trunk.result.curve if point.step <= 100]
    parent = {"parent_run_id": trunk.result.run_id, "branch_step": 100}
    child = example_row(0, settings=switch, **parent)
    child.result.curve = [*before, *(point for point in child.result.curve if point.step > 100)]
    longer = example_row(0, steps=400)  # of the trunk's trajectory
    wrong = with_other_bits(child, step)
    elsewhere = replace(wrong, result=replace(wrong.result, numerics="cpu:other"))
    for name, rows in {"A": [trunk, longer], "B": [child], "C": [wrong], "D": [elsewhere]}.items():
        store_of(tmp_path / name, rows)
    a, *others = (tmp_path / name for name in "ABCD")
    for other, expected in zip(others, (0, conflicts, 0), strict=True):
        for first, second in ((a, other), (other, a)):
            report = merge(first, [second], into=tmp_path / f"{first.name}{second.name}")
            assert [conflict.step for conflict in report.conflicts] == [step] * expected
    store_of(a, [wrong])
    assert sum("a run and its trunk, different bits" in line for line in verify(a)) == conflicts
