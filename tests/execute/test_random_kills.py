"""Every kind of work killed at random moments: the committed counts, and a few kills anew."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chains import append, read_table
from tests.doors.conftest import environment
from tests.execute.random_kills_page import KINDS, PAGE, TABLE, Chain, page, sound

FAULTS = Path(__file__).parents[2] / "results" / "faults"
CHAIN = Chain("merge", 3, 2, 1, 0, 1, 0, 0, 2, 0, 0, 0, True, 1.5, "2026-11-22", "0123456789", "2.13")


def test_the_committed_page_is_what_its_table_gives() -> None:
    chains = read_table(FAULTS / TABLE, Chain)
    assert (FAULTS / PAGE).read_text(encoding="utf-8") == page(chains)
    assert sound(chains)
    assert {chain.kind for chain in chains} == set(KINDS)
    numbers = [[chain.chain for chain in chains if chain.kind == kind] for kind in KINDS]
    assert all(found == list(range(len(found))) for found in numbers), "a chain is missing or counted twice"


def test_the_readme_tells_the_committed_counts() -> None:
    chains = read_table(FAULTS / TABLE, Chain)
    kills, kinds = sum(chain.kills for chain in chains), len({chain.kind for chain in chains})
    text = (FAULTS / "README.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"([\d,]+) kills of (\d+) kinds of work in ([\d,]+) chains", text)
    assert told == (f"{kills:,}", str(kinds), f"{len(chains):,}")


def test_a_table_reads_back_as_it_was_written(tmp_path: Path) -> None:
    chains = [CHAIN, replace(CHAIN, chain=4, equal=False, seconds=0.1)]
    for chain in chains:
        append(tmp_path / TABLE, chain)
    assert read_table(tmp_path / TABLE, Chain) == chains
    assert not sound(chains) and sound(chains[:1])
    assert "| merge | 2 | 4 | 2 | 0 | 2 | 0 | 0 | 4 | 0 | 0 | 0 | 1 |" in page(chains)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_few_kills_of_every_kind(tmp_path: Path) -> None:
    words = ["-m", "tests.execute.random_kills", "--kills", "4", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, *words], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {chain.kind for chain in read_table(tmp_path / TABLE, Chain)} == set(KINDS)
