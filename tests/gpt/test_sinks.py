"""Each sink's own reader reads back what the run logged, under names that stay."""

import time
from pathlib import Path
from typing import Any

import pytest

from grok.gpt.costs import count_parameters, train_flops_per_token
from grok.gpt.sinks import EVALUATION_NAMES, STEP_NAMES, USED_NAMES, TensorBoard
from grok.gpt.training.engine import train
from grok.plugins import Code, activate, code_of, load
from grok.records import Checkpoint, Job, StepPoint
from grok.text.corpus import Corpus
from tests.gpt.conftest import RUN, Build, differences, result_of, run, stopped
from tests.gpt.test_stability import dirty as dirty  # the corpus with a spike in it
from tests.gpt.test_stability import of

pytest.importorskip("tensorboard", reason="the extra `gpt` is not installed")


def folder(root: Path) -> Path:
    (run,) = root.glob(f"seed=*-{RUN}")
    return run


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_tensorboard_reads_it_back(settings: Build, tmp_path: Path) -> None:
    result = result_of(run(settings(log__tensorboard=str(tmp_path))))
    read = scalars(folder(tmp_path))
    assert set(STEP_NAMES) == set(StepPoint.__slots__) - {"step", "event"}
    on_a_cpu = set(STEP_NAMES.values()) - {"speed/mfu"}
    assert set(read) == on_a_cpu | set(USED_NAMES.values()) | set(EVALUATION_NAMES.values())
    assert read["train/loss"] == [(p.step, pytest.approx(p.train_loss)) for p in result.step_log]
    assert read["val/loss"] == [(p.step, pytest.approx(p.val_loss)) for p in result.curve]


RAMPED: dict[str, Any] = {"train__batch_ramp": [2, 2, 20], "train__context_ramp": [8, 8, 30], "optim__clip": 1.6}


def test_what_was_used_stands_beside_the_loss(settings: Build, corpus: Corpus, tmp_path: Path) -> None:
    config = settings(log__tensorboard=str(tmp_path), **RAMPED)
    half = stopped(config, 7)
    time.sleep(1.1)  # names of TensorBoard's files begin with the second, and are read in order
    log = result_of(run(config, half)).step_log
    read = scalars(folder(tmp_path))
    sizes = [p.consumed_samples - q for p, q in zip(log, [0, *(p.consumed_samples for p in log)], strict=False)]
    tokens = [p.consumed_tokens - q for p, q in zip(log, [0, *(p.consumed_tokens for p in log)], strict=False)]
    contexts = [t // n for t, n in zip(tokens, sizes, strict=True)]
    assert sorted(set(sizes)) == [2, 4, 6] and sorted(set(contexts)) == [8, 16]
    assert [v for _, v in read["data/batch_size"]] == sizes and [v for _, v in read["data/context"]] == contexts
    clipped = [p.grad_norm > 1.6 for p in log]
    assert 0 < sum(clipped) < len(log)
    assert read["optim/clipped_share"][-1] == (12, pytest.approx(sum(clipped) / 12))
    assert read["used/hours"][-1][1] == pytest.approx(
        sum(t / p.tokens_per_second for t, p in zip(tokens, log, strict=True)) / 3600, rel=1e-5
    )
    counted = count_parameters(config.model, corpus.vocab_size)
    flops = [t * train_flops_per_token(config.model, counted, c) for t, c in zip(tokens, contexts, strict=True)]
    assert read["used/gflops"][-1][1] == pytest.approx(sum(flops) / 1e9, rel=1e-6)


def test_tensorboard_of_a_resumed_run_has_every_step_once(settings: Build, tmp_path: Path) -> None:
    config = settings(log__tensorboard=str(tmp_path), checkpoint__every=4)
    events = train([Job(run_id=RUN, config=config)])
    checkpoint = next(e for e in events if isinstance(e, Checkpoint))
    before = [step for step, _ in scalars(folder(tmp_path))["train/loss"]]
    assert before == list(range(1, checkpoint.step + 1)), "a checkpoint finds everything before it on the disk"
    events.close()  # type: ignore[attr-defined]  # as if killed after the checkpoint of step 4
    time.sleep(1.1)
    result = result_of(run(config, checkpoint))
    steps = [step for step, _ in scalars(folder(tmp_path))["train/loss"]]
    assert steps == [p.step for p in result.step_log] == list(range(1, 13))


def test_a_sink_that_fails_costs_no_run(
    settings: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = result_of(run(settings()))
    write = TensorBoard.step

    def full(self: TensorBoard, point: StepPoint, *used: Any) -> None:
        if point.step == 5:
            raise OSError(28, "No space left on device")
        write(self, point, *used)

    monkeypatch.setattr(TensorBoard, "step", full)
    result = result_of(run(settings(log__tensorboard=str(tmp_path))))
    assert differences(plain, result) == []
    said = capsys.readouterr().err
    assert said.count("TensorBoard failed (OSError: [Errno 28] No space left on device)") == 1


def test_tensorboard_of_a_run_killed_before_its_first_checkpoint_has_every_step_once(
    settings: Build, tmp_path: Path
) -> None:
    config = settings(log__tensorboard=str(tmp_path), eval__every=4)
    events = train([Job(run_id=RUN, config=config)])
    next(events)  # the evaluation of step 4
    events.close()  # type: ignore[attr-defined]  # as if killed
    run(config)
    assert [step for step, _ in scalars(folder(tmp_path))["train/loss"]] == list(range(1, 13))


def test_a_run_resumed_on_a_branch_goes_on_in_the_logs_of_that_branch(
    settings: Build, dirty: Corpus, tmp_path: Path
) -> None:
    (tmp_path / "kept.py").write_text(OWN)
    activate(code_of(tmp_path, ["kept.Kept"]))
    try:
        own = {"_target_": "kept.Kept"}
        logs: dict[str, Any] = {"log__tensorboard": str(tmp_path / "logs"), "log__plugin": own}
        config = settings(**of(dirty, stability__policy="skip_data", checkpoint__every=5, **logs))
        events, passed = train([Job(run_id=RUN, config=config)]), []
        for event in events:
            passed += [event] if isinstance(event, Checkpoint) else []
            if passed and passed[-1].state["tries"] and passed[-1].step >= passed[-2].step:
                break  # the second checkpoint of the branch
        events.close()  # type: ignore[attr-defined]  # as if killed
        seen = load(own).numbers
        on_branch, before = passed[-1], next(c for c in reversed(passed) if not c.state["tries"])
        abandoned = scalars(folder(tmp_path / "logs"))["train/loss"]
        for checkpoint in (on_branch, before):
            seen.clear()
            time.sleep(1.1)  # as above
            run(config, checkpoint)
            assert scalars(folder(tmp_path / "logs"))["train/loss"] == abandoned
            survivor = scalars(folder(tmp_path / "logs") / "branch-1")["train/loss"]
            assert [step for step, _ in survivor] == list(range(on_branch.state["left"][0] + 1, 81))
            last = [names for _, step, names in seen[:-1] if step == 80]
            assert all(name.startswith("branch-1/") for names in last for name in names)
    finally:
        activate(Code())


OWN = """
class Kept:
    numbers = []
    def __init__(self, run_id, settings, tag=""):
        self.tag = tag
        assert settings["mode"] == "gpt"
    def write(self, values, step):
        Kept.numbers.append((self.tag, step, sorted(values)))
    def finish(self, result):
        Kept.numbers.append(result.status)
    def close(self):
        pass
"""
