"""The same sweep on every executor gives the same store. Clusters are real ones on this machine."""

import atexit
import importlib.util
import sys
import time
from pathlib import Path

import pytest

from grok.execute.executors.base import LokyExecutor
from tests.doors.conftest import TINY, Door, command
from tests.execute.conftest import Content, worker_settings
from tests.execute.content import content

SWEEP = ["-m", "seed=range(0,5)", *TINY, "workers=2", "store.path=S"]


def _say_goodbye(path: str) -> None:
    atexit.register(Path(path).touch)


@pytest.mark.slow
def test_idle_workers_end_by_themselves(tmp_path: Path) -> None:
    executor = LokyExecutor(worker_settings(tmp_path), 1, {})
    executor._pool.submit(_say_goodbye, str(tmp_path / "goodbye")).result()
    executor.close()
    assert (tmp_path / "goodbye").exists()


def test_a_worker_that_trains_is_not_waited_for(tmp_path: Path) -> None:
    executor = LokyExecutor(worker_settings(tmp_path), 1, {})
    executor._flying.append(executor._pool.submit(time.sleep, 600))
    begun = time.monotonic()
    executor.close()
    assert time.monotonic() - begun < 60


@pytest.mark.slow
@pytest.mark.parametrize("kind, package", [("loky", "joblib"), ("dask", "distributed"), ("ray", "ray")])
def test_every_executor_writes_the_same_store(kind: str, package: str, tmp_path: Path, undisturbed: Content) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (the extra '{kind}')")
    ended = command(*SWEEP, f"executor={kind}", folder=tmp_path)
    assert ended.status == 0, ended
    assert ended.last.startswith("5 runs stored in S (5 new).")
    assert f"2 workers ({kind})" in ended.out
    assert content(tmp_path / "S") == undisturbed


@pytest.mark.parametrize("kind, package", [("dask", "distributed"), ("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(
    kind: str, package: str, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ended = door("-m", "seed=0,1", *TINY, f"executor={kind}")
    assert ended.status == 2
    assert f"executor={kind} needs the package '{package}': pip install 'grok-lab[{kind}]'" in ended.err
    assert list(tmp_path.iterdir()) == []
