"""Whatever the arguments of a command: no traceback, one line for a refusal, nothing else changed, no row lost."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors.conftest import environment
from tests.doors.fuzz import Case, World, try_case

FEW = 15
MANY = 2000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def test_a_few_odd_command_lines(world: World, tmp_path: Path) -> None:
    """In this process, so without those that train or compute: these may take as long as they are told to."""
    cases = (Case.of(number, world.run, world.language) for number in range(1_000_000, 1_001_000))
    for case in [case for case in cases if not case.works][:FEW]:
        broken = try_case(case, world, tmp_path / str(case.number))
        assert not broken, f"{case}: {broken}"


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(10))
def test_many_odd_command_lines(part: int) -> None:
    words = ["--cases", str(MANY // 10), "--first", str(part * MANY // 10)]
    command = [sys.executable, "-m", "tests.doors.fuzz", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
