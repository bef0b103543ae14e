"""Bad input: one line that says what was asked and what would do, exit status 2, nothing trained, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.conftest import Door, Ended, command

CASES = {
    # unknown keys and misspelt names
    "misspelt key": (["task.modulos=97"], ["unknown setting 'task.modulos'", "did you mean 'task.modulus'?"]),
    "a named sweep": (["sweeps.layers=64"], ["unknown setting 'sweeps.layers'", "a command: grok layers --help"]),
    "misspelt mode": (["mode=arithmetics"], ["mode=arithmetics", "did you mean 'arithmetic'?", "gpt"]),
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
    "fraction for whole": (["train.steps=2.5"], ["train.steps=2.5", "whole number"]),
    "number for flag": (["dry_run=1"], ["dry_run=1", "true or false"]),
    "null where needed": (["train.steps=null"], ["train.steps=null", "a value is needed"]),
    "not a number": (["optim.lr=nan"], ["optim.lr=nan", "out of range"]),
    "a bare word": (["quickstart"], ["'quickstart' is no setting", "NAME=VALUE"]),
    "a value apart from its name": (["seed", "3"], ["'seed' is no setting", "seed=7"]),
    "an option for a setting": (["--seed", "3"], ["unrecognized arguments: --seed", "NAME=VALUE"]),
    "a setting of the other mode": (["model.context=7"], ["model.context is a setting of mode=gpt", "mode=arithmetic"]),
    "unreadable": (["seed=[1,2"], ["seed=[1,2", "cannot be read"]),
    # impossible combinations
    "heads": (["model.heads=3"], ["model.heads=3", "model.d_model=128", "2, 4"]),
    "fraction zero": (["task.train_fraction=0"], ["task.train_fraction=0", "above 0"]),
    "fraction of nothing": (
        ["task.modulus=2", "task.operation=x+y", "task.train_fraction=0.1"],
        ["train_fraction=0.1"],
    ),
    "composite": (["task.modulus=100"], ["task.modulus=100", "prime", "101"]),
    "batch": (["task.modulus=7", "train.batch_size=99"], ["train.batch_size=99", "at most 21"]),
    "betas": (["optim.betas=[0.9]"], ["optim.betas=[0.9]", "2 entries"]),
    "precision of a GPU": (["precision=tf32", "device=cpu"], ["precision=tf32", "float32"]),
    "no GPU": (["device=cuda"], ["device=cuda", "device=cpu"]),
    "device by its common name": (["device=gpu"], ["device='gpu'", "did you mean 'cuda'?", "auto, cpu, cuda"]),
    # seeds
    # sizes that no machine has: said at once, nothing is made of them
    "endless range": (["-m", "seed=range(0,1e12)"], ["seed=range(0,1e12)", "too many", "at most 1,000,000"]),
    "an infinite range": (["-m", "optim.lr=range(0,inf)"], ["expected finite numbers"]),
    "evaluations": (["train.steps=1e15", "eval.every=1"], ["eval.every=1", "too many", "at least 100000001"]),
    "a study without a search": (["study=quickstart"], ["study= names a search", "grok search"]),
    # words that Hydra has no error of its own for
    "no experiment": (["experiment=null"], ["experiment=null is not known", "quickstart"]),
    "Hydra's folder in a file": (["hydra.run.dir=/dev/null/x"], ["/dev/null/x"]),
    "a reference to nothing": (["store.path=a/${x}/b"], ["store.path", "${x}", "none of this name"]),
    "a setting of the other mode is not meant": (["contextt=3"], ["unknown setting 'contextt'"]),
    # sweeps
    "empty range": (["-m", "seed=range(0,0)"], ["seed=range(0,0)", "is empty"]),
    "standing range": (["-m", "seed=range(0,3,0)"], ["seed=range(0,3,0)", "zero"]),
    "range without -m": (["seed=range(0,3)"], ["seed=range(0,3)", "-m"]),
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


def test_the_traceback_is_there_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ended = command("seed=-1", folder=tmp_path)
    assert ended.status != 0
    assert "Traceback" in ended.err
    assert "seed=-1" in ended.err
