"""Values that no command can use: one line at once, before any work is done or anything is written."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from grok.commands.store import main as store_main
from grok.store import StoreWriter
from grok.store.contract import example_rows
from grok.untrusted import HIDDEN
from tests.doors.conftest import Door

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
    "layers: a donor below 0": ("sweeps.layers", ["--recipient", "0", "--donor", "-1"], "at least 0"),
    "prepare: vocabulary": (
        "grok.prepare",
        ["text", "--input", "text.txt", "--tokenizer", "bpe", "--out", "P", "--vocab-size", "1000000000"],
        "at most 1,000,000",
    ),
    "search: trials": ("sweeps.search.__main__", [*SEARCH, "study.trials=1e12"], "at most 1000000"),
    "find: a folder in a file": ("grok.find", ["lr", *GPT, "--out", "text.txt/x"], "text.txt is no folder"),
    "report: a long name": ("analysis.report", ["S", "--out", LONG], "File name too long"),
    "merge: into nothing": ("grok.commands.store", ["merge", "S", "T", "--into", ""], "a store is empty"),
    "merge: into a folder of itself": ("grok.commands.store", ["merge", "S", "--into", "S/inner"], "inside the store"),
    "a sweep into a store's folder": ("grok.run", ["store.path=S/inner", "dry_run=true"], "inside the store"),
    "a store that is an address": ("grok.run", ["store.path=s3://bucket/S", "dry_run=true"], "a store is a folder"),
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


def test_a_password_is_shown_nowhere(door: Door, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for word in ("+model.layers={}", "store.path={}x", "data.path={}", "{}", "task.operation={}"):
        ended = door(word.format("postgresql://me:se/cret@host/db"), "dry_run=true")
        assert "se/cret" not in ended.err + ended.out, ended
    for command in (["status"], ["verify"], ["compact"], ["migrate"], ["restore"]):
        assert store_main([*command, "postgresql://me:se/cret@host/db"]) == 2
        shown = capfd.readouterr().err
        assert "se/cret" not in shown and HIDDEN in shown
    assert HIDDEN in door("model.layers=postgresql://me:se/cret@host/db").err
