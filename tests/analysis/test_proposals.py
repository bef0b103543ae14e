"""What the report proposes to type: for this store, with all settings of its runs, ready for a shell."""

import contextlib
import io
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from grok.__main__ import main as grok
from grok.analysis.answers import compile_report
from grok.analysis.observations import Observations
from grok.analysis.proposals import CENSUS, LONGER, given_again, proposal
from grok.analysis.studies import QUESTIONS
from tests.analysis.simulate import Truth, census, simulate, write

TOY: dict[str, Any] = {
    "experiment": "toy",
    "task.operation": "x+y",
    "task.modulus": 31,
    "task.train_fraction": 0.7,
    "task.sequence": "a b =",
    "model.layers": 1,
    "model.d_model": 32,
    "model.d_ff": 128,
    "model.norm": "none",
    "model.final_norm": False,
    "optim.lr": 0.01,
    "optim.weight_decay": 0.5,
    "train.steps": 1000,
    "train.batch_size": 128,
    "train.stop_horizon": 1000,
    "eval.every": 25,
    "numerics.compile": False,
}


def toy(**overrides: Any) -> Observations:
    changed = {k.replace("__", "."): v for k, v in overrides.items()}
    store = simulate([Truth({"seed": i, **TOY, **changed}, 400 + i) for i in range(6)])
    store.path = None
    return store


def proposed(command: str, store: Observations) -> str:
    return proposal(command, store, any_task=True)


def test_a_set_up_is_named_and_every_setting_beside_it_is_given() -> None:
    crossed = "grok sweep sweep=crossed"
    assert proposed(crossed, toy()) == f"{crossed} experiment=toy"
    changed = toy(optim__lr=0.03, train__steps=200, precision="float64")
    assert proposed(crossed, changed) == f"{crossed} experiment=toy precision=float64 optim.lr=0.03 train.steps=200"
    back = toy(optim__lr=0.001)  # the default, but not the set-up's
    assert proposed(crossed, back) == f"{crossed} experiment=toy optim.lr=0.001"


def test_a_set_up_of_the_users_own_is_spelt_out() -> None:
    store = simulate(census(6, np.random.default_rng(0), experiment="mine", task__modulus=97, task__operation="x*y"))
    words = shlex.split(proposed("grok sweep sweep=census", store))
    assert "task.modulus=97" in words
    assert not any(word.startswith("experiment=") for word in words)
    OverridesParser.create().parse_overrides(words[2:])


def test_a_named_sweep_keeps_what_it_sets_itself() -> None:
    long = proposed("grok sweep sweep=long_census", toy(train__steps=200))
    assert "train.steps" not in long
    decay = proposed("grok sweep sweep=weight_decay", toy(optim__weight_decay=0.9))
    assert "optim.weight_decay" not in decay


def test_where_longer_runs_are_missing_longer_ones_are_proposed() -> None:
    store = toy(train__steps=200)
    command = "grok sweep sweep=census"
    assert proposal(command, store, any_task=True, longer=True).endswith(" train.steps=800")
    long = proposal("grok sweep sweep=long_census", store, any_task=True, longer=True)
    assert "train.steps" not in long, "the sweep has its own length"


def test_a_few_longer_runs_do_not_set_the_length_of_what_is_proposed() -> None:
    """Seed 0 was trained on, and to other weight decays: most seeds were not."""
    short = [Truth({"seed": s, "train.steps": 400}, 900) for s in range(1, 40)]
    long = Truth({"seed": 0, "train.steps": 4000, "train.stop_when_generalised": True}, 900)
    store = simulate([long, *short])
    assert "train.steps=400" in proposal("grok sweep sweep=order_alone", store, any_task=True)
    assert "stop_when_generalised" not in proposal("grok sweep sweep=order_alone", store, any_task=True)
    assert f"train.steps={LONGER * 400}" in proposal("grok sweep sweep=census", store, any_task=True, longer=True)


def test_a_command_about_one_condition_takes_one_in_which_seeds_generalised() -> None:
    truths = [
        Truth({"seed": i, "optim.weight_decay": wd, "eval.every": 250}, time)
        for wd, time in ((0.0, 90_000.0), (1.0, 900.0), (2.0, 900.0))
        for i in range(9)
    ]
    for command in ("grok sweep sweep=crossed", "grok sweep sweep=census"):
        assert "optim.weight_decay=1.0" in shlex.split(proposed(command, simulate(truths)))


def test_a_command_is_given_again_for_the_store_where_it_lies() -> None:
    for named in (["--store", "old"], ["--store=old"], ["store.path=old"]):
        argv = ["python", "-m", "grok.run", "-m", *named, "seed=range(0,4)"]
        assert given_again(argv, Path("new")) == "python -m grok.run -m 'seed=range(0,4)' store.path=new"


@pytest.mark.parametrize("path", ["my runs/it's here", "/data/a=b,c/store", "results/x", "/tmp/{odd}"])
def test_a_path_survives_the_shell_and_hydra(path: str) -> None:
    store = toy()
    store.path = Path(path)
    words = shlex.split(proposed("grok sweep sweep=crossed", store))
    (parsed,) = OverridesParser.create().parse_overrides([words[-1]])
    assert parsed.key_or_group == "store.path"
    assert parsed.value() == path
    many = simulate(census(24, np.random.default_rng(0)))
    many.path = Path(path)
    words = shlex.split(proposed("grok branch --store STORE", many))
    assert words[words.index("--store") + 1] == path


def test_seeds_are_chosen_only_where_there_are_enough() -> None:
    few, enough = (simulate(census(n, np.random.default_rng(0))) for n in (23, 24))
    for command in ("grok repeat --best 12", "grok branch --store STORE", "grok layers --recipient 0 --donor 1"):
        assert proposed(command, few).startswith(CENSUS)
        assert proposed(command, enough).startswith(command.removesuffix(" STORE"))


def test_every_question_proposes_for_the_store_and_the_default_store_needs_no_name() -> None:
    store = toy()
    store.path = Path("results/store")
    for question in QUESTIONS:
        assert "store.path" not in question.command_for(store)
    store.path = Path("elsewhere")
    commands = {q.name: q.command_for(store) for q in QUESTIONS if q.command}
    assert all("elsewhere" in command for command in commands.values())
    assert "experiment=toy" not in commands["parity"], "it asks of the default regime"
    assert commands["search"] == "grok search study=quickstart store.path=elsewhere"


def stores() -> dict[str, list[Truth]]:
    rng = np.random.default_rng(3)
    scan = [
        Truth({"seeds.init": i, "seeds.order": 8, "eval.every": 250}, float(rng.lognormal(9, 1))) for i in range(30)
    ]
    decay = [
        Truth({"seed": i, "optim.weight_decay": wd, "eval.every": 250}, float(rng.lognormal(9, 1)))
        for wd in (0.0, 0.1, 1.0)
        for i in range(10)
    ]
    return {"scan": scan, "decay": decay, "few": census(2, rng), "modulus": census(30, rng, task__modulus=97)}


def planned(command: str) -> str:
    """Return what a proposed command prints when it is pasted with ``dry_run=true``."""
    words = shlex.split(command)
    assert words[0] == "grok"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [*words, "dry_run=true"])
        assert grok([*words[1:], "dry_run=true"]) == 0, f"{command}\n{out.getvalue()}"
    return out.getvalue()


@pytest.mark.parametrize("kind", ["few", pytest.param("scan", marks=pytest.mark.slow)])
def test_designs_start_from_what_the_store_has(kind: str, tmp_path: Path) -> None:
    store = Observations.read(write(stores()[kind], tmp_path / "store"))
    for question in QUESTIONS:
        if question.name in ("layers", "branching", "repeatability"):
            assert " 0 to train" not in planned(question.command_for(store))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scan", "decay", "few", "modulus"])
def test_every_proposed_command_runs_as_pasted(kind: str, tmp_path: Path) -> None:
    store = Observations.read(write(stores()[kind], tmp_path / "store"))
    report = compile_report(store)
    commands = [gap.command for gap in report.missing] + [fact.text for fact in report.heading if fact.is_command]
    assert len(commands) > 8
    for command in [*commands, report.next_step.text]:
        planned(command)
