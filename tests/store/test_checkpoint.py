"""Checkpoints, their parts and kept weights on the disk."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from grok import checkpoints, untrusted
from grok.checkpoints import (
    DamagedCheckpointWarning,
    checkpoint_steps,
    content_hash,
    damaged_checkpoints,
    load_checkpoint,
    load_weights,
    read_shards,
    read_state,
    remove_checkpoints,
    run_folder,
    save_checkpoint,
    save_tensors,
    save_weights,
    split,
)
from grok.commands.store import main
from grok.errors import CheckpointError, CheckpointUnreadable
from grok.execute.resume import checkpoint_to_resume
from grok.records import Checkpoint
from grok.store import StoreWriter

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(4, 6, generator=GENERATOR)
TENSORS = {
    "blocks.0.attention.weight": WEIGHT,
    "tied": WEIGHT,
    "transposed": WEIGHT.T,
    "row": WEIGHT[2],
    "bf16": WEIGHT.bfloat16(),
    "half": WEIGHT.half(),
    "double": WEIGHT.double(),
    "f8": WEIGHT.to(torch.float8_e4m3fn),
    "step": torch.tensor(2**62),
    "mask": WEIGHT > 0,
    "bytes": torch.arange(7, dtype=torch.uint8),
    "nothing": torch.zeros(0, 3),
    "special": torch.tensor([math.nan, math.inf, -0.0, 1e-45]),
}
STATE = {"curve": [{"step": 3, "val_loss": math.inf, "lr": 0.1}], "order": {"epoch": 2}, "note": "é", "none": None}


def checkpoint(step: int = 3) -> Checkpoint:
    return Checkpoint(run_id="abc", step=step, tensors=TENSORS, state=STATE)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert raw(found[name]) == raw(tensor), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path, "abc")


def test_the_newest_is_the_one_saved_last(folder: Path) -> None:
    for step in (10, 20, 15):  # back to 15: a rollback
        save_checkpoint(folder, checkpoint(step), keep=None)
    assert checkpoint_steps(folder) == [15, 20, 10]
    assert load_checkpoint(folder).step == 15
    assert load_checkpoint(folder, step=10).step == 10
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 11 .* steps there: 15, 20, 10"):
        load_checkpoint(folder, step=11)
    save_checkpoint(folder, checkpoint(30), keep=2)
    assert checkpoint_steps(folder) == [30, 15]


@pytest.mark.parametrize(
    "damage", ["tensors cut", "tensor bit", "tensors a pipe", "no manifest", "manifest cut", "manifest changed"]
)
def test_a_damaged_one_is_left_out_with_a_warning(folder: Path, damage: str) -> None:
    save_checkpoint(folder, checkpoint(1), keep=None)
    newest = save_checkpoint(folder, checkpoint(2), keep=None)
    tensors, manifest = newest / "tensors.safetensors", newest / "manifest.json"
    content = tensors.read_bytes()
    harms: dict[str, Callable[[], object]] = {
        "tensors cut": lambda: tensors.write_bytes(content[:-1]),
        "tensor bit": lambda: tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        "tensors a pipe": lambda: (tensors.unlink(), os.mkfifo(tensors)),  # it was waited for
        "no manifest": manifest.unlink,
        "manifest cut": lambda: manifest.write_text(manifest.read_text()[:-20]),
        "manifest changed": lambda: manifest.write_text(manifest.read_text().replace('"epoch": 2', '"epoch": 3')),
    }
    harms[damage]()
    with pytest.warns(DamagedCheckpointWarning, match="step-2"):
        assert load_checkpoint(folder).step == 1
    with pytest.warns(DamagedCheckpointWarning), pytest.raises(CheckpointError, match="1 damaged"):
        load_checkpoint(folder, step=2)


def refuse(monkeypatch: pytest.MonkeyPatch, what: str, number: int) -> None:
    """Let the file system answer every reading of manifests, bytes to hash, or tensors with an error."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, "made up", "the file")

    def fail_as_safetensors(*_: object) -> NoReturn:
        raise SafetensorError(f"Error while deserializing: I/O error: made up (os error {number})")

    if what == "manifest":
        monkeypatch.setattr(untrusted, "open_file", fail)
    elif what == "hash":
        monkeypatch.setattr(checkpoints, "file_hash", fail)
    else:
        monkeypatch.setattr(checkpoints, "load_file", fail_as_safetensors)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("what", ["manifest", "hash", "tensors"])
def test_one_that_cannot_be_read_just_now_is_not_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    save_checkpoint(folder, checkpoint(1), keep=None)
    newest = save_checkpoint(folder, checkpoint(2), keep=None)
    save_weights(folder, "final", TENSORS)
    refuse(monkeypatch, what, number)
    with pytest.raises(CheckpointUnreadable, match=f"{newest}.* cannot be read now"):
        load_checkpoint(folder)
    with pytest.raises(CheckpointUnreadable, match=r"weights-final.* cannot be read now"):
        load_weights(folder, "final")
    for run in (
        SimpleNamespace(run_id="abc", extends=None),
        SimpleNamespace(run_id="longer", extends="abc", extends_at=None),
    ):
        run.config, run.identity = None, SimpleNamespace(trajectory_id=None)
        with pytest.raises(CheckpointUnreadable):
            checkpoint_to_resume(cast("Any", run), str(folder.parent.parent))
    if what != "tensors":
        with pytest.raises(CheckpointUnreadable):
            read_state(folder, 2)
        assert ["cannot be read now" in line for line in damaged_checkpoints(folder)] == [True, True]
    monkeypatch.undo()
    assert load_checkpoint(folder).step == 2


def test_shards_that_cannot_be_read_just_now_are_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tensors({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    assert read_shards(tmp_path)["w"].tolist() == [1, 1, 1]

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.ESTALE, "made up")

    monkeypatch.setattr("torch.distributed.checkpoint.hf_storage.HuggingFaceStorageReader.read_data", fail)
    with pytest.raises(CheckpointUnreadable, match="made up"):
        read_shards(tmp_path)


def test_a_name_of_the_file_format_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="__metadata__"):
        save_checkpoint(
            tmp_path / "r", Checkpoint(run_id="r", step=1, tensors={"__metadata__": torch.ones(2)}, state={})
        )
    assert not list(tmp_path.rglob("*.safetensors"))


def test_none_at_all(folder: Path) -> None:
    assert checkpoint_steps(folder) == []
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        load_checkpoint(folder)
    remove_checkpoints(folder)
    save_checkpoint(folder, checkpoint())
    remove_checkpoints(folder)
    assert not folder.exists()


def test_what_a_kill_left_is_neither_loaded_nor_kept(folder: Path) -> None:
    done = save_checkpoint(folder, checkpoint(1))
    unfinished = folder / "00000002-step-9.tmp-1-ab"
    unfinished.mkdir()
    (unfinished / "tensors.safetensors").write_bytes(b"half")
    assert load_checkpoint(folder).step == 1
    save_checkpoint(folder, checkpoint(2))
    assert [p.name for p in folder.iterdir()] == ["00000002-step-2"]
    assert not done.exists()


def test_kept_weights_stay_beside_checkpoints(folder: Path) -> None:
    save_weights(folder, "init", {"w.x": torch.ones(2)})
    save_weights(folder, "final", {"w.x": torch.zeros(2)})
    save_weights(folder, "final", TENSORS)
    save_checkpoint(folder, checkpoint())
    remove_checkpoints(folder)
    assert_equal(load_weights(folder, "final"), TENSORS)
    assert load_weights(folder, "init")["w.x"].tolist() == [1, 1]
    with pytest.raises(CheckpointError, match=r"no weights of moment 'best' .*kept: final, init"):
        load_weights(folder, "best")


@pytest.mark.parametrize("state", [{"a": (1, 2)}, {1: 2}, {"a": {"b": [torch.ones(1)]}}, {"a": {1}}])
def test_a_state_that_would_not_come_back_equal_is_refused(folder: Path, state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="not JSON-serialisable"):
        save_checkpoint(folder, Checkpoint(run_id="abc", step=1, tensors={}, state=state))
    assert not folder.exists()


def test_no_loaded_tensor_is_a_window_on_the_file(folder: Path) -> None:
    path = save_checkpoint(folder, checkpoint())
    found = load_checkpoint(folder).tensors
    (path / "tensors.safetensors").write_bytes(b"")
    assert_equal(found, TENSORS)


def test_a_fresh_process_loads_it_and_a_disk_that_refuses_leaves_it(folder: Path) -> None:
    """The kernel's file size limit stands in for a full disk: the write fails half-way, as there."""
    save_checkpoint(folder, checkpoint(1))
    script = """
import resource, signal, sys, torch
from grok.checkpoints import load_checkpoint, save_checkpoint
from grok.errors import CheckpointError
from grok.records import Checkpoint
found = load_checkpoint(sys.argv[1])
print(found.step, found.state["curve"][0]["lr"], found.tensors["bf16"].dtype)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try: save_checkpoint(sys.argv[1], Checkpoint(run_id="abc", step=2, tensors={"w": torch.ones(9_000)}, state={}))
except CheckpointError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(folder)], check=True, capture_output=True, text=True)
    loaded, refused = done.stdout.splitlines()
    assert loaded == "1 0.1 torch.bfloat16"
    assert "larger than this process or file system may write" in refused and "unchanged" in refused
    assert [p.name for p in folder.iterdir()] == ["00000001-step-1"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.text("abc._-é ", min_size=1, max_size=12)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8])


@given(
    state=st.dictionaries(names, json_values, max_size=3),
    shapes=st.dictionaries(names, st.tuples(dtypes, st.lists(st.integers(0, 3), max_size=3)), max_size=4),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_state_and_tensors_come_back(
    tmp_path: Path, state: dict[str, object], shapes: dict[str, tuple[torch.dtype, list[int]]]
) -> None:
    tensors = {
        name: (torch.randn(shape, generator=GENERATOR) * 50).to(dtype) for name, (dtype, shape) in shapes.items()
    }
    save_checkpoint(tmp_path, Checkpoint(run_id="abc", step=0, tensors=tensors, state=state))
    found = load_checkpoint(tmp_path)
    assert found.state == state
    assert_equal(found.tensors, tensors)


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
    entry = json.loads((checkpoint / "manifest.json").read_text())["parts"][prefix]
    return checkpoint / str(entry["folder"])


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
    folder = run_folder(tmp_path, "abc")
    shutil.rmtree(folder, ignore_errors=True)
    for step in steps:
        save_checkpoint(folder, at(step), keep, keep_every)
    kept = [s for s in steps[:-keep] if keep_every and s % keep_every == 0] + steps[-keep:]
    assert checkpoint_steps(folder) == kept[::-1]
    parts = {part for s in kept for part in [*range(s - SNAPSHOTS, s), s // 2 + 1000]}
    assert stored(folder) == len(kept) + len(parts)
    assert all(equal(load_checkpoint(folder, step), at(step)) for step in kept)


@pytest.mark.parametrize("damage", ["cut", "gone", "a link", "one more file", "one more part"])
def test_a_damaged_part_is_noticed(folder: Path, damage: str) -> None:
    save_checkpoint(folder, at(5, snapshots=1), keep=None)
    newest = save_checkpoint(folder, at(9, snapshots=1), keep=None)
    part = part_of(newest, "kept.1.") / "tensors.safetensors"
    harms: dict[str, Callable[[], object]] = {
        "cut": lambda: part.write_bytes(part.read_bytes()[:-1]),
        "gone": part.unlink,
        "a link": lambda: part.symlink_to(shutil.move(part, folder / "elsewhere")),
        "one more file": (part.parent / "more").touch,
        "one more part": lambda: shutil.copytree(part.parent, newest / "part-0"),
    }
    harms[damage]()
    with pytest.warns(DamagedCheckpointWarning, match="step-9"):
        assert load_checkpoint(folder).step == 5


def test_the_commands_name_damaged_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StoreWriter(tmp_path / "S").close()
    saved = save_checkpoint(run_folder(tmp_path / "S", "abc"), at(5))
    assert main(["verify", str(tmp_path / "S")]) == 0
    best = part_of(saved, "best.") / "tensors.safetensors"
    best.write_bytes(best.read_bytes()[:-1] + b"x")
    assert main(["verify", str(tmp_path / "S")]) == 1
    assert f"{saved}: its bytes differ from those that were written" in capsys.readouterr().out


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
from tests.store.test_checkpoint import at

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
