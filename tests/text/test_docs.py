"""The commands of docs/gpt.md do what the page says, and its counts are those of the published files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from grok import evaluate, generate, prepare
from grok.text.preparation import Request
from grok.text.preparation import prepare as prepare_corpus

PAGE = (Path(__file__).parents[2] / "docs" / "gpt.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line.partition("#")[0])
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]


def test_the_first_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert COMMANDS[0][:4] == ["grok", "prepare", "fables", "--input"]
    assert prepare.main(COMMANDS[0][2:]) == 0
    shown = re.search(r"````text\n(.*?)````", PAGE, re.DOTALL)
    assert shown is not None
    printed = capsys.readouterr().out
    assert [part for part in shown[1].split("...\n") if part.strip() not in printed] == []
    files = {f.name for f in (tmp_path / "data/fables").iterdir()}
    assert files == {
        "manifest.json", "tokenizer.json", "train.bin", "val.bin", "train.docs", "val.docs", "corpus.md", "corpus.json",
    }  # fmt: skip


PARSERS = {"prepare": prepare.parser, "evaluate": evaluate.parser, "generate": generate.parser}
"""Commands with parsers of their own. Sweeps and runs of all pages are planned in ``tests/docs``."""


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c[1] not in ("run", "sweep")], ids=lambda command: " ".join(command[:4])
)
def test_every_command_is_read(command: list[str]) -> None:
    """All options are known; what is missing is the input, which only a person has."""
    PARSERS[command[1]]().parse_args(command[2:])


def test_the_table_of_counts(samples: Callable[[str], Path], tmp_path: Path) -> None:
    valid, test = (samples(f"wikitext/wiki.{name}.tokens") for name in ("valid", "test"))
    stories, vocab = samples("tinystories/TinyStoriesV2-sample.txt"), samples("gpt2")
    rows = (
        Request(form="wikitext", inputs=(str(valid),), split_files={"test": (str(test),)}, out=tmp_path / "w",
                tokenizer="gpt2", vocab=vocab),
        Request(form="tinystories", inputs=(str(stories),), out=tmp_path / "s", tokenizer="bpe", vocab_size=4096),
    )  # fmt: skip
    for request in rows:
        corpus, _ = prepare_corpus(request)
        counts = " | ".join(f"{corpus.split(name)['tokens']:,}" for name in corpus.splits)
        assert f"| {counts} |" in PAGE, counts
