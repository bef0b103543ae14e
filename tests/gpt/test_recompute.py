"""Computing again in the backward pass gives the same bits; checkpoints that stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from grok.config.gpt import GptConfig
from tests.gpt.conftest import differences, result_of, run

Build = Callable[..., GptConfig]


@pytest.mark.parametrize("what", ["attention", "blocks"])
def test_the_same_bits(settings: Build, what: str) -> None:
    config = settings(model__dropout=0.1, train__steps=4)
    again = settings(model__dropout=0.1, train__steps=4, train__recompute=what)
    assert differences(result_of(run(config)), result_of(run(again))) == []


def test_less_is_kept(settings: Build) -> None:
    """Fewer bytes between the passes, the fewest with whole blocks."""
    from grok.gpt.initial import build_model

    config = settings().model
    kept = {}
    for what in ("none", "attention", "blocks"):
        model = build_model(settings(), vocab_size=20, device=torch.device("cpu"), dtype=torch.float32)
        model.use_recompute(what)
        sizes: dict[int, int] = {}

        def keep(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        tokens = torch.zeros(4, config.context, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model.loss(tokens, tokens)
        kept[what] = sum(sizes.values())
        assert torch.isfinite(loss)
    assert kept["blocks"] < kept["attention"] < kept["none"]
