"""Stores that nobody planned for: the report comes out whole, warns of nothing, and prints no NaN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.answers import compile_report
from analysis.writing import write_report
from tests.analysis.simulate import Truth, census, crossed, simulate


def end_only() -> list[Truth]:
    return census(30, np.random.default_rng(40), eval__every=100_000)


def all_diverged() -> list[Truth]:
    return [Truth({"seed": i}, 900, status="diverged") for i in range(12)]


def all_failed() -> list[Truth]:
    return [Truth({"seed": i}, 900, status="failed") for i in range(12)]


def all_at_once() -> list[Truth]:
    return [Truth({"seed": i, "eval.every": 500}, 700, fast=True) for i in range(40)]


def none_ever() -> list[Truth]:
    return [Truth({"seed": i}, 1e6) for i in range(40)]


def one_run() -> list[Truth]:
    return [Truth({"seed": 3}, 900)]


def one_step() -> list[Truth]:
    return [Truth({"seed": i, "train.steps": 1}, 900) for i in range(8)]


def many_conditions() -> list[Truth]:
    return [Truth({"seed": i, "optim.lr": 1e-3 * (1 + i % 7)}, 900 + i) for i in range(50)]


def mixed_lengths() -> list[Truth]:
    rng = np.random.default_rng(41)
    return [Truth({"seed": i, "train.steps": 10 ** (1 + i % 4)}, float(rng.uniform(50, 9000))) for i in range(40)]


def equal_outcomes() -> list[Truth]:
    return crossed((2, 3, 3), np.random.default_rng(43), {})


def holes_in_the_grid() -> list[Truth]:
    truths = crossed((2, 5, 5), np.random.default_rng(44), {"init": 0.1, "chaos": 0.1})
    return [t for i, t in enumerate(truths) if i % 7]


STORES = [
    all_failed,
    none_ever,
    one_run,
    *(
        pytest.param(store, marks=pytest.mark.slow)
        for store in (
            *(end_only, mixed_lengths, all_diverged, all_at_once),
            *(one_step, many_conditions, equal_outcomes, holes_in_the_grid),
        )
    ),
]


@pytest.mark.usefixtures("no_png")
@pytest.mark.parametrize("make", STORES, ids=lambda f: f.__name__)
def test_the_report_comes_out_whole(make, tmp_path: Path) -> None:
    report = compile_report(simulate(make()))
    page = write_report(report, tmp_path).read_text()
    for study in report.studies:
        for finding in study.findings:
            assert "nan" not in finding.text.lower().split(), finding.text
            if finding.estimate:
                e = finding.estimate
                assert e.low <= e.value <= e.high, finding.text
    assert "</html>" in page
