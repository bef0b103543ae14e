"""The planner's bytes are the peak of torch's allocator in a real step, within a tenth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from grok.config.gpt import GptConfig
from grok.gpt.flops import count_parameters
from grok.gpt.planning.planner import layout
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.trainer import Trainer
from grok.text.corpus import Corpus

Build = Callable[..., GptConfig]
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
    "Muon": {"optim__kind": "muon"},
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


def trainer_of(config: GptConfig, corpus: Corpus) -> Trainer:
    return Trainer(config, corpus, Numerics.of(config, "cpu"))


def planned(config: GptConfig, corpus: Corpus, sequences: int) -> float:
    one = layout(
        config,
        count_parameters(config.model, corpus.vocab_size),
        1,
        config.train.parallel,
        config.train.recompute,
        sequences,
        on_cpu=True,
    )
    return one.bytes


def test_one_gpu_drops_attentions_weights_without_masks(settings: Build) -> None:
    """Nothing of T x T is counted there; it is on a CPU, on two GPUs, with recomputation, in a softmax written out."""

    def counted(recompute: str = "none", devices: int = 1, *, on_cpu: bool = False, **changes: Any) -> float:
        config = settings(**SHAPE, **changes)
        n = count_parameters(config.model, 64)
        return layout(config, n, devices, "ddp", recompute, 4, on_cpu=on_cpu).activations

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
    assert planned(config, corpus, trainer.numerics.micro_batch) == pytest.approx(measured, rel=0.1)


def test_a_peak_is_what_was_there_at_once() -> None:
    def two_and_one() -> None:
        pair = (torch.zeros(1000), torch.zeros(1000))
        del pair
        torch.zeros(1000)

    assert peak_on_cpu(two_and_one) == 8000
