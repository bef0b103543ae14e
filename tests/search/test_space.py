"""The search's space, objectives and command: what they accept and refuse, and what a trial is worth."""

import math
from pathlib import Path
from typing import Any

import optuna
import pytest

from grok.analysis.criteria import DIARY
from grok.commands.compose import apply
from grok.config import flatten, load_config
from grok.errors import ConfigError
from grok.store import open_store
from grok.sweeps.search.__main__ import compose_study, main
from grok.sweeps.search.config import StudyConfig, split_study
from grok.sweeps.search.driver import Search, by_execution
from grok.sweeps.search.space import Objective, SeedOutcome, operations_per_step, read_outcomes, read_space
from tests.analysis.simulate import Truth, row, write

# The search space: what it accepts, what it refuses and in which words, what it asks Optuna for.

CONDITIONAL = {
    "optim": {
        "grokfast_lamb": {"low": 0.5, "high": 5.0, "when": {"optim.grokfast": ["ema", "ma"]}},
        "grokfast": {"choices": ["none", "ema", "ma"]},
        "warmup_steps": {"low": 0, "high": 20, "step": 5},
    },
    "model.d_model": {"choices": [32, 64]},
}


def test_conditions_numbers_and_order() -> None:
    space = read_space(CONDITIONAL, "arithmetic")
    names = [d.name for d in space.dimensions]
    assert names.index("optim.grokfast") < names.index("optim.grokfast_lamb")
    base = flatten(load_config({}))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    seen = set()
    for _ in range(40):
        chosen = space.suggest(study.ask(), base)
        seen.add(chosen["optim.grokfast"])
        assert ("optim.grokfast_lamb" in chosen) == (chosen["optim.grokfast"] != "none")
        assert chosen["optim.warmup_steps"] in (0, 5, 10, 15, 20)
        assert isinstance(chosen["optim.warmup_steps"], int)
        load_config(apply({}, {**chosen, "seed": 3}))
    assert seen == {"none", "ema", "ma"}


def test_the_default_is_a_point_only_where_the_space_holds_it() -> None:
    base = flatten(load_config({}))
    inside = read_space({"optim.lr": {"low": 1e-4, "high": 1e-2}, **CONDITIONAL}, "arithmetic")
    assert inside.default(base) is None  # d_model=128 is no choice
    inside = read_space({"optim.lr": {"low": 1e-4, "high": 1e-2}}, "arithmetic")
    assert inside.default(base) == {"optim.lr": 1e-3}
    assert read_space({"optim.lr": {"low": 2e-3, "high": 1e-2}}, "arithmetic").default(base) is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({}, "is empty"),
        ({"optim": {"lrr": {"low": 1, "high": 2}}}, "did you mean 'optim.lr'"),
        ({"optim": {"lr": 3}}, "expected {low"),
        ({"optim": {"lr": {"low": -1, "high": 2}}}, "optim.lr=-1"),
        ({"optim": {"lr": {"low": 2e-3, "high": 1e-3}}}, "low < high"),
        ({"optim": {"weight_decay": {"low": 0.0, "high": 1.0, "log": True}}}, "low above 0"),
        ({"seed": {"choices": [1, 2]}}, "a seed is a replicate"),
        ({"train": {"steps": {"low": 10, "high": 20}}}, "the same for all trials"),
        ({"model": {"norm": {"choices": ["post", "prae"]}}}, "model.norm='prae'"),
        ({"model": {"norm": {"low": 1, "high": 2}}}, "not a number"),
        ({"optim": {"lr": {"low": 1e-3, "high": 1e-2, "when": {"optim.grokfst": "ema"}}}}, "did you mean"),
        (
            {
                "optim.grokfast": {"choices": ["ema"]},
                "optim.lr": {"low": 1e-3, "high": 1e-2, "when": {"optim.grokfast": "ma"}},
            },
            "among the choices",
        ),
    ],
)
def test_refusals(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_space(raw, "arithmetic")
    assert said in str(refusal.value)


# What a trial is worth: censored seeds are never dropped, never "at the last step".

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
        ({"first_seed": 999_995, "compare": 9}, "expected fresh ones"),
        ({"name": "a/b"}, "letters, digits"),
        ({"trails": 3}, "did you mean 'study.trials'"),
    ],
)
def test_impossible_studies(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        split_study({"study": given})
    assert said in str(refusal.value)


# The command with real training; refusals write nothing.

STUDIES = sorted(
    path.stem for path in (Path(__file__).parents[2] / "conf" / "study").glob("*.yaml") if path.stem != "base"
)


@pytest.mark.parametrize("name", STUDIES)
def test_every_named_study_is_sound(name: str) -> None:
    """Its space, its objectives and its default's settings go together, at both ends of every setting."""
    study, raw, base = split_study(compose_study([f"study={name}"]))
    assert study.name == name
    space = read_space(raw, str(base["mode"]))
    search = Search(study, space, base, by_execution(()), print)
    assert "trials of" in search.plan()
    for dimension in space.dimensions:
        for value in dimension.choices or (dimension.low, dimension.high):
            load_config(apply(base, {dimension.name: value}))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["study=quickstrt"], "did you mean 'quickstart'"),
        (["store.path=S"], "expected study=NAME"),
        (["store.path=S", "study.trials=3"], "expected study=NAME"),
        (["study=quickstart", "seed=5"], "study.first_seed=5"),
        (["study=quickstart", "study.objectives=[val_loss]", "study.horizon=333"], "multiple of eval.every"),
        (
            ["study=diary", "train.stop_when_generalised=true", "train.stop_horizon=1000", "store.path=S"],
            "train.stop_horizon=1000",
        ),
        (["study=quickstart", "study.trails=3"], "did you mean 'study.trials'"),
        (["study=quickstart", "study.trials=0"], "at least 1"),
        (["study=quickstart", "study.sampler.name=tp"], "did you mean 'tpe'"),
        (["study=quickstart", "modl.layers=1"], "did you mean 'model.layers'"),
        (["study=quickstart", "study.horizon=5000"], "beyond train.steps"),
        (["study=quickstart", "force=true"], "expected force=false"),
        (["study=quickstart", "study.compare=32", "store.path=S"], "still to be made"),
    ],
)
def test_refusals_of_the_command(
    words: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert expected in error
    assert len(error.splitlines()) == 1
    assert "secret" not in error
    assert not list(tmp_path.iterdir())
