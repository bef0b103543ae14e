"""Every injected failure is caught by what its row says, survived, and reported."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from grok.checkpoints import save_checkpoint
from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.execute.resume import StoredCheckpoints
from grok.gpt.training.engine import train
from grok.records import Checkpoint, Job, RunResult
from grok.text.corpus import Corpus
from tests.gpt.conftest import RUN, differences, prepare_text, result_of, run, small, stopped, text_of
from tests.gpt.faults import (
    AT,
    FAULTS,
    SMALL,
    caught,
    injected,
    settings_of,
    table,
)

PAGE = Path(__file__).parents[2] / "results" / "faults" / "language_models.md"


def results(name: str, data: Path, store: Path) -> list[RunResult]:
    """Return the results of a run with the fault: those of abandoned branches, then its own."""
    fault, kept = FAULTS[name], StoredCheckpoints(str(store), RUN)
    kept.folder.parent.mkdir(parents=True)
    found = []
    config = load_config(settings_of(name, str(data)))
    with injected():
        for event in train([Job(run_id=RUN, config=config, kept=kept)]):
            if isinstance(event, Checkpoint):
                folder = save_checkpoint(kept.folder, event, keep=None)
                if event.step == fault.damaged:
                    (folder / "tensors.safetensors").write_bytes(b"torn")
            elif isinstance(event, RunResult):
                found.append(event)
    return found


ALIKE = ("gradient_explodes", "corrupted_twice", "skips_without_end", "rate_spikes", "moment_flip")
"""Failures that a fast test's failure is like."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in FAULTS])
def test_a_fault_is_caught_and_survived(
    name: str, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = FAULTS[name]
    *abandoned, end = results(name, corpus.path, tmp_path)
    first = (abandoned or [end])[0]
    step, event = caught(first.step_log)
    at = fault.trainer.at
    assert (event, step - at <= fault.within) == (fault.event, True), (event, step - at)
    if fault.event != "rising":
        assert step >= at, "nothing is wrong before the fault"
    assert (end.run_id, end.status, len(abandoned)) == (RUN, "completed", fault.rollbacks)
    assert [r.status for r in abandoned] == ["rolled_back"] * fault.rollbacks
    assert all(r.parent_run_id == RUN and r.stop_reason == fault.event for r in abandoned)
    if abandoned:
        back_to = abandoned[-1].branch_step
        assert back_to is not None and back_to < at
        assert fault.back_to in (None, back_to)
        assert any(p.event == "rolled_back" and p.step == back_to + 1 for p in end.step_log)
    else:
        assert end.step_log[-1].skipped_steps == 1
    assert end.curve[-1].val_loss < end.curve[0].val_loss + 0.5, "it learns on"
    if fault.damaged is not None:
        assert f"step {fault.damaged}" in capsys.readouterr().err


def test_a_resumed_run_rolls_back(corpus: Corpus) -> None:
    """What the last words of a diverged run advise: its policy was `stop`, so its checkpoint has no older states."""
    settings = settings_of("corrupted_batch", str(corpus.path))
    stops = copy.deepcopy(settings)
    stops["stability"]["policy"] = "stop"
    with injected():
        *_, diverged = run(load_config(stops))
        assert isinstance(diverged, RunResult) and (diverged.status, diverged.steps) == ("diverged", AT - 1)
        checkpoint = stopped(load_config(stops), AT - 3)
        settings["resume"] = {"run": "a" * 20, "step": AT - 3, "changes": ["stability.policy"]}
        abandoned, end = (
            e for e in run(load_config(settings), replace(checkpoint, run_id="a" * 20)) if isinstance(e, RunResult)
        )
        *_, killed = run(load_config(settings), replace(checkpoint, run_id="a" * 20), stop_at=AT + 5)
        assert isinstance(killed, Checkpoint)
        assert differences(end, result_of(run(load_config(settings), killed))) == []
    assert (abandoned.status, abandoned.branch_step, end.status) == ("rolled_back", AT - 3, "completed")
    assert end.steps == SMALL["train"]["steps"] and (end.parent_run_id, end.branch_step) == ("a" * 20, AT - 3)


def test_a_run_whose_tries_are_used_up_says_so(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_of("corrupted_twice", str(corpus.path))
    settings["stability"]["tries"] = 1
    with injected():
        assert result_of(run(load_config(settings))).status == "diverged"
    assert f"no rollback from step {AT} (spike): stability.tries=1" in capsys.readouterr().err


def test_the_page_lists_every_fault() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")
    assert len(FAULTS) >= 12


def noisy(data: Path, **changes: Any) -> GptConfig:
    """Return the settings of a small run with the checks of every run, all of which are acted on."""
    tiny = {"model__layers": 1, "model__d_model": 16, "model__heads": 2, "train__batch_size": 2, "train__steps": 500}
    rate = {"optim__lr": 1e-2, "optim__schedule": "constant", "optim__warmup_steps": 20}
    seldom = {"eval__every": 5000, "eval__windows": 4, "eval__sample_tokens": 0}
    acts = {"stability__policy": "new_data_seed", "stability__signals": "all"}
    return small(data, **{**tiny, **rate, **seldom, **acts, **changes})


HEALTHY: Final = [
    {"optim__lr": lr, "train__batch_size": size, "optim__betas": [0.9, beta2], **more}
    for lr in (3e-3, 1e-2, 3e-2)
    for size in (1, 2, 8)
    for beta2 in (0.95, 0.999)
    for more in (
        {},
        {"optim__clip": 0.0, "optim__warmup_steps": 0},
        {"model__dropout": 0.2, "data__sampling": "random", "model__tied": False},
    )
][:50]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["long", "short"])
def test_healthy_runs_give_no_alarm(corpus: Corpus, tmp_path: Path, text: str) -> None:
    data = corpus if text == "long" else prepare_text(tmp_path, text_of(90))
    alarms = {}
    for seed, changes in enumerate(HEALTHY):
        made = result_of(run(noisy(data.path, seed=seed, **changes)))
        events = [(p.step, p.event) for p in made.step_log if p.event]
        if events or made.status != "completed":
            alarms[repr(changes)] = made.status, events
    assert len(HEALTHY) == 50 and alarms == {}
