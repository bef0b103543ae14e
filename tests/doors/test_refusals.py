"""Bad input: one line that says what was asked and what would do, exit status 2, nothing trained, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doors.conftest import Door, Ended, command

CASES = {
    # unknown keys and misspelt names
    "unknown key": (["nonsense=1"], ["unknown setting 'nonsense'"]),
    "misspelt key": (["task.modulos=97"], ["unknown setting 'task.modulos'", "did you mean 'task.modulus'?"]),
    "misspelt section": (["tsk.modulus=97"], ["unknown setting 'tsk.modulus'", "did you mean 'task.modulus'?"]),
    "misspelt stream": (["seeds.ordr=3"], ["unknown setting 'seeds.ordr'", "did you mean 'seeds.order'?"]),
    "added key": (["+model.widht=3"], ["unknown setting 'model.widht'"]),
    "a named sweep": (["sweeps.layers=64"], ["unknown setting 'sweeps.layers'", "a command: grok layers --help"]),
    "misspelt group": (["experimnt=nanda"], ["unknown setting 'experimnt'", "did you mean 'experiment'?"]),
    "misspelt experiment": (["experiment=quikstart"], ["experiment=quikstart", "did you mean 'quickstart'?", "nanda"]),
    "misspelt mode": (["mode=arithmetics"], ["mode=arithmetics", "did you mean 'arithmetic'?", "gpt"]),
    "misspelt operation": (["task.operation=x+z"], ["task.operation='x+z'", "did you mean 'x+y'?"]),
    "misspelt choice": (["model.norm=poast"], ["model.norm='poast'", "did you mean 'post'?", "post, pre, none"]),
    "unknown tensor": (["seeds.layers={blocks.7:1}"], ["blocks.7"]),
    "an experiment from elsewhere": (
        ["experiment=../x"],
        ["experiment=../x is a path", "below conf/experiment/"],
    ),
    "a sweep without -m": (["sweep=census"], ["sweep=census", "many runs", "-m"]),
    "two named sweeps": (["-m", "sweep=census,init_alone"], ["sweep=census,init_alone", "one named sweep per command"]),
    "a choice of named sweeps": (["-m", "sweep=choice(census)"], ["sweep=choice(census)", "one named sweep"]),
    "section as value": (["task=3"], ["task=3", "group of settings", "modulus"]),
    # wrong types
    "text for number": (["train.steps=many"], ["train.steps='many'", "expected a whole number"]),
    "fraction for whole": (["train.steps=2.5"], ["train.steps=2.5", "whole number"]),
    "number for flag": (["dry_run=1"], ["dry_run=1", "true or false"]),
    "list for number": (["seed=[1,2]"], ["seed=[1, 2]", "whole number"]),
    "null where needed": (["train.steps=null"], ["train.steps=null", "a value is needed"]),
    "not a number": (["optim.lr=nan"], ["optim.lr=nan", "out of range"]),
    "no value": (["seed="], ["seed="]),
    "a bare word": (["quickstart"], ["'quickstart' is no setting", "NAME=VALUE"]),
    "a value apart from its name": (["seed", "3"], ["'seed' is no setting", "seed=7"]),
    "an option for a setting": (["--seed", "3"], ["unrecognized arguments: --seed", "NAME=VALUE"]),
    "a setting of the other mode": (["model.context=7"], ["model.context is a setting of mode=gpt", "mode=arithmetic"]),
    "unreadable": (["seed=[1,2"], ["seed=[1,2", "cannot be read"]),
    # impossible combinations
    "heads": (["model.heads=3"], ["model.heads=3", "model.d_model=128", "2, 4"]),
    "fraction one": (["task.train_fraction=1.0"], ["task.train_fraction=1.0", "below 1"]),
    "fraction zero": (["task.train_fraction=0"], ["task.train_fraction=0", "above 0"]),
    "fraction of nothing": (
        ["task.modulus=2", "task.operation=x+y", "task.train_fraction=0.1"],
        ["train_fraction=0.1"],
    ),
    "modulus": (["task.modulus=1", "task.operation=x+y"], ["task.modulus=1", "at least 2"]),
    "composite": (["task.modulus=100"], ["task.modulus=100", "prime", "101"]),
    "batch": (["task.modulus=7", "train.batch_size=99"], ["train.batch_size=99", "at most 21"]),
    "betas": (["optim.betas=[0.9]"], ["optim.betas=[0.9]", "2 entries"]),
    "precision of a GPU": (["precision=tf32", "device=cpu"], ["precision=tf32", "float32"]),
    "no GPU": (["device=cuda"], ["device=cuda", "device=cpu"]),
    "device by its common name": (["device=gpu"], ["device='gpu'", "did you mean 'cuda'?", "auto, cpu, cuda"]),
    # seeds
    "negative seed": (["seed=-1"], ["seed=-1", "at least 0"]),
    "huge seed": ([f"seed={2**63}"], [f"seed={2**63}", "at most 9223372036854775807"]),
    "negative stream": (["seeds.init=-5"], ["seeds.init=-5", "at least 0"]),
    "huge layer seed": ([f"seeds.layers={{head:{2**63}}}"], ["seeds.layers.head", "at most"]),
    # sizes that no machine has: said at once, nothing is made of them
    "endless range": (["-m", "seed=range(0,1e12)"], ["seed=range(0,1e12)", "too many", "at most 1,000,000"]),
    "endless shuffled range": (["-m", "seed=shuffle(range(0,1000000000000))"], ["too many", "at most 1,000,000"]),
    "endless steps of a range": (["-m", "optim.lr=range(0,1,1e-12)"], ["too many"]),
    "an infinite range": (["-m", "optim.lr=range(0,inf)"], ["expected finite numbers"]),
    "a product of ranges": (["-m", "seed=range(0,2000)", "replicate=range(0,2000)"], ["4,000,000 runs"]),
    "a width": (["model.d_model=1e12"], ["model.d_model=1000000000000", "at most 1048576"]),
    "evaluations": (["train.steps=1e15", "eval.every=1"], ["eval.every=1", "too many", "at least 100000001"]),
    "no evaluation": (["eval.every=0"], ["eval.every=0", "at least 1"]),
    "workers": (["workers=1000000"], ["workers=1000000", "at most 4096"]),
    "a study without a search": (["study=quickstart"], ["study= names a search", "grok search"]),
    # words that Hydra has no error of its own for
    "no experiment": (["experiment=null"], ["experiment=null is not known", "quickstart"]),
    "a number for an experiment": (["experiment=7"], ["experiment=7 is not known", "quickstart"]),
    "an experiment by its path": (["experiment=/etc/passwd"], ["experiment=/etc/passwd is a path"]),
    "an experiment from above": (["experiment=../../.."], ["experiment=../../.. is a path"]),
    "Hydra's folder in a file": (["hydra.run.dir=/dev/null/x"], ["/dev/null/x"]),
    "a reference to nothing": (["store.path=a/${x}/b"], ["store.path", "${x}", "none of this name"]),
    "a setting of the other mode is not meant": (["contextt=3"], ["unknown setting 'contextt'"]),
    # sweeps
    "empty range": (["-m", "seed=range(0,0)"], ["seed=range(0,0)", "is empty"]),
    "backward range": (["-m", "seed=range(9,3)"], ["seed=range(9,3)", "is empty"]),
    "standing range": (["-m", "seed=range(0,3,0)"], ["seed=range(0,3,0)", "zero"]),
    "range without -m": (["seed=range(0,3)"], ["seed=range(0,3)", "-m"]),
    "list without -m": (["seed=1,2"], ["seed=1,2", "-m"]),
    "bad job of a sweep": (["-m", "seed=1,2,-3"], ["seed=-3", "at least 0"]),
    "two stores": (["-m", "store.path=a,b"], ["store.path", "one value"]),
    "sweep over Hydra": (["-m", "hydra.verbose=true,false"], ["hydra.verbose=true,false"]),
    # GPT
    "gpt without preset": (["mode=gpt"], ["experiment=gpt/"]),
    "gpt without data": (["mode=gpt", "experiment=gpt/shakespeare_char"], ["data.path", "grok prepare"]),
    "misspelt preset": (
        ["mode=gpt", "experiment=gpt/shakespeare_chr"],
        ["experiment=gpt/shakespeare_chr is not known", "did you mean 'gpt/shakespeare_char'?", "gpt/wikitext_sample"],
    ),
    "preset without its folder": (
        ["mode=gpt", "experiment=shakespeare_char"],
        ["experiment=shakespeare_char is not known", "expected one of"],
    ),
    "a sweep of the other mode": (
        ["-m", "sweep=language_seeds"],
        ["target belongs to mode=gpt", "this is mode=arithmetic"],
    ),
    "set-up of the other mode": (["mode=gpt", "experiment=nanda"], ["belongs to mode=arithmetic"]),
    "preset of the other mode": (["mode=arithmetic", "experiment=gpt/gpt2_117m"], ["belongs to mode=gpt"]),
    "threads": (
        ["experiment=gpt/shakespeare_char", "train.threads=1099511627776"],
        ["train.threads=1099511627776", "at most 4096"],
    ),
    "epochs": (["experiment=gpt/shakespeare_char", "train.epochs=1e30"], ["train.epochs=1e+30", "at most 1000000"]),
    "gpt without its data": (
        ["mode=gpt", "experiment=gpt/shakespeare_char", "data.path=nowhere"],
        ["nowhere has no prepared corpus", "grok prepare"],
    ),
}


def refused(ended: Ended, *, says: list[str], folder: Path, before: frozenset[str] = frozenset()) -> None:
    """Check that a command was refused as the house refuses."""
    assert ended.status == 2, ended
    lines = ended.err.strip().splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("error: ")
    for words in says:
        assert words in lines[0]
    assert "Traceback" not in ended.err + ended.out
    assert {entry.name for entry in folder.iterdir()} == before, "something was written"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("seed=0-15", "seed=range(0,16)"), ("seed=3..5", "seed=range(3,6)"), ("seeds=range(0,4)", "seed=range(0,4)"),
        ("store=foo", "store.path=foo"), ("--experiment quickstart", "NAME=VALUE"), ("epochs=3", "train.steps"),
        ("optim.learning_rate=1", "optim.lr"), ("seed=1,2", "grok sweep"),
    ],
)  # fmt: skip
def test_what_other_programs_call_it_is_understood(door: Door, tmp_path: Path, word: str, meant: str) -> None:
    refused(door(*word.split()), says=[meant], folder=tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_refused_in_one_line(door: Door, tmp_path: Path, case: str) -> None:
    words, says = CASES[case]
    refused(door(*words), says=says, folder=tmp_path)


@pytest.mark.parametrize("words", [["seed=-1"], ["-m", "seed=range(0,3)", "model.heads=3"], ["experiment=nope"]])
def test_a_dry_run_refuses_the_same(door: Door, tmp_path: Path, words: list[str]) -> None:
    refused(door(*words, "dry_run=true"), says=[], folder=tmp_path)


def test_a_real_command_refuses_without_a_traceback(tmp_path: Path) -> None:
    refused(command("task.modulos=5", folder=tmp_path), says=["did you mean 'task.modulus'?"], folder=tmp_path)


def test_the_traceback_is_there_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ended = command("seed=-1", folder=tmp_path)
    assert ended.status != 0
    assert "Traceback" in ended.err
    assert "seed=-1" in ended.err


def test_a_foreign_folder_is_refused(door: Door, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    refused(
        door("store.path=photos"), says=["store.path=photos", "cat.jpg"], folder=tmp_path, before=frozenset({"photos"})
    )
    assert [entry.name for entry in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_file_as_store_is_refused(door: Door, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    refused(door("store.path=notes"), says=["store.path=notes", "folder"], folder=tmp_path, before=frozenset({"notes"}))


def test_an_unwritable_place_is_refused(door: Door, tmp_path: Path) -> None:
    refused(door("store.path=/proc/store"), says=["store.path=/proc/store"], folder=tmp_path)


def test_a_newer_store_is_refused(door: Door, tmp_path: Path) -> None:
    from grok.store import StoreWriter

    StoreWriter(tmp_path / "S").close()
    marker = tmp_path / "S" / "store.json"
    content = json.loads(marker.read_text())
    marker.write_text(json.dumps({**content, "schema_version": content["schema_version"] + 1}))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "S").rglob("*")}
    refused(door("store.path=S"), says=["schema 2", "update"], folder=tmp_path, before=frozenset({"S"}))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "S").rglob("*")} == before


def test_uncommitted_code_is_refused_when_asked(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grok.store.provenance.git_state", lambda: ("0" * 40, True))
    refused(door("require_clean=true"), says=["require_clean=true", "not committed"], folder=tmp_path)
