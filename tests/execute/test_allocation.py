"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import torch
from grok.execute.allocation import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    print("unheard")
    raise SystemExit
for turn in range(20):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = torch.ones(10 << 20)  # 40 MiB: more than glibc ever keeps by itself
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", COUNT, how], check=True, capture_output=True, text=True)
    if done.stdout.strip() == "unheard":
        pytest.skip("this C library has no mallopt")
    return int(done.stdout)


def test_what_is_freed_is_not_mapped_again() -> None:
    pages = 10 * (40 << 20) // 4096
    assert page_faults("keep") < pages / 100
    assert page_faults("plain") > pages / 100, "the C library keeps freed memory by itself: nothing is tested"
