"""The same sweep on a real SLURM cluster: the same store, whatever happens to its jobs."""

import importlib.util
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.doors.conftest import TINY, command
from tests.execute.conftest import Begin, Content, wait_for
from tests.execute.content import content
from tests.execute.slurm_cluster import slurm_cluster, why_not

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

if importlib.util.find_spec("submitit") is None:
    pytest.skip("submitit is not installed (the extra 'slurm')", allow_module_level=True)

STEPS = 1500
SWEEP = [
    "-m", "seed=range(0,6)", *(word for word in TINY if not word.startswith(("train.steps", "eval"))),
    f"train.steps={STEPS}", "eval.every=500", "checkpoint.every=50", "store.flush_seconds=0.5", "store.path=S",
]  # fmt: skip
"""Runs of a few seconds, checkpointed often."""

ARRAY = 2
CPUS = 3


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Work on a cluster whose arrays are shorter than what is in flight, with fewer cores than workers ask for."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    for parent in [folder, *folder.parents[:-2]]:
        parent.chmod(0o755)  # munged insists
    with slurm_cluster(folder, max_array_size=ARRAY, cpus=CPUS) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def sweep(begin: Begin) -> Iterator[subprocess.Popen[str]]:
    """Start the sweep on the cluster; its jobs end with the test."""
    yield begin(*SWEEP, "executor=slurm", "workers=5")
    subprocess.run(["scancel", "--me"], check=True)
    wait_for(lambda: not queue())


def queue(state: str = "all") -> list[str]:
    """Return the ids of the jobs that are in the queue in a state."""
    words = ["squeue", "--me", "--noheader", "--array", "--format=%i", f"--states={state}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()


def training(store: Path) -> Callable[[], bool]:
    """Return whether a job has left a checkpoint and some wait for a place."""
    return lambda: any(store.glob("checkpoints/*/*/*")) and bool(queue("RUNNING"))


def job_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.NoSuchProcess):
            words = process.info["cmdline"] or []
            if "submitit.core._submit" in words and "srun" not in words[0]:
                found.append(process)
    return found


def finished(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert out.strip().splitlines()[-1].startswith("6 runs stored in S (6 new)."), out
    return out


def test_slurm_writes_the_same_store(sweep: subprocess.Popen[str], tmp_path: Path, undisturbed: Content) -> None:
    wait_for(lambda: len(queue()) >= 3)
    elements = {job.partition("_")[2] for job in queue()}
    alone = {""}  # the fifth group is a job by itself
    assert elements <= {str(i) for i in range(ARRAY)} | alone, "an array is longer than the cluster allows"
    out = finished(sweep)
    assert "5 workers (slurm)" in out
    assert content(tmp_path / "S") == undisturbed
    assert not (tmp_path / "S" / "live").exists()


def test_code_of_ones_own_goes_along_with_its_jobs(tmp_path: Path) -> None:
    found = []
    for executor in ("inline", "slurm"):
        folder = tmp_path / executor
        folder.mkdir()
        (folder / "own.py").write_text("def size(moment):\n    return float(len(moment.parameters))\n")
        words = ["-m", "seed=0,1", *TINY, "eval.metric_plugins.size._target_=own.size", "store.path=S"]
        ended = command(*words, f"executor={executor}", "workers=2", folder=folder)
        assert ended.status == 0 and "Your code: eval.metric_plugins.size=own.size" in ended.out, ended
        found.append(content(folder / "S"))
    assert found[0] == found[1]


@pytest.mark.parametrize("harm", ["kill", "scancel", "scontrol requeue", "scancel --signal=USR2"])
def test_a_harmed_job_loses_nothing(
    sweep: subprocess.Popen[str], tmp_path: Path, undisturbed: Content, harm: str
) -> None:
    """A requeued job goes on from its checkpoints; USR2 comes before a time limit, and the job is submitted again."""
    wait_for(training(tmp_path / "S"))
    before = set(queue())
    if harm == "kill":
        job_processes()[0].kill()
    else:
        subprocess.run([*harm.split(), queue("RUNNING")[0]], check=True)
    if "USR2" in harm:
        wait_for(lambda: set(queue()) - before)
    out = finished(sweep)
    if harm == "kill":
        assert "trying it again" in out and "SLURM job" in out
    elif harm != "scancel":
        assert "trying it again" not in out, "leaving in time, or being queued again by SLURM itself, is no death"
    assert content(tmp_path / "S") == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_no_job_behind(
    sweep: subprocess.Popen[str], tmp_path: Path, undisturbed: Content, number: signal.Signals
) -> None:
    wait_for(training(tmp_path / "S"))
    os.kill(sweep.pid, number)
    out, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 1, out
    assert "The same command goes on where it stopped." in out.strip().splitlines()[-1]
    wait_for(lambda: not queue(), 30)
    assert any((tmp_path / "S").glob("checkpoints/*/*/*")), "runs in flight leave a checkpoint"
    ended = command(*SWEEP, "executor=slurm", "workers=3", folder=tmp_path, timeout=300)
    assert ended.status == 0, ended
    assert content(tmp_path / "S") == undisturbed
