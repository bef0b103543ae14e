"""What ``grok.run`` says and refuses in ``mode=gpt``: how far a command goes from its preset, data it cannot use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grok.gpt.preparation import Request, prepare
from tests.doors.conftest import Door
from tests.doors.test_refusals import refused

PRESET = ("mode=gpt", "experiment=gpt/shakespeare_char")


@pytest.fixture(scope="module")
def fables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("corpora") / "fables"
    return prepare(Request(form="fables", inputs=("20:0",), out=out, tokenizer="char"))[0].path


def test_the_effective_difference_is_said(door: Door, fables: Path) -> None:
    """T12: what the runs have that their preset has not, derived settings included, sweeps and paths left short."""
    planned = ("dry_run=true", f"data.path={fables}")
    assert door(*PRESET, *planned).out.splitlines()[0] == "gpt/shakespeare_char as the preset has it"
    changed = door(*PRESET, *planned, "optim.lr=2e-3", "model.dropout=0.1", "train.threads=1").out.splitlines()[0]
    assert changed == (
        "gpt/shakespeare_char with model.dropout=0.1 (preset 0.0), model.dropout_embedding=0.1 (preset 0.0), "
        "model.dropout_residual=0.1 (preset 0.0), model.dropout_attention=0.1 (preset 0.0), "
        "optim.lr=0.002 (preset 0.001), train.threads=1 (preset null)"
    )
    sweep = door(*PRESET, *planned, "-m", "seed=range(0,8)", "model.bias=true,false").out.splitlines()[0]
    assert sweep == "gpt/shakespeare_char with seed=8 values (preset 0), model.bias=true,false (preset false)"


def test_an_override_that_changes_nothing_is_named(door: Door, fables: Path) -> None:
    """T12: a `s/0.95/0.95/` of the command line."""
    planned = (*PRESET, "dry_run=true", f"data.path={fables}")
    said = door(*planned, "optim.betas=[0.9,0.99]", "train.batch_size=12", "optim.lr=2e-3").out
    assert "the preset has optim.betas=[0.9,0.99], train.batch_size=12 already: nothing is changed by that" in said
    assert "already" not in door(*planned, "optim.lr=2e-3").out
    assert "already" not in door(*planned, "-m", "seed=0,1").out  # one of two values is not idle


def cut_off(data: Path) -> None:
    (data / "train.bin").write_bytes((data / "train.bin").read_bytes()[:-10])


def another_tokeniser(data: Path) -> None:
    (data / "tokenizer.json").write_text('{"format": "grok-tokenizer", "kind": "byte"}')


def nothing(data: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("damage", "words", "says"),
    [
        (cut_off, [], "train.bin is cut off"),
        (another_tokeniser, [], "is not the tokeniser that these tokens were made with"),
        (nothing, ["model.vocab_size=5"], "the model has 5 ids"),
        (nothing, ["model.context=2000"], "a block needs 2,001"),
    ],
)
def test_data_that_cannot_be_used_is_refused_before_anything_is_written(
    door: Door, tmp_path: Path, damage: Callable[[Path], None], words: list[str], says: str
) -> None:
    data = prepare(Request(form="fables", inputs=("4:0",), out=tmp_path / "data", tokenizer="char"))[0].path
    damage(data)
    for more in ([], ["dry_run=true"], ["-m", "seed=range(0,3)"]):
        ended = door(*PRESET, f"data.path={data}", *words, *more)
        refused(ended, says=[says], folder=tmp_path, before=frozenset({"data"}))
