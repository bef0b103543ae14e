"""Parts of checkpoints: on the disk once, gone with the last checkpoint that has them, whole after any kill."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grok.checkpoints import (
    DamagedCheckpointWarning,
    checkpoint_steps,
    content_hash,
    damaged_checkpoints,
    has_checkpoint,
    load_checkpoint,
    read_state,
    run_folder,
    save_checkpoint,
    split,
)
from grok.commands.store import main
from grok.execute.resume import checkpoint_to_resume
from grok.records import Checkpoint
from grok.store import StoreWriter

SNAPSHOTS = 3


def at(step: int, snapshots: int = SNAPSHOTS) -> Checkpoint:
    """Return the checkpoint of a run that keeps the states of its last steps, and the best weights of every second."""
    names = {"model.w": step}
    names |= {f"kept.{i}.model.w": step - i for i in range(1, snapshots + 1)}
    names |= {"best.w": step // 2 + 1000}
    tensors = {name: torch.full((100, 100), float(value)) for name, value in names.items()}
    parts = (*(f"kept.{i}." for i in range(1, snapshots + 1)), "best.")
    return Checkpoint(run_id="abc", step=step, tensors=tensors, state={"step": step}, parts=parts)


def equal(a: Checkpoint, b: Checkpoint) -> bool:
    same = a.tensors.keys() == b.tensors.keys() and all(torch.equal(a.tensors[n], b.tensors[n]) for n in a.tensors)
    return same and (a.step, a.state) == (b.step, b.state)


def stored(folder: Path) -> int:
    """Return the number of files of tensors that the disk holds under ``folder``: each once, whatever its names."""
    return len({path.stat().st_ino for path in folder.glob("**/*.safetensors")})


def part_of(checkpoint: Path, prefix: str) -> Path:
    """Return the folder of a part."""
    entry = json.loads((checkpoint / "manifest.json").read_text())["parts"][prefix]
    return checkpoint / str(entry["folder"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path, "abc")


def test_what_checkpoints_have_in_common_is_stored_once(folder: Path) -> None:
    for step in range(10, 15):
        save_checkpoint(folder, at(step), keep=2)
        assert equal(load_checkpoint(folder), at(step))
    assert checkpoint_steps(folder) == [14, 13]
    # two own states; those of steps 10 to 13; best weights of steps 12 and 14
    assert stored(folder) == 2 + 4 + 2
    assert equal(load_checkpoint(folder, 13), at(13))


def test_the_same_tensors_under_two_names_are_one_part(folder: Path) -> None:
    twice = at(3)
    twice.tensors["kept.2.model.w"] = twice.tensors["kept.1.model.w"].clone()
    save_checkpoint(folder, twice)
    assert stored(folder) == 1 + 2 + 1
    assert equal(load_checkpoint(folder), twice)


@pytest.mark.slow  # every save is flushed to the disk
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.integers(5, 12), min_size=1, max_size=6), st.integers(1, 3), st.integers(0, 3))
def test_retention_keeps_its_meaning(tmp_path: Path, steps: list[int], keep: int, keep_every: int) -> None:
    """Each kept checkpoint is whole, and nothing is stored that none of them has."""
    folder = run_folder(tmp_path, "abc")
    shutil.rmtree(folder, ignore_errors=True)
    for step in steps:
        save_checkpoint(folder, at(step), keep, keep_every)
    kept = [s for s in steps[:-keep] if keep_every and s % keep_every == 0] + steps[-keep:]
    assert checkpoint_steps(folder) == kept[::-1]
    parts = {part for s in kept for part in [*range(s - SNAPSHOTS, s), s // 2 + 1000]}
    assert stored(folder) == len(kept) + len(parts)
    assert all(equal(load_checkpoint(folder, step), at(step)) for step in kept)


def test_damage_does_not_reach_the_next_checkpoint(folder: Path) -> None:
    first = save_checkpoint(folder, at(5), keep=None)
    for part in first.glob("part-*/*"):
        part.write_bytes(part.read_bytes()[:-1] + b"x")
    save_checkpoint(folder, at(6), keep=None)
    assert equal(load_checkpoint(folder), at(6))
    with pytest.warns(DamagedCheckpointWarning, match="step-5"), pytest.raises(Exception, match="1 damaged"):
        load_checkpoint(folder, 5)


@pytest.mark.parametrize("damage", ["cut", "gone", "a link", "one more file", "one more part"])
def test_a_damaged_part_is_noticed(folder: Path, damage: str) -> None:
    save_checkpoint(folder, at(5, snapshots=1), keep=None)
    newest = save_checkpoint(folder, at(9, snapshots=1), keep=None)
    part = part_of(newest, "kept.1.") / "tensors.safetensors"
    if damage == "cut":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "gone":
        part.unlink()
    elif damage == "a link":
        part.symlink_to(shutil.move(part, folder / "elsewhere"))
    elif damage == "one more file":
        (part.parent / "more").touch()
    else:
        shutil.copytree(part.parent, newest / "part-0")
    with pytest.warns(DamagedCheckpointWarning, match="step-9"):
        assert load_checkpoint(folder).step == 5


def test_damaged_best_weights_cost_no_checkpoint(folder: Path) -> None:
    """Two checkpoints share one file of best weights: with one byte of it changed, all of them can be loaded."""
    for step in (4, 5):
        newest = save_checkpoint(folder, at(step), keep=None)
    best = part_of(newest, "best.") / "tensors.safetensors"
    best.write_bytes(best.read_bytes()[:-1] + b"x")
    assert has_checkpoint(folder) and read_state(folder, 4).state == {"step": 4}
    for step in (4, 5):
        with pytest.warns(DamagedCheckpointWarning, match="loaded without its best weights, which are damaged"):
            loaded = load_checkpoint(folder, step)
        assert loaded.lost == ("best.",)
        assert loaded.tensors.keys() == at(step).tensors.keys() - {"best.w"}
        assert all(torch.equal(t, at(step).tensors[n]) for n, t in loaded.tensors.items())
    assert [("best weights are damaged" in line) for line in damaged_checkpoints(folder)] == [True, True]
    save_checkpoint(folder, at(6), keep=None)
    assert equal(load_checkpoint(folder), at(6))


def test_the_commands_name_damaged_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StoreWriter(tmp_path / "S").close()
    saved = save_checkpoint(run_folder(tmp_path / "S", "abc"), at(5))
    assert main(["verify", str(tmp_path / "S")]) == 0
    best = part_of(saved, "best.") / "tensors.safetensors"
    best.write_bytes(best.read_bytes()[:-1] + b"x")
    assert main(["verify", str(tmp_path / "S")]) == 1
    assert f"{saved}: its best weights are damaged; a load leaves them out" in capsys.readouterr().out
    identity = SimpleNamespace(trajectory_id=None)
    run: Any = SimpleNamespace(run_id="abc", config=None, identity=identity, extends=None)
    checkpoint, notes = checkpoint_to_resume(run, str(tmp_path / "S"))
    assert checkpoint is not None and checkpoint.lost
    assert notes == ["Damaged: the best weights in the checkpoint of run abc at step 5; it went on without them"]


def test_without_hard_links_each_has_a_copy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    for step in (5, 6):
        save_checkpoint(folder, at(step), keep=None)
    assert stored(folder) == 2 * (1 + SNAPSHOTS + 1)
    assert all(equal(load_checkpoint(folder, step), at(step)) for step in (5, 6))


KILLED = """
import os, signal, sys
from pathlib import Path
from grok.checkpoints import save_checkpoint
from tests.store.test_parts import at

CHANGES = ("open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree")
moment = calls = tried = 0

def kill_at_the_moment(event, arguments):  # Python tells of every change of a folder before it is made
    global calls
    if moment and event in CHANGES:
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill_at_the_moment)
status = -signal.SIGKILL
while status == -signal.SIGKILL:
    tried += 1
    print(tried, flush=True)
    folder = Path(sys.argv[1], str(tried), "checkpoints", "abc")
    folder.parent.mkdir(parents=True)
    save_checkpoint(folder, at(5), keep=1)
    child = os.fork()
    if not child:
        moment = tried
        for step in (6, 7):
            save_checkpoint(folder, at(step), keep=1, keep_every=6)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow  # every save is flushed to the disk
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint_and_nothing_over(tmp_path: Path) -> None:
    """After a SIGKILL before each change of a folder the newest checkpoint is whole, and the next save leaves what it
    leaves without a kill.
    """
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    moments = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert len(moments) > 50
    for moment in moments:
        folder = run_folder(tmp_path / moment, "abc")
        newest = checkpoint_steps(folder)[0]
        assert equal(load_checkpoint(folder), at(newest)), moment
        save_checkpoint(folder, at(7), keep=1, keep_every=6)
        kept = [7, 6] if 6 in checkpoint_steps(folder) else [7]
        assert checkpoint_steps(folder) == kept, moment
        parts = {part for s in kept for part in [*range(s - SNAPSHOTS, s), s // 2 + 1000]}
        assert stored(folder) == len(kept) + len(parts), moment
        assert not [p.name for p in folder.iterdir() if "-step-" not in p.name or p.name.startswith(".")], moment


@given(st.dictionaries(st.text("ab.", max_size=4), st.integers(0, 9)), st.lists(st.text("ab.", max_size=3)))
def test_split_loses_and_moves_nothing(values: dict[str, int], parts: list[str]) -> None:
    tensors = {name: torch.tensor(value) for name, value in values.items()}
    groups = split(tensors, parts)
    again = {part + name: tensor for part, group in groups.items() for name, tensor in group.items()}
    assert {name: int(t) for name, t in again.items()} == values
    assert set(groups) <= {"", *parts}


def test_the_hash_of_content_knows_every_bit() -> None:
    tensors = {"a": torch.tensor([0.0, 1.0]), "b": torch.zeros(0, 3, dtype=torch.bool)}
    same = {"b": torch.zeros(0, 3, dtype=torch.bool), "a": torch.tensor([[0.0, 9], [1, 9]]).T[0]}
    others = [
        {**tensors, "a": torch.tensor([-0.0, 1.0])},
        {**tensors, "a": torch.tensor([[0.0, 1.0]])},
        {**tensors, "a": torch.tensor([0.0, 1.0]).view(torch.int32)},
        {"c": tensors["a"], "b": tensors["b"]},
        {"a": tensors["a"]},
    ]
    assert content_hash(same) == content_hash(tensors)
    assert len({content_hash(t) for t in [tensors, *others]}) == 6
