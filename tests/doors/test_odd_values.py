"""Values that no command can use: one line at once, before any work is done or anything is written."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grok.commands.compose import values_of
from grok.commands.store import main as store_main
from grok.commands.words import store_as_setting as store_words
from grok.config.values import literal
from grok.store import StoreWriter
from grok.store.contract import example_rows
from grok.untrusted import HIDDEN
from tests.doors.conftest import Door, environment

LONG = "x" * 300
RUN = [
    "--recipient",
    "0",
    "--donor",
    "1",
    "task.modulus=7",
    "task.operation=x+y",
    "train.batch_size=12",
    "model.d_model=8",
]
SEARCH = ["study=quickstart", "dry_run=true"]
GPT = ["experiment=gpt/shakespeare_char", "data.path=C"]

REFUSED = {
    "layers: ten layers": ("sweeps.layers", [*RUN, "model.layers=10"], "16,777,216 runs are too many"),
    "layers: 64 layers": ("sweeps.layers", [*RUN, "model.layers=64"], "runs are too many"),
    "layers: combinations": ("sweeps.layers", [*RUN, "model.layers=64", "--combinations", "1" + "0" * 12], "too many"),
    "layers: replicates": ("sweeps.layers", [*RUN, "--replicates", "1000000000"], "runs are too many"),
    "layers: a donor below 0": ("sweeps.layers", ["--recipient", "0", "--donor", "-1"], "at least 0"),
    "layers: a donor above 64 bits": ("sweeps.layers", ["--recipient", "0", "--donor", str(2**63)], "at most"),
    "prepare: vocabulary": (
        "grok.prepare",
        ["text", "--input", "text.txt", "--tokenizer", "bpe", "--out", "P", "--vocab-size", "1000000000"],
        "at most 1,000,000",
    ),
    "prepare: a long name": (
        "grok.prepare", ["text", "--input", "text.txt", "--tokenizer", "char", "--out", LONG], "File name too long",
    ),
    "search: trials": ("sweeps.search.__main__", [*SEARCH, "study.trials=1e12"], "at most 1000000"),
    "search: seeds": ("sweeps.search.__main__", [*SEARCH, "study.trials=100000", "study.seeds=999"], "too many"),
    "search: points": ("sweeps.search.__main__", [*SEARCH, "study.sampler.points=1e12"], "at most 100000"),
    "search: a space that is a number": ("sweeps.search.__main__", [*SEARCH, "study.space=5"], "study.space=5"),
    "search: choices that are none": (
        "sweeps.search.__main__", [*SEARCH, "study.space.task.operation={choices:[nope]}"], "'nope' is not known",
    ),
    "search: choices without a list": (
        "sweeps.search.__main__", [*SEARCH, "study.space.optim.lr={choices:7}"], "expected a list",
    ),
    "search: a condition that is none": (
        "sweeps.search.__main__", [*SEARCH, "study.space.optim.lr={low:1e-4,high:1e-2,when:5}"], "when=5",
    ),
    "search: a step that is none": (
        "sweeps.search.__main__", [*SEARCH, "study.space.optim.lr={low:1e-4,high:1e-2,step:x}"], "step='x'",
    ),
    "search: a long name": ("sweeps.search.__main__", [*SEARCH, f"study.name={LONG}"], "at most 100"),
    "find: a folder in a file": ("grok.find", ["lr", *GPT, "--out", "text.txt/x"], "text.txt is no folder"),
    "find: steps": ("grok.find", ["lr", *GPT, "--steps", "1" + "0" * 12], "--steps from 10 to 1,000,000"),
    "report: a long name": ("analysis.report", ["S", "--out", LONG], "File name too long"),
    "study: a long name": ("analysis.study", ["census", "S", "--out", LONG], "File name too long"),
    "show: a long name": ("grok.show", ["x", "--store", "S", "--out", LONG], "File name too long"),
    "merge: into nothing": ("grok.commands.store", ["merge", "S", "T", "--into", ""], "a store is empty"),
    "merge: into a folder of itself": ("grok.commands.store", ["merge", "S", "--into", "S/inner"], "inside the store"),
    "merge: into its runs": ("grok.commands.store", ["merge", "S", "T", "--into", "S/runs/x"], "inside the store"),
    "a sweep into a store's folder": ("grok.run", ["store.path=S/inner", "dry_run=true"], "inside the store"),
    "a store that is an address": ("grok.run", ["store.path=s3://bucket/S", "dry_run=true"], "a store is a folder"),
    "experiment: a list": ("grok.run", ["experiment=[]", "dry_run=true"], "experiment=[] is not known"),
    "merge: into itself": ("grok.commands.store", ["merge", "S", "--into", "S"], "cannot be merged into itself"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line_before_any_work(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, words, says = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("some text\n" * 100)
    before = sorted(tmp_path.rglob("*"))
    if any(word == "S" or "=S/" in word for word in words):
        with StoreWriter("S") as writer:
            writer.commit(example_rows(range(1)))
        before = sorted(tmp_path.rglob("*"))
    assert importlib.import_module(module).main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1, printed.err
    assert says in printed.err
    assert not printed.out
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


def test_a_dollar_in_the_name_of_a_store(door: Door, tmp_path: Path) -> None:
    """``--store`` takes any name as it is."""
    assert literal("a/${x}") == r'"a/\${x}"'
    assert store_words(["--store", "a/${x}"]) == [r'store.path="a/\${x}"']
    ended = door("--store", "a/${x}/b", "dry_run=true")
    assert (ended.status, ended.last) == (0, "Nothing was trained (dry_run=true). The store would be a/${x}/b.")


@pytest.mark.parametrize(
    ("option", "name"),
    [
        *(("store.path", name) for name in ("2024_11_21", "1.10", "inf", ".5", "-1", "é")),
        *(("--store", name) for name in ("2024_11_21", "1e3", "null", "true", "a\\b", "a\\", "é")),
    ],
)
def test_a_store_has_the_name_that_was_typed(door: Door, option: str, name: str) -> None:
    """To Hydra 2024_11_21 is the number 20241121, and 1.10 is 1.1."""
    ended = door(*([option, name] if option == "--store" else [f"{option}={name}"]), "dry_run=true")
    assert ended.last.endswith(f" The store would be {name}."), ended


@given(text=st.text("ab1.'\"\\${}x,= ", max_size=12) | st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_quoted_text_comes_back(text: str) -> None:
    words = [f"data.path={literal(text)}"]
    assert values_of(words) == {"data.path": text}


def test_a_map_of_folders_keeps_their_names() -> None:
    assert values_of(["data.corpora.b=2024_11_21"]) == {"data.corpora.b": "2024_11_21"}


def test_what_may_be_meant_is_a_setting_of_this_mode(door: Door) -> None:
    assert "did you mean" not in door("contextt=3").err.replace("optim", "")
    assert "model.context" not in door("contextt=3").err
    assert "did you mean 'model.context'?" in door("mode=gpt", "experiment=gpt/shakespeare_char", "contextt=3").err


def test_a_password_is_shown_nowhere(door: Door, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for word in ("+model.layers={}", "store.path={}x", "data.path={}", "{}", "task.operation={}"):
        ended = door(word.format("postgresql://me:se/cret@host/db"), "dry_run=true")
        assert "se/cret" not in ended.err + ended.out, ended
    for command in (["status"], ["verify"], ["compact"], ["migrate"], ["restore"]):
        assert store_main([*command, "postgresql://me:se/cret@host/db"]) == 2
        shown = capfd.readouterr().err
        assert "se/cret" not in shown and HIDDEN in shown
    assert HIDDEN in door("model.layers=postgresql://me:se/cret@host/db").err


def test_a_long_word_is_cut(door: Door) -> None:
    assert len(door(f"task.operation={'x' * 100_000}").err) < 1500


READERS = [
    ["-m", "grok", "--help"],
    ["-m", "grok.run", "--help"],
    ["-m", "grok.plan", "--diary"],
    ["-m", "grok.store", "status", "S"],
    ["-m", "grok.store", "verify", "S"],
    ["-m", "sweeps.search", "--help"],
]


@pytest.mark.slow  # six processes
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_reader_that_leaves_and_a_terminal_of_ascii(words: list[str], tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit(example_rows(range(2)))
    asked = {"cwd": tmp_path, "env": environment() | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}}
    plain = subprocess.run([sys.executable, *words], **asked, capture_output=True, text=True, check=False)  # type: ignore[call-overload]
    assert plain.returncode == 0 and "Traceback" not in plain.stderr
    process = subprocess.Popen([sys.executable, *words], **asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # type: ignore[call-overload]
    process.stdout.close()
    said = process.stderr.read().decode()
    assert process.wait() == 0 and "Traceback" not in said and "Broken" not in said


def test_bounds_are_said_at_once(door: Door) -> None:
    begun = time.process_time()
    door("-m", "seed=range(0,1e12)", "replicate=range(0,1e12)", "dry_run=true")
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("name", ["model.layers", "optim.lr", "seed", "train.steps", "study.space.optim.lr"])
def test_whole_numbers_of_any_length_are_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole number beyond 308 digits is no float, and asking for one raises."""
    monkeypatch.chdir(tmp_path)
    digits = "1" * 400
    if name.startswith("study."):
        words = ["study=quickstart", "dry_run=true", f"{name}={{low:1e-4,high:{digits}}}"]
        status = importlib.import_module("sweeps.search.__main__").main(words)
    else:
        status = importlib.import_module("grok.run").main([f"{name}={digits}", "dry_run=true"])
    said = capsys.readouterr().err
    assert status == 2 and said.count("\n") == 1 and len(said) < 1000, said
