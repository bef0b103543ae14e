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
from grok.analysis.proposals import given_again, proposal
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


def toy(*typed: str) -> Observations:
    store = simulate([Truth({"seed": i, **TOY}, 400 + i) for i in range(6)])
    store.path = None
    argv = ["python", "-m", "grok.run", "-m", "experiment=toy", *typed, "seed=range(0,6)", "workers=2", "store.path=x"]
    store.sweeps = [{"argv": argv}, {"argv": ["python", "-m", "sweeps.repeat", "--store", "x", "precision=float64"]}]
    return store


def test_a_proposal_has_the_settings_that_the_first_sweep_typed() -> None:
    crossed = "grok sweep sweep=crossed"
    assert proposal(crossed, toy()) == f"{crossed} experiment=toy"
    typed = ("optim.lr=0.03", "train.steps=200")
    assert proposal(crossed, toy(*typed)) == f"{crossed} experiment=toy optim.lr=0.03 train.steps=200"
    assert proposal(f"{crossed} train.steps=50", toy(*typed)).endswith(" train.steps=50 experiment=toy optim.lr=0.03")
    assert proposal(crossed, toy(*typed), any_task=False) == crossed


def test_a_command_is_given_again_for_the_store_where_it_lies() -> None:
    for named in (["--store", "old"], ["--store=old"], ["store.path=old"]):
        argv = ["python", "-m", "grok.run", "-m", *named, "seed=range(0,4)"]
        assert given_again(argv, Path("new")) == "grok sweep 'seed=range(0,4)' store.path=new"


@pytest.mark.parametrize("path", ["my runs/it's here", "/data/a=b,c/store", "results/x", "/tmp/{odd}"])
def test_a_path_survives_the_shell_and_hydra(path: str) -> None:
    store = toy()
    store.path = Path(path)
    words = shlex.split(proposal("grok sweep sweep=crossed", store))
    (parsed,) = OverridesParser.create().parse_overrides([words[-1]])
    assert parsed.key_or_group == "store.path"
    assert parsed.value() == path
    many = simulate(census(24, np.random.default_rng(0)))
    many.path = Path(path)
    words = shlex.split(proposal("grok branch --store STORE", many))
    assert words[words.index("--store") + 1] == path


def test_every_question_proposes_for_the_store_and_the_default_store_needs_no_name() -> None:
    store = toy()
    store.path = Path("results/store")
    for question in QUESTIONS:
        assert "store.path" not in proposal(question.command, store, question.any_task)
    store.path = Path("elsewhere")
    commands = {q.name: proposal(q.command, store, q.any_task) for q in QUESTIONS if q.command}
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
        refused = {2} if words[1] in ("branch", "repeat") else set()  # the store may have too few seeds to choose from
        assert grok([*words[1:], "dry_run=true"]) in {0, *refused}, f"{command}\n{out.getvalue()}"
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scan", "decay", "few", "modulus"])
def test_every_proposed_command_runs_as_pasted(kind: str, tmp_path: Path) -> None:
    store = Observations.read(write(stores()[kind], tmp_path / "store"))
    report = compile_report(store)
    commands = [gap.command for gap in report.missing] + [fact.text for fact in report.heading if fact.is_command]
    assert len(commands) > 8
    for command in [*commands, report.next_step.text]:
        planned(command)
