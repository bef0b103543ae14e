"""A study finds what is there, spends no run twice, and makes the same trials however often it is killed."""

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from grok.__main__ import main as grok
from grok.analysis.answers import compile_report
from grok.analysis.criteria import DIARY
from grok.analysis.observations import Observations, searches
from grok.analysis.proposals import confirmation
from grok.commands.compose import apply
from grok.config import ArithmeticConfig, flatten, identify, load_config
from grok.errors import ConfigError, TrainingError
from grok.plugins import Code, activate
from grok.store import Purposes, StoreWriter, open_store
from grok.streams import Stream
from grok.sweeps.search.__main__ import compose_study
from grok.sweeps.search.config import StudyConfig, split_study
from grok.sweeps.search.driver import Search, by_execution
from grok.sweeps.search.record import StudyRecord
from grok.sweeps.search.space import (
    Plain,
    SeedOutcome,
    direction_of,
    read_outcomes,
    read_space,
    score_of,
    value_of,
    worded,
)
from tests.analysis.simulate import Truth, row, write

SPACE = {
    "optim": {
        "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "weight_decay": {"low": 0.0, "high": 2.0},
    }
}
BASE = {"optim": {"lr": 1e-3, "weight_decay": 0.1}, "train": {"steps": 1000}, "eval": {"every": 100}}
VARIED = ("seed", "optim.lr", "optim.weight_decay", "train.steps", "eval.every")


def true_time(config: ArithmeticConfig) -> float:
    """Return the step of generalisation: soonest at lr 1e-2 and weight decay 1, with seed noise."""
    distance = math.log10(config.optim.lr / 1e-2) ** 2 + (config.optim.weight_decay - 1) ** 2
    noise = float(Stream("order", config.seed).normal(1)[0])
    return 250 * math.exp(0.6 * distance + 0.2 * noise)


class World:
    """Trains nothing, stores simulated runs, and counts them."""

    def __init__(self, path: Path, fails: Callable[[ArithmeticConfig], bool] = lambda config: False) -> None:
        self.path = path
        self.fails = fails
        self.trained: list[str] = []
        self.said: list[str] = []

    def train(self, settings: Sequence[Plain], design: Purposes) -> bool:
        configs = [load_config(one) for one in settings]
        with StoreWriter(self.path, thorough=False) as writer:
            new = {identify(config).run_id: config for config in configs}
            claim = writer.claim(list(new))
            rows = []
            for run_id in claim.granted:
                config = new[run_id]
                assert isinstance(config, ArithmeticConfig)
                overrides = {name: value for name, value in flatten(config).items() if name in VARIED}
                status = "failed" if self.fails(config) else "completed"
                rows.append(row(Truth(overrides, true_time(config), status=status)))
            assert {r.identity.run_id for r in rows} == set(claim.granted)
            writer.commit(rows)
            self.trained += claim.granted
        return True

    def search(self, study: dict[str, Any] | None = None, space: Any = None, **base: Any) -> Search:
        settings = {**BASE, **base, "study": {"name": "test", "trials": 12, "seeds": 4, "parallel": 3, **(study or {})}}
        settings["store"] = {"path": str(self.path)}
        config, _, plain = split_study(settings)
        return Search(config, read_space(space or SPACE, "arithmetic"), plain, self.train, self.said.append)

    def run(self, study: dict[str, Any] | None = None, space: Any = None) -> list[Any]:
        """Carry a study out; return what its trials are."""
        search = self.search(study, space)
        record = search.record()
        assert search.run(record)
        return trials(record)


def trials(record: StudyRecord) -> list[Any]:
    """Return all that a trial is, but when it was made."""
    return [
        (t.number, t.state.name, t.params, t.values, t.intermediate_values, t.user_attrs, t.system_attrs)
        for t in record.trials()
    ]


class Killed(BaseException):
    """Ends a study wherever it is, as a kill would."""


STUDY = {"trials": 30, "seeds": 5, "parallel": 5, "sampler": {"startup": 8}}


def test_it_finds_the_optimum_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    search = world.search(STUDY)
    record = search.record()
    assert search.run(record)
    best = record.best()
    assert best is not None
    assert best.values[0] < 0.5 * record.trials()[0].values[0], "trial 0 is the default"
    assert record.trials()[0].params == {"optim.lr": 1e-3, "optim.weight_decay": 0.1}
    assert 10**-2.5 < best.params["optim.lr"] < 10**-1.5
    assert open_store(tmp_path).run_ids() == set(world.trained)
    assert len(world.trained) == 150
    (data,) = searches(tmp_path)
    assert capfd.readouterr().err == "", "Optuna logs its own lines"
    assert min(data["trials"], key=lambda t: t["value"])["number"] == best.number
    assert all(len(t["runs"]) == 5 for t in data["trials"])
    store = Observations.read(tmp_path)
    new, default, compare = map(shlex.split, confirmation(data, store))
    assert set(new) - set(default) == {f"{name}={value!r}" for name, value in best.params.items()}
    assert set(default) - set(new) == {"optim.lr=0.001", "optim.weight_decay=0.1"} and "seed=range(5,69)" in new
    assert [grok([*words[1:], "dry_run=true"]) for words in (new, default)] == [0, 0] and compare[1] == "compare"
    assert compile_report(store).next_step.text.startswith(shlex.join(new))
    store.sweeps = [{"argv": ["python", "-m", "grok.run", "-m", *words[2:]]} for words in (new, default)]
    assert confirmation(data, store) == [shlex.join(compare)]
    assert confirmation({**data, "default": best.params}, store) == [], "it is the default"


def test_stored_runs_are_used(tmp_path: Path) -> None:
    world = World(tmp_path)
    study = {"trials": 6, "seeds": 3, "first_seed": 7}
    world.run({**study, "name": "first"})
    before = len(world.trained)
    world.run({**study, "name": "second"})  # the same sampler seed asks the same settings
    assert len(world.trained) == before
    runs = open_store(tmp_path).runs()
    assert set(runs["seed"]) == {7, 8, 9}
    assert set(runs.groupby("config_id")["seed"].nunique()) == {3}, "seeds are instances"


def test_a_trial_with_a_failed_run_fails_and_the_study_goes_on(tmp_path: Path) -> None:
    """Fast settings fail, here for one seed of three: such a trial is never the best, whatever its other seeds did."""
    world = World(tmp_path, lambda config: config.optim.lr > 2e-3 and config.seed == 1)
    search = world.search({"trials": 10, "seeds": 3, "sampler": {"startup": 3}})
    record = search.record()
    assert search.run(record)
    found = {t.number: t for t in record.trials()}
    failed = {n for n, t in found.items() if t.params["optim.lr"] > 2e-3}
    assert failed
    assert failed == {n for n, t in found.items() if t.state.name == "FAIL"}
    assert {t.state.name for n, t in found.items() if n not in failed} == {"COMPLETE"}
    assert all("1 of 3 runs failed" in found[n].user_attrs["reason"] for n in failed)
    best = record.best()
    assert best is not None and best.params["optim.lr"] <= 2e-3


def test_another_definition_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run({"trials": 3})
    with pytest.raises(ConfigError, match=r"study\.seeds"):
        world.run({"trials": 3, "seeds": 5})
    with pytest.raises(ConfigError, match=r"eval\.every"):
        world.search({"trials": 3}, eval={"every": 50}).record()
    with pytest.raises(ConfigError, match=r"space\.optim\.lr"):
        world.run({"trials": 3}, {"optim.lr": {"low": 1e-3, "high": 1e-1}})


def test_a_study_of_changed_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "class Same:\n    def __init__(self, parameters): pass\n    def weights(self, step, parameters): pass\n"
    (tmp_path / "mine.py").write_text(code)
    optim = {**BASE["optim"], "intervention": {"_target_": "mine.Same"}}
    world = World(tmp_path / "S")
    try:
        search = world.search(optim=optim)
        record = search.record()
        world.search(optim=optim).record()
        elsewhere = replace(search, train=lambda settings, design: True)  # as if they were stored under other names
        with pytest.raises(TrainingError, match="your own code or the data changed while they trained"):
            elsewhere.run(record)
        (tmp_path / "mine.py").write_text(code + "# changed\n")
        with pytest.raises(
            ConfigError, match=r"has other settings \(code.mine.Same\): use those, or another study.name"
        ):
            world.search(optim=optim).record()
    finally:
        activate(Code())


STUDIES: dict[str, dict[str, Any]] = {
    "tpe": {"sampler": {"name": "tpe", "startup": 4}},
    "random": {"sampler": {"name": "random"}},
}


class Fuse:
    """Raises before or after the n-th change of any study's record."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        self.changes = 0
        for name in ("add", "note", "end"):
            monkeypatch.setattr(StudyRecord, name, self._guarded(getattr(StudyRecord, name)))

    def _guarded(self, change: Any) -> Any:
        def guarded(*given: Any, **named: Any) -> Any:
            if self.left <= 0:
                raise Killed
            self.left -= 1
            self.changes += 1
            return change(*given, **named)

        return guarded


@pytest.mark.parametrize("kind", STUDIES)
def test_killed_anywhere_it_makes_the_same_trials(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse = Fuse(monkeypatch)
    study = {"trials": 9, **STUDIES[kind]}
    whole = World(tmp_path / "whole").run(study)
    assert len(whole) == 9
    changes, world = fuse.changes, World(tmp_path / "killed")
    deaths = 0
    while True:  # killed again and again, each time a little later
        fuse.left = 8 + deaths % 3
        try:
            again = world.run(study)
        except Killed:
            deaths += 1
            continue
        break
    assert deaths >= changes // 12
    assert again == whole
    assert len(world.trained) == len(set(world.trained)), "a stored run was trained again"


def test_two_processes_on_one_study(tmp_path: Path) -> None:
    alone = World(tmp_path / "alone").run({"trials": 6})
    world = World(tmp_path / "both")
    first, second = world.search({"trials": 6}), world.search({"trials": 6})
    here, there = first.record(), second.record()
    plain_train = world.train

    def train_while_the_other_finishes(settings: Any, design: Any) -> bool:
        second.train = plain_train
        assert second.run(there)
        return plain_train(settings, design)

    first.train = train_while_the_other_finishes
    assert first.run(here)
    assert trials(here) == trials(there) == alone


def test_the_journal_survives_a_torn_last_line(tmp_path: Path) -> None:
    world = World(tmp_path / "torn")
    first = world.run({"trials": 3})
    journal = tmp_path / "torn" / "search" / "test.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code":8,"worker_id":"x","tri')
    assert world.run({"trials": 6})[:3] == first
    assert world.run({"trials": 6}) == World(tmp_path / "other").run({"trials": 6})


MIXED = {
    "optim": {"grokfast": {"choices": ["none", "ema", "ma"]}, "warmup_steps": {"low": 0, "high": 20, "step": 5}},
    "model.d_model": {"choices": [32, 64]},
}


def test_words_and_whole_numbers() -> None:
    space = read_space(MIXED, "arithmetic")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    seen = set()
    for _ in range(40):
        chosen = study.ask(space.distributions).params
        seen.add(chosen["optim.grokfast"])
        assert chosen["optim.warmup_steps"] in (0, 5, 10, 15, 20)
        assert isinstance(chosen["optim.warmup_steps"], int)
        load_config(apply({}, {**chosen, "seed": 3}))
    assert seen == {"none", "ema", "ma"}


def test_the_default_is_a_point_only_where_the_space_holds_it() -> None:
    base = flatten(load_config({}))
    inside = read_space({"optim.lr": {"low": 1e-4, "high": 1e-2}, **MIXED}, "arithmetic")
    assert inside.default(base) is None  # d_model=128 is no choice
    inside = read_space({"optim.lr": {"low": 1e-4, "high": 1e-2}}, "arithmetic")
    assert inside.default(base) == {"optim.lr": 1e-3}
    assert read_space({"optim.lr": {"low": 2e-3, "high": 1e-2}}, "arithmetic").default(base) is None


def outcome(time: int | None, acc: float = 0.5, loss: float = 2.0) -> SeedOutcome:
    return SeedOutcome("x", "completed", None, 1000, time, loss, acc)


def test_medians_with_censored_seeds() -> None:
    def value(*times: int | None) -> float:
        return value_of("median_time", [outcome(t) for t in times])

    assert value(100, 300, 200) == 200
    assert value(100, 300, None) == 300
    assert value(100, 200, 300, 400) == 250
    # half or more censored: above the budget, the better the more seeds got there
    assert 1000 < value(100, 200, None, None) < value(100, None, None, None) < value(None, None, None, None) == 2000
    assert value(999, 999, 999, None) < 1000
    said = [worded("median_time", step, 1000) for step in (300.0, 2000.0)]
    assert [*said, worded("val_loss", 2000.0, 1000)] == ["median_time 300", "median_time above 1,000", "val_loss 2000"]


def test_shares_and_losses() -> None:
    seeds = [outcome(100, 0.99), outcome(None, 0.5), outcome(700, 0.981), outcome(None, math.nan, math.nan)]
    assert value_of("generalised_share", seeds) == 0.5
    assert value_of("val_loss", seeds) == 2.0
    assert direction_of("val_loss") == "minimize" and direction_of("logit_acc") == "maximize"
    assert score_of("logit_acc", outcome(None, 0.75)) == pytest.approx(math.log(3))
    best, worst = score_of("logit_acc", outcome(9, 1.0)), score_of("logit_acc", outcome(None, math.nan))
    assert best == pytest.approx(-worst)
    # no seed is super in either trial, and yet the one with the better seeds scores higher
    lower, higher = ([outcome(None, a) for a in (0.1, other)] for other in (0.2, 0.3))
    assert value_of("logit_acc", lower) < value_of("logit_acc", higher)


def test_a_diverged_run_did_not_generalise(tmp_path: Path) -> None:
    base = {"train.steps": 1000, "eval.every": 100}
    truths = [Truth({**base, "seed": 1}, 300.0), Truth({**base, "seed": 2}, 300.0, status="diverged")]
    store = open_store(write(truths, tmp_path))
    ids = [row(t).identity.run_id for t in truths]
    found = read_outcomes(store, ids, 1000)
    assert found[ids[0]].grokked_step is not None
    assert found[ids[0]].val_acc > 0.9
    assert found[ids[1]].grokked_step is None
    assert math.isnan(found[ids[1]].val_acc)


def test_the_diary_study_judges_by_the_diary() -> None:
    _, _, base = split_study(compose_study(["study=diary"]))
    assert base["train"]["steps"] == DIARY.horizon


def test_base_yaml_says_the_defaults() -> None:
    study, space, _ = split_study(compose_study(["study=base"]))
    assert study == StudyConfig()
    assert space == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"objective": "median_tim"}, "did you mean 'median_time'"),
        ({"name": "a/b"}, "letters, digits"),
        ({"space": {}}, "is empty"),
        ({"space": {"optim": {"lrr": {"low": 1, "high": 2}}}}, "did you mean 'optim.lr'"),
        ({"space": {"optim": {"lr": {"low": 2e-3, "high": 1e-3}}}}, "`low <= high` must hold"),
        ({"space": {"optim": {"weight_decay": {"low": 0.0, "high": 1.0, "log": True}}}}, "`low > 0` must hold"),
        ({"space": {"seed": {"choices": [1, 2]}}}, "a seed is a replicate"),
        ({"space": {"train": {"steps": {"low": 10, "high": 20}}}}, "the same for all trials"),
        ({"space": {"model": {"norm": {"choices": ["post", "prae"]}}}}, "model.norm='prae'"),
    ],
)  # fmt: skip
def test_impossible_studies(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_space(split_study({"study": given})[1], "arithmetic")


NAMED = sorted(
    path.stem for path in (Path(__file__).parents[2] / "conf" / "study").glob("*.yaml") if path.stem != "base"
)


@pytest.mark.parametrize("name", NAMED)
def test_every_named_study_is_sound(name: str) -> None:
    study, raw, base = split_study(compose_study([f"study={name}"]))
    assert study.name == name
    space = read_space(raw, str(base["mode"]))
    search = Search(study, space, base, by_execution(()), print)
    assert "trials of" in search.plan()
    for setting, declared in space.declared.items():
        for value in declared.get("choices") or (declared["low"], declared["high"]):
            load_config(apply(base, {setting: value}))
