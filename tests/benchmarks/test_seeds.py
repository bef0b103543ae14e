"""The benchmark of seeds measures what it says, in a tiny form of the regime."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.seeds import contender, flops_of, main, product_rates
from benchmarks.seeds_page import page
from benchmarks.settings import default_config

REGIME: dict[str, Any] = {
    "task": {"modulus": 11},
    "model": {"d_model": 16, "heads": 2, "d_ff": 24},
    "train": {"batch_size": 24},
    "numerics": {"compile": False},
}
SECTIONS = ("Targets", "The floor")


def test_every_contender_steps() -> None:
    config = default_config(**REGIME)
    for kind in ("plain", "ours"):
        made = contender(kind, config, 0)
        made.step()
    assert made.lane.run.step == 1
    made.evaluate()
    assert made.lane.run.step == 1


def test_a_stored_measurement_has_a_page_that_names_each_plain_loop() -> None:
    (stored,) = (Path(__file__).parents[2] / "results/benchmarks").glob("*-seeds.json")
    text = page(json.loads(stored.read_text()), {})
    for section in SECTIONS:
        assert f"\n## {section}\n" in text
    for row in (
        "| times the plain loop, one process, 2 threads | 10 | 4.71 | **missed** |",
        "| times the plain loop, 2 processes | 10 | 4.04 | **missed** |",
        "| times the plain loop, 2 processes, memory as ours | 10 | 3.95 | **missed** |",
    ):
        assert row in text and row in stored.with_suffix(".md").read_text()
    assert "7.5 times as fast as the plain loop, 2 processes;" in text
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert "4.7 times [4.5, 4.9] that of one process with two threads" in readme
    assert "4.0 times [3.9, 4.3] that of two processes" in readme


def test_rates_and_operations_of_the_floor_are_positive() -> None:
    config = default_config(**REGIME)
    assert flops_of(config) > 0
    assert set(product_rates(REGIME)) == {"forward", "input gradient", "weight gradient"}


@pytest.mark.slow
def test_the_whole_page(tmp_path: Path) -> None:
    tiny = ["--rounds", "1", "--steps", "4", "--cores", "1"]
    main([*tiny, "--regime", json.dumps(REGIME), "--out", str(tmp_path)])
    (written,) = tmp_path.glob("*-seeds.md")
    text = written.read_text()
    for section in SECTIONS:
        assert f"\n## {section}\n" in text
    for row in (
        "plain loop, one process",
        "this project, one process",
        "this project, 1 processes",
    ):
        assert re.search(rf"^\| {re.escape(row)}", text, re.MULTILINE), row
    assert re.search(r"\| share of the floor \| at least 60% \| \d+% \| (reached|\*\*missed\*\*) \|", text)
    found = json.loads(written.with_suffix(".json").read_text())
    assert found["step"] > 0
