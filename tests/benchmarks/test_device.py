"""The benchmark of a CUDA device counts its floors, and says what it lacks, where there is none."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.device", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_floors_by_count_need_no_device() -> None:
    done = benchmark("--estimate")
    assert done.returncode == 0, done.stderr
    assert "A step of one lane: 2.318 GFLOP" in done.stdout
    assert re.search(r"^\| products at the peak rate \| \d+\.\d \| \d+\.\d \|$", done.stdout, re.MULTILINE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for the refusal of a machine without a CUDA device")
def test_without_a_device_it_says_so() -> None:
    done = benchmark()
    assert done.returncode == 2 and "ask for --estimate" in done.stderr
