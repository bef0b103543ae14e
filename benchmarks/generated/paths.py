"""Runs uncompiled code on CUDA tensors without data, and traces the GPT's loss without graph breaks."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grok.arithmetic.gpu.optimizer import Coefficients
from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import EvaluationPass, TrainingStep
from grok.config import ArithmeticConfig, GptConfig, load_config
from grok.streams import Stream

CUDA = torch.device("cuda", 0)


def failing_paths(variants: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the errors on CUDA tensors without data, of evaluation, batch and coefficients, for each variant."""
    failures = {}
    for variant, settings in variants.items():
        config = load_config({"mode": "arithmetic", **settings})
        assert isinstance(config, ArithmeticConfig)
        with FakeTensorMode():
            state = LaneState(config, 8, CUDA)
            step, evaluation = TrainingStep(state, compile=False), EvaluationPass(state, compile=False)
            for name, path in (
                ("evaluation", evaluation),
                ("batch", step.batch),
                ("coefficients", lambda state=state: Coefficients.of(state)),
            ):
                try:
                    path()
                except Exception as error:
                    failures[f"{variant}: {name}"] = f"{type(error).__name__}: {error}"[:300]
    return failures


def gpt_difference(precision: str, dropout: float, *, chunked: bool, fused: bool = False) -> float:
    """Return the largest difference between the gradients of the GPT's loss, compiled as one graph and uncompiled.

    ``fused``: dropout inside the attention kernel, as on one GPU. A graph break raises an error (``fullgraph``).
    """
    from grok.gpt import parts
    from grok.gpt.initial import build_model
    from grok.gpt.parts import draw_masks, kernels_seeded

    settings = {
        "model": {"layers": 2, "d_model": 32, "heads": 2, "context": 16, "dropout": dropout},
        "train": {"steps": 3, "batch_size": 4},
        "data": {"path": "none"},
    }
    config = load_config({"mode": "gpt", "experiment": "benchmark", "precision": precision, **settings})
    assert isinstance(config, GptConfig)
    cpu = torch.device("cpu")
    model = build_model(config, vocab_size=67, device=cpu, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(67, (4, 16), generator=generator) for _ in range(2))
    masks = draw_masks(config.model, 4, 16, stream=Stream("dropout", 1).at(1, 0), device=cpu, fused=fused)
    if fused:
        model.use_fused_dropout()
    held, parts.CHUNK_ELEMENTS["cpu"] = parts.CHUNK_ELEMENTS["cpu"], 16 * 67 if chunked else 2**24
    try:
        gradients = []
        for loss_of in (model.loss, torch.compile(model.loss, dynamic=False, fullgraph=True, backend="aot_eager")):
            model.zero_grad(set_to_none=True)
            low = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
            with kernels_seeded(cpu, Stream("dropout", 1), fused=fused), low:
                loss = loss_of(x, y, masks)
            loss.backward()
            gradients.append([p.grad for p in model.parameters()])
    finally:
        parts.CHUNK_ELEMENTS["cpu"] = held
        torch._dynamo.reset()
    return max(float((a - b).abs().max()) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)
