"""The benchmark of a CUDA device counts its floors, and says what it lacks, where there is none."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from benchmarks import device


def test_the_floors_by_count_need_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["device", "--estimate"])
    assert device.main() == 0
    shown = capsys.readouterr().out
    assert "A step of one lane: 2.318 GFLOP" in shown
    assert re.search(r"^\| products at the peak rate \| \d+\.\d \| \d+\.\d \|$", shown, re.MULTILINE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for the refusal of a machine without a CUDA device")
def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["device"])
    assert device.main() == 2
    assert "use --estimate" in capsys.readouterr().err
