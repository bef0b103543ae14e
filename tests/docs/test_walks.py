"""The three walks of the documentation, walked: every command in its order, and what it prints has the page's form."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks, commands_of
from tests.doors.conftest import environment

SEED, TEXT, AGAIN = (blocks(ROOT / f"docs/walks/{name}.md") for name in ("seed", "text", "rerun"))
NUMBER = re.compile(r"\d[\d,.]*(e-\d+)?")
FEWER = {"sweep=crossed": [f"seeds.{stream}=range(0,2)" for stream in ("split", "init", "order")]}
"""What a command gets besides its words: 16 cells show that it works, 432 take hours."""
IN_OWN_WORDS = re.compile("^There was once", re.MULTILINE)
"""Where what a model wrote begins: another processor may write it otherwise."""


def walk(page: list[Block], folder: Path) -> None:
    """Run a page's commands and Python in ``folder``; each output on the page must have the form of the real one.

    Numbers may differ: the last digits depend on the processor.
    """
    printed = ""
    for block in page:
        orders = list(commands_of(block))
        for order in orders:
            extra = [word for name, words in FEWER.items() if name in order.words for word in words]
            printed = execute([*order.words[1:], *extra], folder)
        if block.kind == "python":
            printed = execute(["-c", block.body], folder)
            if printed.startswith("python -m grok.run "):  # a run's own command, for another place
                execute([*shlex.split(printed)[1:], "store.path=results/elsewhere"], folder)
        elif not orders:
            missing = form(IN_OWN_WORDS.split(block.body)[0]) - form(printed)
            assert not missing, f"{missing}\nare not in\n{printed}"


def execute(words: list[str], folder: Path) -> str:
    """Run Python with ``words`` and return all that it printed."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=3000,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def form(text: str) -> set[str]:
    """Return the lines of ``text`` with one sign for every number, run and tag."""
    lines: set[str] = set()
    for line in text.splitlines():
        short = re.sub(r"^(stored|again): .*", r"\1: tag", re.sub(r"\b[0-9a-f]{8,}\b", "RUN", line))
        lines.add(" ".join(NUMBER.sub("N", short).split()))
    return lines - {""}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_seed_is_followed_to_the_report_and_trained_again(tmp_path: Path) -> None:
    walk(SEED, tmp_path)
    walk(AGAIN, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_text_becomes_a_story(tmp_path: Path) -> None:
    walk(TEXT, tmp_path)
