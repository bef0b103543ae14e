"""Stopping and going on equals never stopping, to the bit; changed settings are refused unless named."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import grok.gpt.training.trainer as trainer_module
from grok import average
from grok.checkpoints import load_checkpoint, run_folder, save_checkpoint
from grok.commands.trained import find_run
from grok.config.gpt import GptConfig
from grok.errors import CheckpointError, DataError
from grok.execute.resume import named_checkpoint
from grok.gpt import parts
from grok.gpt.log import Log
from grok.gpt.training.checkpoint import History
from grok.gpt.training.engine import train
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.trainer import Trainer
from grok.records import Checkpoint, CurvePoint, Job, RunResult, StepPoint
from grok.store import StoreWriter
from tests.gpt.conftest import EIGHT_BITS, RUN, Build, differences, prepare_text, result_of, run, stopped, text_of


def through_the_disk(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    save_checkpoint(folder, checkpoint)
    return load_checkpoint(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model__dropout": 0.2, "train__micro_batch": 4},
        {"precision": "fp16"},
        {"precision": "bf16", "save": "init,final", "model__tied": False},
        {"train__batch_ramp": [2, 2, 12], "train__context_ramp": [8, 4, 20], "optim__warmup_samples": 20},
        {"stability__policy": "new_data_seed", "stability__snapshot_every": 2, "save": "final"},
        {"model__activation": "swiglu", "optim__decay": "all", "stability__policy": "new_data_seed"},
        # matrices of more than 4,096 elements: bitsandbytes keeps smaller ones' moments in 32 bits
        pytest.param({"optim__kind": "adamw8bit", "model__d_model": 72, "model__heads": 2}, marks=EIGHT_BITS),
    ],
)
def test_stopped_three_times_equals_never_stopped(settings: Build, tmp_path: Path, changes: dict[str, Any]) -> None:
    config = settings(**changes)
    whole = result_of(run(config))
    checkpoint = None
    for i, stop_at in enumerate((1, 5, 8)):
        checkpoint = through_the_disk(stopped(config, stop_at, checkpoint), tmp_path / str(i))
        assert checkpoint.step == stop_at
    resumed = result_of(run(config, checkpoint))
    assert differences(whole, resumed) == []
    assert whole.curve[-1].val_loss < whole.curve[0].val_loss
    assert whole.tensors.keys() == resumed.tensors.keys()
    for moment, weights in whole.tensors.items():
        assert all(torch.equal(w, resumed.tensors[moment][n]) for n, w in weights.items())


def test_a_longer_run_keeps_no_average_and_no_best_of_the_shorter_one(settings: Build) -> None:
    free: dict[str, Any] = {"optim__schedule": "constant", "save": "final", "optim__lr": 1e-3}
    longer = settings(train__steps=60, **free)
    checkpoint = next(e for e in run(settings(checkpoint__keep=True, **free)) if isinstance(e, Checkpoint))
    state = checkpoint.state["moments"][0]["history"]
    assert state["averaged_at"] == [10, 11, 12] and state["best_step"] == 12
    checkpoint.run_id = "another"
    whole, resumed = result_of(run(longer)), result_of(run(longer, checkpoint))
    assert differences(whole, resumed) == []
    assert whole.tensors.keys() == resumed.tensors.keys() == {"final", "best", "average"}
    for moment, weights in whole.tensors.items():
        assert all(torch.equal(w, resumed.tensors[moment][n]) for n, w in weights.items()), moment


def test_evaluations_of_another_schedule_do_not_count_for_the_early_stop() -> None:
    history = History()
    for step, loss in ((10, 2.0), (20, 3.0), (25, 3.1)):
        history.observe(CurvePoint(step=step, val_loss=loss))
    assert history.worse == 2
    history.keep_steps(frozenset({10, 20, 30}), frozenset())
    assert (history.best_step, history.worse, len(history.curve)) == (10, 1, 2)


def test_a_resumed_run_keeps_its_early_stop_and_its_clock(settings: Build) -> None:
    """A checkpoint between the evaluations at 10 and 15, the first two of three without improvement."""
    config = settings(train__steps=40, train__early_stop=3)
    perfect = stopped(config, 6)
    perfect.state["moments"][0]["history"]["best_loss"] = 0.0  # no later evaluation is better
    checkpoint = stopped(config, 12, perfect)
    checkpoint.state["seconds"] = 5000.0
    result = result_of(run(config, checkpoint))
    assert (result.stop_reason, result.steps) == ("early_stop", 20)
    assert 5000 < result.seconds < 6000


def test_a_run_killed_between_its_early_stop_and_its_row_ends_there(settings: Build, tmp_path: Path) -> None:
    config = settings(train__steps=40, train__early_stop=2, checkpoint__keep=True, eval__every=2)
    start = stopped(config, 3)
    start.state["moments"][0]["history"]["best_loss"] = 0.0  # no later evaluation is better
    *_, checkpoint, whole = (e for e in run(config, start) if isinstance(e, Checkpoint | RunResult))
    assert isinstance(checkpoint, Checkpoint) and isinstance(whole, RunResult)
    assert (checkpoint.step, whole.stop_reason, whole.steps) == (6, "early_stop", 6)
    resumed = result_of(run(config, through_the_disk(checkpoint, tmp_path)))
    assert differences(whole, resumed) == []
    branch = {"run": RUN, "step": 6, "changes": ["optim.lr"]}
    lower = settings(train__steps=40, train__early_stop=2, eval__every=2, optim__lr=1e-3, resume=branch)
    assert result_of(run(lower, checkpoint)).steps == 8


def branch_job(config: GptConfig) -> Job:
    """Return the job of a new run that goes on from the checkpoint which ``resume.run`` names, as a worker does."""
    return Job(run_id="b" * 20, config=config, resume=named_checkpoint(config, config.store.path))


def test_changed_settings_are_refused_unless_named(settings: Build, tmp_path: Path) -> None:
    config = settings(optim__lr=3e-5)
    checkpoint = stopped(config, 6)
    with pytest.raises(CheckpointError, match=r"optim.lr: checkpoint 3e-05, now 1e-05.*resume.changes"):
        run(settings(optim__lr=1e-5), checkpoint)
    with pytest.raises(CheckpointError, match=r"model.d_model: checkpoint 24, now 27"):
        run(settings(optim__lr=3e-5, model__d_model=27), checkpoint)
    with pytest.raises(CheckpointError, match=r"seeds.order"):
        run(settings(optim__lr=3e-5, seeds__order=1), checkpoint)

    store = tmp_path / "store"
    store.mkdir()
    save_checkpoint(run_folder(store, RUN), checkpoint)
    branch: dict[str, Any] = {"store__path": str(store), "resume": {"run": RUN, "step": 6, "changes": ["optim.lr"]}}
    result = list(train([branch_job(settings(optim__lr=1e-5, **branch))]))[-1]
    assert (result.parent_run_id, result.branch_step, result.steps) == (RUN, 6, 12)  # type: ignore[union-attr]
    rates = [p.lr for p in result.step_log]  # type: ignore[union-attr]
    before = [p.lr for p in result_of(run(config)).step_log]
    assert rates[:6] == before[:6]
    assert rates[6:] == pytest.approx([x / 3 for x in before[6:]])

    idle: dict[str, Any] = {**branch, "resume": {"run": RUN, "step": 6, "changes": ["optim.eps"]}}
    with pytest.raises(CheckpointError, match=r"names optim.eps, which does not differ.*nothing"):
        list(train([branch_job(settings(optim__lr=3e-5, **idle))]))
    with pytest.raises(CheckpointError, match="step 7"):
        branch_job(settings(store__path=str(store), resume={"run": RUN, "step": 7}))
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        branch_job(settings(store__path=str(store), resume={"run": "c", "step": 7}))
    with pytest.raises(CheckpointError, match="has no checkpoint of that run"):
        list(train([Job(run_id="b" * 20, config=settings(optim__lr=1e-5, **branch))]))


def test_what_the_loss_did_before_does_not_end_a_run_under_other_settings(settings: Build, tmp_path: Path) -> None:
    config = settings(optim__lr=3e-3)
    checkpoint = stopped(config, 6)
    watch = checkpoint.state["moments"][0]["state"]["watch"]
    watch["smooth"], watch["above"] = 1000.0, config.stability.rise_steps - 1
    ended = result_of(run(config, checkpoint))
    assert (ended.status, ended.stop_reason, ended.steps) == ("diverged", "rising", 6)
    save_checkpoint(run_folder(tmp_path, RUN), checkpoint)
    branch: dict[str, Any] = {"store__path": str(tmp_path), "resume": {"run": RUN, "step": 6, "changes": ["optim.lr"]}}
    *_, result = train([branch_job(settings(optim__lr=1e-3, **branch))])
    assert (result.status, result.steps) == ("completed", 12)  # type: ignore[union-attr]


def test_another_tag_is_shown_or_refused(settings: Build) -> None:
    config = settings(numerics={"compile": False})
    checkpoint = stopped(config, 6)
    checkpoint.state["numerics"] = ["another machine"]
    assert result_of(run(config, checkpoint)).numerics.startswith("another machine | device=cpu;")
    with pytest.raises(CheckpointError, match=r"numerics.strict=true.*another machine"):
        run(settings(numerics={"compile": False, "strict": True}), checkpoint)


@pytest.mark.slow  # compiles three times
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, when its compiler is imported
@pytest.mark.parametrize("logits", [2**24, 200], ids=["whole head", "head in chunks"])
def test_compiled_runs_resume_to_the_bit_and_agree_with_eager_ones(
    settings: Build, monkeypatch: pytest.MonkeyPatch, logits: int
) -> None:
    monkeypatch.setitem(parts.CHUNK_ELEMENTS, "cpu", logits)
    config = settings(numerics__compile=True, model__dropout=0.1)
    whole = result_of(run(config))
    assert ";compiled=whole;" in whole.numerics
    assert differences(whole, result_of(run(config, stopped(config, 7)))) == []
    eager = result_of(run(settings(model__dropout=0.1)))
    for p, q in zip(eager.step_log, whole.step_log, strict=True):
        assert q.train_loss == pytest.approx(p.train_loss, rel=1e-4)


@pytest.mark.slow  # compiles each
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, when its compiler is imported
@pytest.mark.parametrize(
    ("changes", "logits", "near"),
    [
        ({"model__dropout": 0.2, "train__micro_batch": 3}, 2**24, 1e-12),
        ({"model__dropout": 0.2, "train__micro_batch": 3}, 200, 1e-12),  # a head in chunks
        ({"model__positions": "alibi", "model__softmax": "float32", "model__vocab_multiple": 16}, 2**24, 1e-12),
        # angles and norms are float32 whatever the parameters are
        ({"model__positions": "rotary", "model__norm_type": "rmsnorm", "model__qk_norm": True}, 2**24, 1e-7),
        ({"model__tied": False, "model__norm": "post", "model__activation": "gelu"}, 2**24, 1e-12),
        ({"precision": "fp16"}, 2**24, 3e-3),
        ({"precision": "fp16"}, 200, 3e-3),
        ({"precision": "bf16", "model__bias": False}, 200, 3e-3),
    ],
)
def test_the_compiled_gradient_is_the_gradient(
    settings: Build, corpus: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], logits: int, near: float
) -> None:
    monkeypatch.setitem(parts.CHUNK_ELEMENTS, "cpu", logits)
    found = []
    for compiled in (False, True):
        config = settings(**{"precision": "float64", "numerics__compile": compiled, **changes})
        trainer = Trainer(config, corpus, Numerics.of(config, "cpu"))
        loss = trainer.gradients(1, *trainer.batch(1))
        assert trainer.gradient.compiled == compiled
        found.append([loss, *trainer.unscale()])
        for p, g in zip(trainer.parameters, found[-1][1:], strict=True):
            assert g.stride() == p.stride() and g.dtype == p.dtype
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=10 * near, atol=near)


def test_shapes_and_optimiser_cannot_change_on_the_way(settings: Build) -> None:
    checkpoint = stopped(settings(), 4)
    for name, value, message in (
        ("model.layers", 3, r"weights of other shapes.*\(model\.layers: checkpoint 2, now 3\): these settings cannot"),
        ("optim.kind", "adamw8bit", r"\(optim\.kind: checkpoint adamw, now adamw8bit\): these settings cannot"),
    ):
        changes = {name.replace(".", "__"): value, "resume": {"run": RUN, "step": 4, "changes": [name]}}
        with pytest.raises(CheckpointError, match=message):
            run(settings(**changes), checkpoint)


@pytest.mark.parametrize(("before", "now"), [("float32", "float64"), ("float64", "bf16")])
def test_the_moments_change_their_precision_with_the_weights(settings: Build, before: str, now: str) -> None:
    same: dict[str, Any] = {"train__steps": 8}
    checkpoint = stopped(settings(precision=before, **same), 4)
    resume = {"run": RUN, "step": 4, "changes": ["precision"]}
    result = result_of(run(settings(precision=now, resume=resume, **same), checkpoint))
    whole = result_of(run(settings(precision=before, **same)))
    assert result.step_log[4].train_loss == pytest.approx(whole.step_log[4].train_loss, rel=1e-2)
    assert result.steps == 8


def test_tokens_overwritten_in_place_end_the_run_with_a_reason(settings: Build, tmp_path: Path) -> None:
    corpus = prepare_text(tmp_path, text_of(600))
    events = train([Job(run_id=RUN, config=settings(data__path=str(corpus.path)))])
    next(events)
    file = corpus.path / "train.bin"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)
    with pytest.raises(DataError, match=r"train\.bin was overwritten while it was in use"):
        list(events)


RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"precision": "fp16"},
    "rolls back": {
        "optim__lr": 0.5,
        "train__steps": 20,
        "stability__policy": "new_data_seed",
        "stability__snapshot_every": 2,
        "stability__spike": 0.05,
        "stability__window": 4,
        "stability__sigma": 0.1,
        "stability__margin": 1,
    },
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool, str | None]]:
    """Return what sinks are told of steps: the step, whether its log is whole, its event."""
    steps: list[tuple[int, bool, str | None]] = []

    def tell(self: Log, point: StepPoint) -> None:
        steps.append((point.step, point.param_norm == point.param_norm, point.event))

    monkeypatch.setattr(Log, "_step", tell)
    return steps


@pytest.mark.parametrize("name", RUNS)
def test_late_numbers_are_the_same_numbers(
    name: str, settings: Build, monkeypatch: pytest.MonkeyPatch, told: list[tuple[int, bool, str | None]]
) -> None:
    config = settings(eval__every=7, **RUNS[name])
    at_once = run(config)
    first = [*told]
    told.clear()
    monkeypatch.setattr(trainer_module, "logs_late", lambda numerics: True)
    late = run(config)
    assert differences(result_of(at_once), result_of(late)) == []
    assert told == first and all(whole for _, whole, _ in told)
    assert name != "rolls back" or any(event for _, _, event in told)


def test_a_checkpoint_holds_a_whole_log(settings: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = result_of(run(settings()))
    monkeypatch.setattr(trainer_module, "logs_late", lambda numerics: True)
    assert differences(whole, result_of(run(settings(), stopped(settings(), 4)))) == []


@pytest.fixture
def store(settings: Build, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run's checkpoints of steps 3, 6 and 9; its states to roll back to are inside them."""
    trained = tmp_path_factory.getbasetemp() / "averaged"
    if not trained.exists():
        new = tmp_path / "new"
        StoreWriter(new).close()
        config = settings(checkpoint__keep_every=3, checkpoint__minutes=0, stability__policy="cut_lr",
                          stability__snapshot_every=2)  # fmt: skip
        for event in run(config):
            if isinstance(event, Checkpoint):
                save_checkpoint(run_folder(new, RUN), event, keep=1, keep_every=3)
        new.rename(trained)
    shutil.copytree(trained, tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(("words", "steps"), [((), (3, 6, 9)), (("--last", "2"), (6, 9)), (("--steps", "9,3"), (3, 9))])
def test_it_is_the_mean(
    store: Path, words: tuple[str, ...], steps: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert average.main([RUN[:6], "--store", str(store), *words]) == 0
    name = capsys.readouterr().out.split()[1]
    weights = find_run(name, str(store)).weights("last")["last"]
    parts = [load_checkpoint(run_folder(store, RUN), step).tensors for step in steps]
    for n, mean in weights.items():
        expected = torch.stack([part[f"model.{n}"].double() for part in parts]).mean(0)
        torch.testing.assert_close(mean.double(), expected, rtol=0, atol=1e-7)
    assert all(f"model.{n}" in parts[0] for n in weights) and weights
    assert not any(n.startswith(("kept.", "optim.")) for n in load_checkpoint(run_folder(store, name)).tensors)


def test_going_back_to_any_kept_checkpoint_repeats_the_run(settings: Build, store: Path) -> None:
    changes = {"checkpoint__minutes": 0, "stability__policy": "cut_lr", "stability__snapshot_every": 2}
    whole = result_of(run(settings(**changes)))
    for step in (3, 6):
        config = settings(**changes, resume__run=RUN, resume__step=step)
        again = result_of(run(config, load_checkpoint(run_folder(store, RUN), step)))
        assert again.weights_hash == whole.weights_hash
        assert (again.parent_run_id, again.branch_step) == (RUN, step)


def test_checkpoints_of_an_abandoned_branch_are_left_out(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rollback from a later step to step 4; the branch has come to step 6, so steps 6 and 9 are of two branches."""
    folder = run_folder(store, RUN)
    checkpoint = load_checkpoint(folder, 6)
    checkpoint.state |= {"tries": 1, "left": [4]}
    checkpoint.state["moments"][0]["state"]["branch"] |= {"number": 1, "step": 4}
    save_checkpoint(folder, checkpoint, keep=1, keep_every=3)
    assert average.main([RUN, "--store", str(store), "--last", "2"]) == 0
    assert "at 2 steps, 3, 6; those at steps 9 are of a branch that a rollback" in capsys.readouterr().out
    assert average.main([RUN, "--store", str(store), "--steps", "6,9"]) == 2
    assert "no checkpoint of step 9; checkpoints of run" in (told := capsys.readouterr().err)
    assert "kept at steps 3, 6; those at steps 9 are of a branch" in told
