"""The CUDA code that the compiler generates for the real step, examined where no device is.

Needs the CUDA build of torch in an environment of its own: ``make cuda-environment``.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.roofline import COUNT, tables

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("GROK_CUDA_PYTHON", ROOT / ".venv-cuda/bin/python"))

needs_cuda_build = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"needs torch's CUDA build (not a device), and {PYTHON} is missing: `make cuda-environment`, "
    "or name another Python by GROK_CUDA_PYTHON",
)


@cache
def generated(what: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(PYTHON), "-m", "benchmarks.generated", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return result


@pytest.mark.slow
@needs_cuda_build
@pytest.mark.timeout(3600)
def test_the_step_has_the_kernels_operations_and_bytes_that_were_counted() -> None:
    counts, committed = generated("count"), json.loads(COUNT.read_text())
    if counts["torch"] != committed["torch"]:
        pytest.skip(f"counted with torch {committed['torch']}, this is {counts['torch']}")
    assert counts["graphs"] == committed["graphs"]


@pytest.mark.slow
@needs_cuda_build
@pytest.mark.timeout(3600)
def test_every_kernel_compiles_for_the_device_in_one_way_and_without_spills() -> None:
    for part in generated("cubins").values():
        assert part["cubins"] == part["kernels"] > 0
        assert part["failed"] == part["spilled"] == part["several"] == []


@pytest.mark.slow
@needs_cuda_build
@pytest.mark.timeout(3600)
def test_the_generated_step_has_the_numbers_of_the_plain_one() -> None:
    """Also with what a device may hold outside masks and in fresh buffers, and with every access inside a tensor."""
    result, real = generated("interpret"), json.loads(COUNT.read_text())["graphs"]
    for precision, bound in {"float32": 1e-6, "float64": 1e-9}.items():
        assert result[precision]["difference"] < bound
        for graph, kinds in result[precision]["kinds"].items():  # what the real step has, the small one has as well
            assert all(kinds[kind] for kind, n in real[graph]["kinds"].items() if n), (graph, kinds)


def test_nothing_in_the_count_adds_in_no_fixed_order() -> None:
    graphs = json.loads(COUNT.read_text())["graphs"]
    assert set(graphs) == {"step", "update", "evaluation"}
    for graph in graphs.values():
        assert graph["atomics"] == 0 and graph["other calls"] == []
    assert graphs["step"]["products"] == 30


def test_the_page_shows_the_count() -> None:
    page = (ROOT / "docs/internals.md").read_text(encoding="utf-8")
    assert [table for table in tables(json.loads(COUNT.read_text())) if table not in page] == []
