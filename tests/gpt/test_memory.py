"""The planner's bytes are those of a real step; the finders leave a run as it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from grok import find
from grok.gpt.costs import count_parameters, layout
from grok.gpt.planning.finders import _peak, measure, range_test
from grok.gpt.schedules import refuse_changing_shapes
from grok.gpt.training.checkpoint import History, capture
from grok.text.corpus import Corpus
from tests.gpt.conftest import Build, differences, result_of, run, trainer_of

SHAPE = {"model__layers": 3, "model__d_model": 64, "model__heads": 4, "model__context": 64, "train__batch_size": 4}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "another width of the MLP": {"model__d_ff": 100},
    "dropout": {"model__dropout": 0.1},
    "dropout of the residual": {"model__dropout_residual": 0.1},
    "attention again": {"train__recompute": "attention"},
    "blocks again": {"train__recompute": "blocks"},
    "dropout, attention again": {"model__dropout": 0.1, "train__recompute": "attention"},
    "dropout, blocks again": {"model__dropout": 0.1, "train__recompute": "blocks"},
    "rotary": {"model__positions": "rotary"},
    "ALiBi": {"model__positions": "alibi"},
    "SwiGLU": {"model__activation": "swiglu"},
    "grouped queries": {"model__kv_heads": 1},
    "Llama": {"model__positions": "rotary", "model__norm_type": "rmsnorm", "model__activation": "swiglu",
              "model__kv_heads": 2},
    "norms on queries and keys": {"model__qk_norm": True},
    "softmax written out": {"model__softmax": "float32"},
    "softmax in bf16": {"model__softmax": "activations", "precision": "bf16"},
    "post-norm": {"model__norm": "post"},
    "bf16": {"precision": "bf16"},
    "bf16, dropout": {"precision": "bf16", "model__dropout": 0.1},
    "bf16, attention again": {"precision": "bf16", "train__recompute": "attention"},
    "micro-batches": {"train__micro_batch": 2},
    "mostly weights": {"model__d_model": 256, "train__batch_size": 1},
    "documents": {"data__document_mask": True},
    "documents, ALiBi": {"data__document_mask": True, "model__positions": "alibi"},
}  # fmt: skip


def peak_on_cpu(function: Callable[[], Any]) -> int:
    """Call ``function``; return the peak of the bytes of its CPU tensors, without those allocated before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def test_one_gpu_drops_attentions_weights_without_masks(settings: Build) -> None:
    """Nothing of T x T is counted there; it is on a CPU, on two GPUs, with recomputation, in a softmax written out."""

    def counted(recompute: str = "none", devices: int = 1, *, on_cpu: bool = False, **changes: Any) -> float:
        config = settings(**SHAPE, train__recompute=recompute, **changes)
        n = count_parameters(config.model, 64)
        return layout(config, n, devices, 4, on_cpu=on_cpu).activations

    def rest(**changes: Any) -> tuple[float, float]:
        with_masks = counted(model__dropout_attention=0.1, **changes)
        return with_masks, counted(model__dropout_attention=0.0, **changes)

    assert len(set(rest())) == 1
    squares = 4 * 3 * 4 * 4 * 64 * 64  # bytes, layers, sequences, heads, T x T
    for how in ({"on_cpu": True}, {"devices": 2}, {"recompute": "blocks"}, {"model__softmax": "float32"}):
        with_masks, without = rest(**how)
        assert with_masks - without >= squares, how


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_the_planner_knows_the_peak_of_a_step(settings: Build, corpus: Corpus, changes: dict[str, Any]) -> None:
    config = settings(**{**SHAPE, "eval__windows": 1, "numerics__path": "plain"} | changes)
    trainer = trainer_of(config, corpus)
    if config.data.document_mask:  # the corpus has one text: a letter ends its documents here
        trainer.model.document_end = 3
    with trainer.numerics.active():
        trainer.update()
        trainer.optimizer.zero_grad(set_to_none=True)
        state = [t for p in trainer.parameters for t in (p, *trainer.optimizer.state[p].values())]
        held = sum(t.numel() * t.element_size() for t in state if isinstance(t, torch.Tensor))
        measured = held + peak_on_cpu(trainer.update)
    assert _peak(trainer, trainer.numerics.micro_batch) == pytest.approx(measured, rel=0.1)


def test_range_test_puts_everything_back(settings: Build, corpus: Corpus) -> None:
    config = settings(model__dropout=0.1)
    plain, looked_at = trainer_of(config, corpus), trainer_of(config, corpus)
    for _ in range(3):
        plain.update()
        looked_at.update()
    before = capture(looked_at, History())
    found = range_test(looked_at, steps=60)
    after = capture(looked_at, History())
    assert before.state == after.state and before.tensors.keys() == after.tensors.keys()
    assert all(torch.equal(t, after.tensors[n]) for n, t in before.tensors.items())
    for _ in range(2):
        assert plain.update()[0].train_loss == looked_at.update()[0].train_loss
    assert 1e-6 < found.suggestion < 1.0
    assert found.ratio == pytest.approx(config.optim.lr / found.suggestion)
    assert found.losses.shape == found.rates.shape == found.smooth.shape
    assert (np.diff(found.rates) > 0).all()


def test_batch_sizes_are_measured(settings: Build, corpus: Corpus) -> None:
    trainer = trainer_of(settings(), corpus)
    before = capture(trainer, History())
    sizes = list(measure(trainer, largest=20, repeats=1))
    assert [s.sequences for s in sizes] == [1, 2, 4, 8, 16]
    assert all(s.tokens_per_second > 0 and s.memory > 1e5 and s.process > 1e7 for s in sizes)
    assert all(torch.equal(t, capture(trainer, History()).tensors[n]) for n, t in before.tensors.items())
    assert all(p.grad is None for p in trainer.parameters)


@pytest.mark.parametrize(
    ("train", "fastest", "largest", "says"),
    [
        (
            {"batch_size": 6},
            4,
            4,
            "train.micro_batch=3: of sizes up to 4, the largest that divides 6; larger",
        ),
        (
            {"batch_size": 64},
            8,
            8,
            "train.micro_batch=8: of sizes up to 8, the largest that divides 64; larger ones were",
        ),
        (
            {"batch_size": 64},
            8,
            512,
            "train.micro_batch=8: of sizes up to 8, the largest that divides 64; larger ones are",
        ),
        ({"batch_size": 12}, 64, 512, "train.micro_batch=12: the whole batch at once"),
        ({"batch_size": 12, "batch_ramp": [4, 4, 64]}, 8, 512, "train.micro_batch=4: of sizes up to 8"),
    ],
)
def test_the_recommended_size_can_be_compiled(
    settings: Build, train: dict[str, Any], fastest: int, largest: int, says: str
) -> None:
    config = settings(**{f"train__{name}": value for name, value in train.items()})
    said = find._advice(config, fastest, largest)
    assert said.startswith(says), said
    config.train.micro_batch, config.numerics.compile = int(said.partition("=")[2].partition(":")[0]), True
    refuse_changing_shapes(config, 1)


def test_the_profiler_writes_a_trace_and_a_table(settings: Build, tmp_path: Path) -> None:
    profiled = result_of(run(settings(log__profile=str(tmp_path / "p"))))
    assert differences(profiled, result_of(run(settings()))) == []
    trace = json.loads((tmp_path / "p/trace.json").read_text())
    updates = {e["name"] for e in trace["traceEvents"] if e.get("name", "").startswith("update ")}
    assert updates == {f"update {k}" for k in range(4, 9)}
