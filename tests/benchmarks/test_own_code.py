"""The benchmark of own code: every kind trains, and the page holds each against the built-in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.own_code import CONTENDERS, measure


@pytest.mark.slow
def test_every_kind_of_own_code_is_measured(tmp_path: Path) -> None:
    seconds = measure(2, tmp_path, compiled=False, modulus=47)
    assert list(seconds) == list(CONTENDERS)
    assert all(len(taken) == 2 and min(taken) > 0 for taken in seconds.values())
