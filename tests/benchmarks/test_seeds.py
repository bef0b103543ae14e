"""The benchmark of seeds measures what it says, in a tiny form of the regime."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.seeds import contender, flops_of, main, phases_of_a_step, product_rates
from benchmarks.seeds_page import operations, page
from benchmarks.seeds_profile import described, rows_of_a_step
from benchmarks.settings import default_config

REGIME: dict[str, Any] = {
    "task": {"modulus": 11},
    "model": {"d_model": 16, "heads": 2, "d_ff": 24},
    "train": {"batch_size": 24},
    "numerics": {"compile": False},
}
SECTIONS = ("Targets", "The floor", "Where a step's time goes", "Profile of a step", "Cost against size")


def test_every_contender_steps() -> None:
    config = default_config(**REGIME)
    for kind, lanes in (("plain", 1), ("plain, our memory", 1), ("vmap", 2), ("ours", 2)):
        made = contender(kind, config, 0, lanes)
        made.step()
    assert [lane.run.step for lane in made.lanes] == [1, 1]
    assert all(seconds > 0 for seconds in made.phases.values())
    made.forward()
    made.evaluate()
    assert [lane.run.step for lane in made.lanes] == [1, 1]


def test_phases_add_up_to_the_step() -> None:
    clocked = {"data": 1.0, "forward and backward": 18.0, "optimiser": 1.0}
    phases = phases_of_a_step(clocked, step=0.02, forward=0.006)
    assert phases == pytest.approx({"data": 0.001, "forward": 0.006, "backward": 0.012, "optimiser": 0.001})


def test_the_profile_names_the_parts_of_a_step() -> None:
    rows = {row["what"]: row for row in rows_of_a_step(2, REGIME)}
    assert rows["product (71, 16) x (16, 24)"]["calls"] == 2  # up, and down's input gradient
    assert {"optimiser", "gathers and sums of shared rows"} <= rows.keys()
    kernel = "graph_0_cpp_fused_{}_3"
    assert described(kernel.format("add_native_layer_norm"), []).startswith("LayerNorm")
    assert described(kernel.format("abs_add_exp_lt_mul"), []) == "GELU"
    assert described(kernel.format("cat"), []) == "other fused kernels"


def test_a_product_by_onednn_counts_once_with_its_operations() -> None:
    rows = {row["what"]: row for row in rows_of_a_step(1, {**REGIME, "numerics": {"compile": False, "path": "onednn"}})}
    assert rows["product (71, 16) x (16, 24)"]["calls"] == 2
    assert operations(described("mkldnn::_linear_pointwise", [[1471, 512], [128, 512], []])) == 2 * 1471 * 512 * 128


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
    tiny = ["--rounds", "1", "--steps", "4", "--cores", "1", "--lengths", "5"]
    main([*tiny, "--regime", json.dumps(REGIME), "--out", str(tmp_path)])
    (written,) = tmp_path.glob("*-seeds.md")
    text = written.read_text()
    for section in SECTIONS:
        assert f"\n## {section}\n" in text
    for row in (
        "plain loop, one process",
        "torch.func.vmap",
        "this project, one process",
        "this project, 1 processes",
        "forward",
        "backward",
        "modulus 59",
    ):
        assert re.search(rf"^\| {re.escape(row)}", text, re.MULTILINE), row
    assert re.search(r"\| share of the floor \| at least 60% \| \d+% \| (reached|\*\*missed\*\*) \|", text)
    found = json.loads(written.with_suffix(".json").read_text())
    assert sum(found["phases"].values()) == pytest.approx(found["step"])
