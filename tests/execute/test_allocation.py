"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import resource
import torch
from grok.execute.worker import keep_freed_memory

def page_faults():
    for turn in range(20):
        if turn == 10:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = torch.ones(10 << 20)  # 40 MiB: more than glibc ever keeps by itself
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(page_faults(), keep_freed_memory(), page_faults())
"""


@pytest.mark.slow
def test_what_is_freed_is_not_mapped_again() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], check=True, capture_output=True, text=True)
    plain, agreed, kept = done.stdout.split()
    if agreed == "False":
        pytest.skip("this C library has no mallopt")
    pages = 10 * (40 << 20) // 4096
    assert int(kept) < pages / 100
    assert int(plain) > pages / 100, "the C library keeps freed memory by itself: nothing is tested"


LARGE = """
import re
import torch
from pathlib import Path
from grok.execute.worker import use_large_pages

agreed = use_large_pages()
held = torch.ones(10 << 20)  # 40 MiB
found = ""
for block in re.split(r"\\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
    start, end = (int(x, 16) for x in re.match(r"([0-9a-f]+)-([0-9a-f]+)", block).groups())
    if start <= held.data_ptr() + (20 << 20) < end:  # its middle: its ends may share a large page with others
        found = re.search(r"VmFlags:(.*)", block)[1]
print(agreed, " hg" in found)
"""


@pytest.mark.slow
def test_tensors_lie_where_large_pages_were_asked_for() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this kernel gives no large pages")
    done = subprocess.run([sys.executable, "-c", LARGE], check=True, capture_output=True, text=True)
    agreed, advised = done.stdout.split()
    if agreed == "False":
        pytest.skip("this C library or kernel has no say in it")
    assert advised == "True"
