"""Spikes are caught in their step; rollbacks are branches that keep the model seed and lose nothing."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.checkpoints import load_checkpoint, save_checkpoint
from grok.config.gpt import EVENTS, StabilityConfig
from grok.gpt.training.stability import Branch, Incident, Signal, Watch, return_step
from grok.gpt.training.stability import onset as onset_of
from grok.records import RunResult, StepPoint
from grok.streams import Stream
from grok.text.corpus import Corpus
from tests.gpt.conftest import RUN, Build, differences, prepare_text, result_of, run, stopped, text_of, trainer_of


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Words, and in their midst one passage of signs that the model has never seen."""
    picks = Stream("split", 2).integers(400, 12)
    garbage = "".join("#$%&*@+=~^<>"[i] for i in picks)
    words = text_of(1500)
    half = len(words) // 3
    return prepare_text(tmp_path_factory.mktemp("dirty"), words[:half] + garbage + words[half:])


def of(dirty: Corpus, **changes: Any) -> dict[str, Any]:
    return {
        "data__path": str(dirty.path),
        "train__batch_size": 2,
        "train__steps": 80,
        "optim__lr": 1e-2,
        "optim__schedule": "constant",
        "eval__every": 20,
        "eval__sample_tokens": 0,
        "stability__spike": 0.8,
        "stability__sigma": 4.0,
        "stability__window": 16,
        "stability__snapshot_every": 8,
        "stability__margin": 4,
        "stability__skip_steps": 1,
        **changes,
    }


def onset(settings: Build, dirty: Corpus) -> int:
    return result_of(run(settings(**of(dirty)))).steps + 1


def test_a_spike_is_caught_before_its_update(settings: Build, dirty: Corpus) -> None:
    logged = result_of(run(settings(**of(dirty, stability__policy="log"))))
    stopped = result_of(run(settings(**of(dirty))))
    assert (stopped.status, stopped.stop_reason) == ("diverged", "spike")
    first = next(p.step for p in logged.step_log if p.event == "spike")
    assert stopped.steps == first - 1 and stopped.curve[-1].step == first - 1
    last = stopped.step_log[-1]
    assert (last.step, last.event) == (first, "spike")
    assert last.train_loss == logged.step_log[first - 1].train_loss > stopped.step_log[-2].train_loss + 0.8
    assert logged.status == "completed" and logged.steps == 80


def test_a_resumed_run_rolls_back_the_same(settings: Build, dirty: Corpus, tmp_path: Path) -> None:
    """Also from a checkpoint of before, which has the states that a rollback may return to inside."""
    config = settings(**of(dirty, stability__policy="skip_data", save="final"))
    whole, first = run(config), onset(settings, dirty)
    checkpoint = stopped(config, first - 2)
    assert checkpoint.parts
    loaded = []
    for parts in (checkpoint.parts, ()):
        save_checkpoint(tmp_path / RUN, replace(checkpoint, parts=parts))
        loaded.append(load_checkpoint(tmp_path / RUN))
    same = lambda a, b: torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)  # noqa: E731 (a step's log has gaps)
    assert all(same(t, old.tensors[n]) for new, old in [loaded] for n, t in new.tensors.items())
    assert loaded[0].tensors.keys() == loaded[1].tensors.keys() == checkpoint.tensors.keys()
    rest = run(config, loaded[0])
    ours, theirs = ([e for e in events if isinstance(e, RunResult)] for events in (whole, rest))
    assert [r.run_id for r in ours] == [r.run_id for r in theirs] and len(ours) == 2
    assert [differences(a, b) for a, b in zip(ours, theirs, strict=True)] == [[], []]

    later = stopped(config, first + 12)
    assert differences(result_of(whole), result_of(run(config, later))) == []


def test_data_moves_and_model_seed_stays(settings: Build, dirty: Corpus) -> None:
    config = settings(**of(dirty))
    trainer = trainer_of(config, dirty)
    stability = StabilityConfig(policy="new_data_seed")

    def starts(k: int, branch: Branch) -> list[list[int]]:
        return [numbers.tolist() for numbers in trainer.batches.starts(k, branch)]

    first = Branch()
    second = first.next(stability, back_to=8, skip=40)
    assert (second.number, second.order, second.skipped_samples, second.lr_factor, second.step) == (1, 1, 0, 1.0, 8)
    third = second.next(stability, back_to=8, skip=40)
    assert starts(9, first) != starts(9, second) != starts(9, third)
    skipped = first.next(StabilityConfig(policy="skip_data"), back_to=8, skip=40)
    assert starts(9, skipped) == starts(29, first)
    cut = first.next(StabilityConfig(policy="cut_lr"), back_to=8, skip=40)
    assert cut.next(StabilityConfig(policy="cut_lr"), back_to=4, skip=1).lr_factor == 0.25


def test_each_try_of_an_incident_goes_further_back() -> None:
    kept, config, incident = [0, 100, 200, 300, 400], StabilityConfig(tries=4), Incident()
    back = []
    for k in (410, 405, 440, 412):
        assert incident.another_try(k, config)
        back.append(return_step(kept, 410 - incident.margin(config)))
    assert back == [300, 300, 200, 0]
    assert not incident.another_try(412, config)
    assert return_step([300, 400], 10) == 300


def test_a_calm_stretch_ends_an_incident() -> None:
    config = StabilityConfig(tries=2)
    incident = Incident()
    assert incident.another_try(100, config) and incident.another_try(150, config)
    assert incident.margin(config) == 100
    late = replace(incident)
    assert not incident.another_try(250, config) and late.another_try(251, config)
    assert (late.tries, late.margin(config)) == (1, 50)
    assert all(late.another_try(1000 * n, config) for n in range(1, 500))


def test_weights_that_are_not_finite_at_an_evaluation_end_the_run(settings: Build) -> None:
    broken: dict[str, Any] = {"precision": "bf16", "optim__lr": 1e20, "eval__every": 1}
    result = result_of(run(settings(**broken)))
    assert (result.status, result.stop_reason) == ("diverged", "not_finite")
    assert math.isnan(result.curve[-1].val_loss) and result.curve[-1].sample is None
    back = settings(**broken, stability__policy="cut_lr", stability__tries=1, stability__snapshot_every=1)
    assert [e.status for e in run(back) if isinstance(e, RunResult)] == ["rolled_back", "diverged"]


def log_of(losses: np.ndarray) -> list[StepPoint]:
    return [StepPoint(step=k + 1, train_loss=float(x), grad_norm=1.0) for k, x in enumerate(losses)]


def falling(steps: int, seed: int, noise: float) -> np.ndarray:
    k = np.arange(steps)
    return 6.4 + 4.6 * np.exp(-k / 100) + noise * Stream("eval", seed).normal(steps)


@pytest.mark.parametrize("seed", range(5))
def test_the_onset_of_a_slow_rise_is_found(seed: int) -> None:
    losses = falling(1500, seed, noise=0.1)
    losses[1000:] += np.minimum(1, np.arange(500) / 100) * 0.8
    begun = onset_of(log_of(losses), ("train_loss", "grad_norm"), window=50, steps=None)
    assert 980 <= begun <= 1060


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), noise=st.floats(0.01, 0.5))
def test_calm_has_no_onset(seed: int, noise: float) -> None:
    losses = falling(600, seed, noise)
    losses[-1] = np.median(losses[-50:])
    assert onset_of(log_of(losses), ("train_loss", "grad_norm"), window=50, steps=200) > 600 - 200


@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 2**31))
@settings(max_examples=30)
def test_an_outlier_does_not_depend_on_the_scale(scale: float, seed: int) -> None:
    signal = Signal(50)
    for x in Stream("eval", seed).normal(50):
        signal.remember(scale * math.exp(0.2 * float(x)))
    assert not signal.outlier(2 * scale, factor=10, sigma=10)
    assert signal.outlier(100 * scale, factor=10, sigma=10)


def test_only_the_loss_is_acted_on_unless_all_is_asked_for() -> None:
    assert {e for e in EVENTS if StabilityConfig().acts_on(e)} == {"not_finite", "spike", "rising"}
    assert all(StabilityConfig(signals="all").acts_on(e) for e in EVENTS)
    assert {e for e in EVENTS if StabilityConfig(policy="log", signals="all").acts_on(e)} == {"not_finite", "rising"}


def test_a_watch_goes_on_as_if_it_had_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"stuck": 0.2, "stuck_steps": 10, "growth": 2.0}.items():
        monkeypatch.setattr(StabilityConfig, name, value)
    config = StabilityConfig(policy="log", window=8)
    noise = Stream("eval", 9).normal(300)

    def feed(watch: Watch, k: int) -> str | None:
        event = watch.see(4 + 0.1 * noise[k] + (k > 150), math.exp(0.02 * k + 0.1 * noise[k]), k % 7 if k > 250 else k)
        watch.after(param_norm=1.0 + 0.01 * k, adam_v_l1=1.0, adam_v_max=math.exp(5 * (k == 77)), adam_steps=k)
        return event

    whole, broken = Watch(config), Watch(config)
    events = []
    for k in range(300):
        events.append(feed(whole, k))
        fresh = Watch(config)
        fresh.load(broken.state())
        broken = fresh
        assert feed(broken, k) == events[-1], k
    assert {"adam_v", "grad_growth", "stuck", "repeated"} <= set(events)
    narrower = Watch(StabilityConfig(policy="log", window=4))
    narrower.load(whole.state())
    assert narrower.recent == whole.recent[-4:] and len(narrower.signals["grad_norm"].recent) == 4
