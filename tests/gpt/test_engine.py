"""A run from start to end: what moves it, what cannot, and what it says."""

import math
import time
from typing import Any

import numpy as np
import pytest
import torch

from grok.config import identify
from grok.config.gpt import EvalConfig, StabilityConfig
from grok.errors import ConfigError, TrainingError
from grok.gpt.initial import build_model
from grok.gpt.schedules import learning_rate
from grok.gpt.training import trainer as gradient
from grok.gpt.training.numerics import Compiled, Numerics
from grok.gpt.training.trainer import Trainer
from grok.records import Progress
from grok.text.corpus import Corpus
from tests.gpt.conftest import Build, differences, result_of, run, trainer_of


def test_a_run_learns_and_says_so(settings: Build) -> None:
    config = settings(train__steps=60, optim__lr=1e-2)
    events = run(config)
    result = result_of(events)
    assert (result.status, result.stop_reason, result.steps, result.device) == ("completed", "steps", 60, "cpu")
    assert [p.step for p in result.curve] == list(range(5, 61, 5))
    assert result.curve[-1].val_loss < result.curve[0].val_loss - 0.5
    assert result.curve[-1].val_acc > 0.2
    assert ";threads=1;" in result.numerics  # then the path of products, on some processors
    assert ";engine=gpt;compiled=no;precision=float32;micro=6;torch=" in result.numerics
    assert [e.step for e in events if isinstance(e, Progress)][-1] == 60
    assert all(p.sample for p in result.curve)
    assert set(result.curve[-1].block_norms) == {
        "token_embedding", "position_embedding", "blocks.0", "blocks.1", "final_norm"
    }  # fmt: skip


def test_every_step_is_logged_with_every_number(settings: Build) -> None:
    config = settings()
    log = result_of(run(config)).step_log
    assert [p.step for p in log] == list(range(1, 13))
    for p in log:
        assert p.lr == learning_rate(config, p.step)
        numbers = (p.train_loss, p.grad_norm, p.param_norm, p.adam_v_l1, p.adam_v_max, p.tokens_per_second)
        assert all(math.isfinite(x) and x > 0 for x in numbers)
        assert (p.consumed_samples, p.consumed_tokens) == (6 * p.step, 96 * p.step)
        assert (p.loss_scale, p.skipped_steps, p.nan_steps) == (1.0, 0, 0)
        assert 0 <= p.zeros_in_grads < 1 and 0 <= p.data_wait < 1
        assert math.isnan(p.mfu) and 2e7 < p.peak_memory < 2**40  # a CPU's peak is not known


def test_tokens_a_second_times_seconds_are_the_tokens(settings: Build) -> None:
    began = time.perf_counter()
    result = result_of(run(settings(train__steps=60, eval__every=60, eval__sample_tokens=0)))
    passed = time.perf_counter() - began
    in_steps = sum(96 / p.tokens_per_second for p in result.step_log)
    assert passed / 50 < in_steps < result.seconds < passed


LOOKS: tuple[dict[str, Any], ...] = (
    {"eval__every": 1}, {"eval__every": 1000}, {"eval__sample_tokens": 0}, {"save": "init,final"},
    {"checkpoint__every": 3}, {"seeds__sample": 5}, {"seeds__eval": 5}, {"seeds__split": 5},
    {"stability__policy": "new_data_seed"},
)  # fmt: skip


def test_looking_never_moves_a_run(settings: Build) -> None:
    plain = result_of(run(settings(model__dropout=0.1)))
    common = {p.step: (p.val_loss, p.val_acc, p.train_acc, p.weight_norm) for p in plain.curve}
    for change in LOOKS:
        other = result_of(run(settings(model__dropout=0.1, **change)))
        assert other.weights_hash == plain.weights_hash, change
        assert [p.train_loss for p in other.step_log] == [p.train_loss for p in plain.step_log], change
        for p in other.curve:
            seen = (p.val_loss, p.val_acc, p.train_acc, p.weight_norm)
            assert seen == common.get(p.step, seen), change


def test_no_global_generator_is_used(settings: Build, no_global_randomness: None) -> None:
    run(settings(model__dropout=0.2))


def test_streams_move_what_they_name(settings: Build, corpus: Corpus) -> None:
    numerics = Numerics.of(settings(), "cpu")

    def parts(**change: Any) -> tuple[bytes, bytes, float]:
        trainer = Trainer(settings(model__dropout=0.2, **change), corpus, numerics)
        weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
        x, y = trainer.batches.step(1, trainer.branch)
        return weights, x.numpy().tobytes(), float(trainer.gradients(1, x, y))

    plain, init, order, drop = parts(), parts(seeds__init=1), parts(seeds__order=1), parts(seeds__dropout=1)
    assert [a == b for a, b in zip(plain, init, strict=True)] == [False, True, False]
    assert [a == b for a, b in zip(plain, order, strict=True)] == [True, False, False]
    assert [a == b for a, b in zip(plain, drop, strict=True)] == [True, True, False]


def test_accumulated_gradient_is_the_whole_batch_s(settings: Build, corpus: Corpus) -> None:
    """Micro-batches of 4, 4 and 1 weigh as many sequences as they have. Each draws a dropout of its own."""
    grads = []
    for micro in (9, 4):
        config = settings(train__batch_size=9, train__micro_batch=micro, precision="float64", model__dropout=0.0)
        trainer = trainer_of(config, corpus)
        x, y = trainer.batches.step(1, trainer.branch)
        loss = trainer.gradients(1, x, y)
        grads.append([loss, *(p.grad for p in trainer.parameters)])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_best_weights_are_kept_apart_from_the_last_and_averaged_beside_them(
    settings: Build, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EvalConfig, "average_points", 4)
    shared: dict[str, Any] = {"optim__lr": 2.0, "optim__schedule": "constant", "optim__warmup_steps": 20}
    config = settings(save="init,final", train__steps=20, **shared)
    result = result_of(run(config))
    best = min(result.curve, key=lambda p: p.val_loss)
    assert best.step < 20
    assert set(result.tensors) == {"init", "final", "best", "average"}
    at = {
        n: result_of(run(settings(save="final", train__steps=n, **shared))).tensors["final"]
        for n in (best.step, 17, 18, 19, 20)
    }
    for name, weight in result.tensors["best"].items():
        assert torch.equal(weight, at[best.step][name])
        mean = torch.stack([at[n][name].double() for n in (17, 18, 19, 20)]).mean(0)
        torch.testing.assert_close(result.tensors["average"][name].double(), mean, rtol=1e-5, atol=1e-6)
    model = build_model(config, vocab_size=corpus.vocab_size, device=torch.device("cpu"), dtype=torch.float32)
    assert all(torch.equal(p, result.tensors["init"][n]) for n, p in model.named_parameters())


def test_early_stop_waits_for_so_many_evaluations(settings: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StabilityConfig, "rise", 100.0)
    config = settings(
        train__steps=200,
        optim__lr=3.0,
        optim__schedule="constant",
        train__early_stop=3,
        stability__policy="log",
    )
    result = result_of(run(config))
    losses = [p.val_loss for p in result.curve]
    assert (result.status, result.stop_reason) == ("completed", "early_stop")
    assert len(losses) < 40 and losses.index(min(losses)) == len(losses) - 4


@pytest.mark.parametrize(
    "precision", ["bf16", "fp16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("float64", "tf32"))]
)
def test_other_precisions_train(settings: Build, precision: str) -> None:
    result = result_of(run(settings(precision=precision, train__steps=30)))
    reference = result_of(run(settings(train__steps=30)))
    assert f";precision={precision};" in result.numerics
    assert result.curve[-1].val_loss == pytest.approx(reference.curve[-1].val_loss, abs=0.05)
    if precision == "fp16":
        assert all(p.loss_scale >= 1 for p in result.step_log)


def test_an_overflow_in_fp16_is_skipped_and_halves_the_scale(settings: Build, corpus: Corpus) -> None:
    config = settings(precision="fp16")
    trainer = trainer_of(config, corpus)
    trainer.counters.scale = 2.0**40
    before = [p.detach().clone() for p in trainer.parameters]
    point, wrong = trainer.update()
    assert (point.event, wrong, point.loss_scale) == ("skipped", None, 2.0**40)
    assert (point.skipped_steps, point.nan_steps, trainer.counters.scale) == (1, 1, 2.0**39)
    assert all(torch.equal(a, p) for a, p in zip(before, trainer.parameters, strict=True))


def test_batch_and_context_ramps(settings: Build) -> None:
    config = settings(train__batch_size=6, train__batch_ramp=[2, 2, 12], train__context_ramp=[8, 4, 20], train__steps=6)
    log = result_of(run(config)).step_log
    assert [p.consumed_samples for p in log] == [2, 4, 6, 10, 14, 20]
    lengths = [8, 8, 8, 8, 12, 12]
    sizes = np.diff([0, 2, 4, 6, 10, 14, 20])
    assert [p.consumed_tokens for p in log] == np.cumsum(sizes * lengths).tolist()


def test_ramps_that_never_arrive_are_refused(settings: Build) -> None:
    with pytest.raises(ConfigError, match=r"never meets train\.batch_size=6"):
        settings(train__batch_ramp=[1, 2, 100])
    with pytest.raises(ConfigError, match="one shape"):
        run(settings(train__batch_ramp=[2, 2, 12], numerics__compile=True))


def test_identity_knows_what_decides(settings: Build) -> None:
    base = identify(settings(), "data")
    assert identify(settings(), "other").trajectory_id != base.trajectory_id
    for change in (
        {"data__path": "/else"},
        {"train__threads": 2},
        {"train__micro_batch": 2},
        {"log__tensorboard": "x"},
    ):
        assert identify(settings(**change), "data") == base
    assert identify(settings(eval__every=1), "data").trajectory_id == base.trajectory_id
    assert identify(settings(train__steps=13), "data").trajectory_id != base.trajectory_id  # a cosine ends with the run
    free = {"optim__schedule": "constant"}
    longer = identify(settings(train__steps=13, **free), "data")
    assert longer.trajectory_id == identify(settings(**free), "data").trajectory_id
    assert identify(settings(seeds__dropout=1), "data").trajectory_id == base.trajectory_id
    drops = {"model__dropout": 0.1}
    assert (
        identify(settings(seeds__dropout=1, **drops), "d").trajectory_id
        != identify(settings(**drops), "d").trajectory_id
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, when its compiler is imported
def test_failed_compilation_stops_or_says_that_it_goes_on(settings: Build) -> None:

    def only_eager(x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            raise NotImplementedError("no such kernel")
        return x + 1

    numerics = Numerics.of(settings(numerics__compile=True), "cpu")
    with pytest.raises(TrainingError, match=r"could not be compiled .*numerics.auto_fallback=true"):
        Compiled(only_eager, numerics)(torch.zeros(2))
    allowed = Numerics.of(settings(numerics={"compile": True, "auto_fallback": True}), "cpu")
    function = Compiled(only_eager, allowed)
    with pytest.warns(RuntimeWarning, match="runs uncompiled"):
        assert function(torch.zeros(2)).tolist() == [1, 1]
    assert not function.on and "compiled=no" in allowed.tag(compiled=function.on)


def test_a_run_that_could_not_be_compiled_has_the_bits_of_one_that_was_not_asked_to(
    settings: Build, monkeypatch: pytest.MonkeyPatch
) -> None:

    def no_compiler(function: object) -> object:
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(gradient, "OneGraph", no_compiler)
    drops: dict[str, Any] = {"model__dropout": 0.1, "train__micro_batch": 3}
    with pytest.warns(RuntimeWarning, match="runs uncompiled"):
        fallen = result_of(run(settings(numerics={"compile": True, "auto_fallback": True}, **drops)))
    plain = result_of(run(settings(**drops)))
    assert differences(plain, fallen) == [] and fallen.numerics == plain.numerics


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"train__micro_batch": 3, "model__dropout": 0.1},
        pytest.param({"numerics__compile": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_path_of_products_moves_rounding_only_and_is_in_the_tag(settings: Build, change: dict[str, Any]) -> None:
    numerics = {"compile": change.get("numerics__compile", False)}
    rest = {name: value for name, value in change.items() if name != "numerics__compile"}
    plain, onednn = (
        result_of(run(settings(numerics={**numerics, "path": path}, **rest))) for path in ("plain", "onednn")
    )
    assert "products=onednn-narrow" in onednn.numerics and "products" not in plain.numerics
    assert onednn.numerics.replace("products=onednn-narrow;", "") == plain.numerics
    assert onednn.weights_hash != plain.weights_hash
    for a, b in zip(plain.step_log, onednn.step_log, strict=True):
        assert b.train_loss == pytest.approx(a.train_loss, rel=1e-4)
        assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-3)
    assert [p.val_loss for p in onednn.curve] == pytest.approx([p.val_loss for p in plain.curve], rel=1e-4)


def test_the_tag_says_what_a_machine_chooses(settings: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's products gain nothing for language models on Zen 4; grouped queries are read without copies."""
    for model, path in (("AMD EPYC 25-17-1", "plain"), ("AMD EPYC 26-2-1", "onednn")):
        monkeypatch.setattr("grok.numerics.processor_model", lambda model=model: model)
        monkeypatch.setattr("grok.gpt.training.numerics.processor_model", lambda model=model: model)
        assert Numerics.of(settings(), "cpu").products == path
        assert Numerics.of(settings(numerics={"compile": False, "path": "onednn"}), "cpu").products == "onednn"
    assert "attention=grouped" in Numerics.of(settings(model__kv_heads=1), "cpu").tag()
    assert "attention" not in Numerics.of(settings(model__kv_heads=1, model__dropout=0.1), "cpu").tag()
