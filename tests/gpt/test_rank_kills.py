"""A run of several processes under torchrun, killed at random moments and gone on with by another number of them."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grok.store import open_store
from tests.chains import append, read_table
from tests.doors.conftest import Door
from tests.doors.conftest import door as door  # a fixture
from tests.gpt.conftest import prepare_text, text_of
from tests.gpt.rank_kills import (
    PAGE,
    PARALLEL,
    RUN,
    TABLE,
    VICTIMS,
    Chain,
    main,
    page,
    ranks_of,
    sound,
    start,
)

FAULTS = Path(__file__).parents[2] / "results" / "faults"
CHAIN = Chain("ddp", 0, 3, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 2e-7, 1e-7, 9.5, "2026-11-22", "0123456789", "2.13")


def words_for(folder: Path, *more: str) -> list[str]:
    return [*RUN, f"data.path={prepare_text(folder, text_of(4000)).path}", *more]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.slow
def test_a_process_that_dies_ends_all_and_the_step_before_is_kept(tmp_path: Path, door: Door, restarts: int) -> None:
    """No checkpoint is due, so the one that is left is that of the end; torchrun, or one process, goes on from it."""
    words = words_for(
        tmp_path, "checkpoint.every=0", "checkpoint.minutes=0", "log.quiet=false", "eval.every=20", "train.steps=100"
    )
    launcher = start(2, words, tmp_path, f"--max-restarts={restarts}")
    said = tmp_path / "said"
    deadline = time.monotonic() + 120
    while "step 20:" not in said.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks = ranks_of(launcher)
    other = next(rank for rank in ranks if rank.environ()["RANK"] == "1")
    other.kill()
    assert (launcher.wait(timeout=200) == 0) == bool(restarts), said.read_text()[-4000:]
    text = said.read_text()
    if not restarts:
        ended = door(*words)
        assert ended.status == 0, ended
        text += ended.out
    # torchrun's SIGTERM may come while rank 0 is at its last line
    assert len(re.findall(r"^(Stopped: another process of this run ended|Interrupted: ).* goes on", text, re.M)) == 1, (
        text
    )
    assert "Traceback" not in re.split("Stopped:|Interrupted:", text)[0]
    steps = open_store(tmp_path / "S").steps().sort_values("step")
    assert steps.step.tolist() == list(range(1, 101))
    assert "1 run stored in S (1 new)." in text


def test_the_committed_page_is_what_its_table_gives() -> None:
    chains = read_table(FAULTS / TABLE, Chain)
    assert (FAULTS / PAGE).read_text(encoding="utf-8") == page(chains)
    assert sound(chains)
    for parallel in PARALLEL:
        numbers = [chain.chain for chain in chains if chain.parallel == parallel]
        assert numbers == list(range(len(numbers))), "a chain is missing or counted twice"
    for victim in VICTIMS:
        assert all(sum(getattr(c, f"{victim}_of_{n}") for c in chains if c.parallel == "fsdp") for n in (2, 4))


def test_the_readme_tells_the_committed_counts() -> None:
    chains = read_table(FAULTS / TABLE, Chain)
    text = (FAULTS / "README.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"(\d+) kills in (\d+) runs of several processes", text)
    assert told == (str(sum(chain.kills for chain in chains)), str(len(chains)))


def test_a_table_reads_back_as_it_was_written(tmp_path: Path) -> None:
    chains = [CHAIN, replace(CHAIN, parallel="fsdp", final_difference=0.2)]
    for chain in chains:
        append(tmp_path / TABLE, chain)
    assert read_table(tmp_path / TABLE, Chain) == chains
    assert sound(chains[:1]) and not sound(chains)
    assert not sound([replace(CHAIN, lost=1)]) and not sound([replace(CHAIN, steps_changed=1)])


@pytest.mark.slow  # launches of two to four processes, again and again
@pytest.mark.timeout(7200)
def test_killed_at_random_and_gone_on_with_by_another_number(tmp_path: Path) -> None:
    assert main(["--kills", "12", "--out", str(tmp_path)]) == 0
    chains = read_table(tmp_path / TABLE, Chain)
    assert {chain.parallel for chain in chains} == set(PARALLEL)
