"""Running the doors: in this process where that is enough, as commands where processes matter."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from grok import run

TINY = (
    "task.operation=x+y",
    "task.modulus=7",
    "model.layers=1",
    "model.d_model=8",
    "model.heads=2",
    "model.d_ff=16",
    "train.steps=6",
    "train.batch_size=12",
    "eval.every=3",
    "numerics.compile=false",
)
"""A run of a fraction of a second."""


SMALL_MODEL = (
    "mode=gpt", "experiment=gpt/shakespeare_char", "model.layers=1", "model.d_model=16", "model.heads=2",
    "model.context=16", "train.threads=1", "eval.windows=2", "eval.sample_tokens=0", "numerics.compile=false",
    "log.quiet=true",
)  # fmt: skip
"""A language model of a fraction of a second."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.out.strip().splitlines()[-1]


Door = Callable[..., Ended]


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Door:
    """Run ``python -m grok.run`` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def call(*words: str) -> Ended:
        capfd.readouterr()
        status = run.main(words)
        captured = capfd.readouterr()
        return Ended(status, captured.out, captured.err)

    return call


def lose_rows(store: str) -> None:
    """Take the rows out of a store, so that the same command trains its runs again."""
    for kind in ("runs", "curves", "steps"):
        for shard in Path(store, kind).glob("*.parquet"):
            shard.unlink()


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}


def command(*words: str, folder: Path, module: str = "grok.run", timeout: float = 300) -> Ended:
    """Run ``python -m MODULE WORDS`` as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def start(*words: str, folder: Path) -> subprocess.Popen[str]:
    """Start ``python -m grok.run WORDS`` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "grok.run", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
