"""Every kind of work killed at random moments: the committed counts, and a few kills anew."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grok.store import open_store
from tests.doors.conftest import Door, environment
from tests.doors.conftest import door as door  # a fixture
from tests.gpt.conftest import prepare_text, text_of
from tests.kills import KINDS, PAGE, SHARED, TABLE, page, read_table, sound, workers_of

FAULTS = Path(__file__).parents[1] / "results" / "faults"


def test_the_committed_page_and_the_readme_are_what_the_table_gives() -> None:
    chains = read_table(FAULTS / TABLE)
    assert (FAULTS / PAGE).read_text(encoding="utf-8") == page(chains)
    assert sound(chains)
    kinds = {chain.kind for chain in chains}
    assert kinds <= set(KINDS)
    for kind in kinds:
        numbers = [chain.chain for chain in chains if chain.kind == kind]
        assert numbers == list(range(len(numbers))), "a chain is missing or counted twice"
    (counts,) = re.findall(
        r"([\d,]+) kills of (\d+) kinds of work in ([\d,]+) chains", (FAULTS / "README.md").read_text(encoding="utf-8")
    )
    assert counts == (f"{sum(chain.kills for chain in chains):,}", str(len(kinds)), f"{len(chains):,}")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_few_kills(kind: str, tmp_path: Path) -> None:
    words = ["-m", "tests.kills", "--kills", "10", "--kinds", kind, "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, *words], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(chain.kills for chain in read_table(tmp_path / TABLE)) >= 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.slow
def test_a_rank_that_dies_ends_all_and_the_step_before_is_kept(tmp_path: Path, door: Door, restarts: int) -> None:
    """No checkpoint is due, so the one that is left is that of the end; torchrun, or one process, goes on from it."""
    words = [
        *SHARED, f"data.path={prepare_text(tmp_path, text_of(4000)).path}", "checkpoint.every=0",
        "checkpoint.minutes=0", "log.quiet=false", "eval.every=20", "train.steps=100",
    ]  # fmt: skip
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", "-m"]
    with (tmp_path / "said").open("a") as output:
        launcher = subprocess.Popen(
            [sys.executable, "-m", *launch, "grok.run", *words],
            cwd=tmp_path, env=environment(), stdout=output, stderr=output,
        )  # fmt: skip
    deadline = time.monotonic() + 120
    while "step 20:" not in (tmp_path / "said").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    next(rank for rank in workers_of(launcher.pid) if rank.environ().get("RANK") == "1").kill()
    assert (launcher.wait(timeout=200) == 0) == bool(restarts), (tmp_path / "said").read_text()[-4000:]
    text = (tmp_path / "said").read_text()
    if not restarts:
        ended = door(*words)
        assert ended.status == 0, ended
        text += ended.out
    # torchrun's SIGTERM may come while rank 0 is at its last line
    assert len(re.findall(r"^(Stopped: another process of this run ended|Interrupted: ).* goes on", text, re.M)) == 1
    assert "Traceback" not in re.split("Stopped:|Interrupted:", text)[0]
    assert open_store(tmp_path / "S").steps()["step"].sort_values().tolist() == list(range(1, 101))
    assert "1 run stored in S (1 new)." in text
