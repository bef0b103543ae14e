"""What a trial is worth: censored seeds are never dropped, never "at the last step"."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from analysis.criteria import DIARY
from grok.config import load_config
from grok.errors import ConfigError
from grok.store import open_store
from sweeps.search.__main__ import compose_study
from sweeps.search.config import StudyConfig, split_study
from sweeps.search.space import Objective, SeedOutcome, operations_per_step, read_outcomes
from tests.analysis.simulate import Truth, row, write

CONFIG = load_config({})


def outcome(time: int | None, acc: float = 0.5, loss: float = 2.0) -> SeedOutcome:
    return SeedOutcome("x", "completed", None, 1000, time, loss, acc)


def test_medians_with_censored_seeds() -> None:
    def value(*times: int | None) -> float:
        return Objective("median_time", 0.98).value([outcome(t) for t in times], CONFIG)

    assert value(100, 300, 200) == 200
    assert value(100, 300, None) == 300
    assert value(100, 200, 300, 400) == 250
    # half or more censored: above the budget, the better the more seeds got there
    assert 1000 < value(100, 200, None, None) < value(100, None, None, None) < value(None, None, None, None) == 2000
    assert value(999, 999, 999, None) < 1000


def test_shares_and_losses() -> None:
    seeds = [outcome(100, 0.99), outcome(None, 0.5), outcome(700, 0.981), outcome(None, math.nan, math.nan)]
    assert Objective("generalised_share", 0.98).value(seeds, CONFIG) == 0.5
    assert Objective("accurate_share", 0.98).value(seeds, CONFIG) == 0.5
    assert Objective("accurate_share", 0.985).value(seeds, CONFIG) == 0.25
    assert Objective("val_loss", 0.98).value(seeds, CONFIG) == 2.0
    assert Objective("val_acc", 0.98).direction == "maximize"
    logit = Objective("logit_acc", 0.98)
    assert logit.direction == "maximize"
    assert logit.score(outcome(None, 0.75), CONFIG) == pytest.approx(math.log(3))
    assert logit.score(outcome(9, 1.0), CONFIG) == pytest.approx(-logit.score(outcome(None, math.nan), CONFIG))
    # no seed is super in either trial, and yet the one with the better seeds scores higher
    assert logit.value([outcome(None, a) for a in (0.1, 0.2)], CONFIG) < logit.value(
        [outcome(None, a) for a in (0.1, 0.3)], CONFIG
    )
    compute = Objective("compute", 0.98)
    assert compute.value(seeds[:1], CONFIG) == compute.score(seeds[0], CONFIG) == 100 * operations_per_step(CONFIG)
    assert compute.score(seeds[1], CONFIG) == 2000 * operations_per_step(CONFIG)


def test_operations_count_the_matrices() -> None:
    """6 for each weight and position: by hand for one layer of width 8 on a 3-token sequence."""
    config = load_config(
        {
            "task": {"sequence": "a b =", "modulus": 31, "operation": "x+y"},
            "model": {"layers": 1, "d_model": 8, "heads": 2, "d_ff": 16},
            "train": {"batch_size": 10},
        }
    )
    assert operations_per_step(config) == 6 * 10 * (3 * (4 * 64 + 2 * 8 * 16) + 8 * 31)


def test_a_diverged_run_did_not_generalise(tmp_path: Path) -> None:
    base = {"train.steps": 1000, "eval.every": 100}
    truths = [Truth({**base, "seed": 1}, 300.0), Truth({**base, "seed": 2}, 300.0, status="diverged")]
    store = open_store(write(truths, tmp_path))
    ids = [row(t).identity.run_id for t in truths]
    found = read_outcomes(store, ids, 500, dict.fromkeys(ids, 1000))
    assert found[ids[0]].grokked_step is not None
    assert found[ids[0]].val_acc > 0.9
    assert found[ids[1]].grokked_step is None
    assert math.isnan(found[ids[1]].val_acc)


def test_the_diary_study_judges_by_the_diary() -> None:
    study, _, base = split_study(compose_study(["study=diary"]))
    assert (study.accuracy, study.horizon) == (DIARY.super_accuracy, DIARY.horizon)
    assert base["train"]["steps"] == DIARY.horizon


def test_base_yaml_says_the_defaults() -> None:
    study, space, _ = split_study(compose_study(["study=base"]))
    assert study == StudyConfig()
    assert space == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"objectives": []}, "expected one, or two different"),
        ({"objectives": ["median_time", "median_time"]}, "expected one, or two different"),
        ({"objectives": ["median_tim"]}, "expected one"),
        ({"objectives": ["median_time", "compute"], "pruner": {"name": "wilcoxon"}}, "one objective"),
        ({"first_seed": 999_995, "compare": 9}, "expected fresh ones"),
        ({"seeds": 4, "pruner": {"name": "wilcoxon"}}, "expected fewer, so that a trial can stop"),
        ({"name": "a/b"}, "letters, digits"),
        ({"trails": 3}, "did you mean 'study.trials'"),
    ],
)
def test_impossible_studies(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        split_study({"study": given})
    assert said in str(refusal.value)
