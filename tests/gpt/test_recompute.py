"""Computing again in the backward pass gives the same bits; checkpoints that stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grok.checkpoints import checkpoint_steps, remove_checkpoints, save_checkpoint
from grok.config.gpt import GptConfig
from grok.records import Checkpoint
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


def test_every_nth_checkpoint_stays(tmp_path: Path) -> None:
    folder = tmp_path / "r"  # by the run_id: a checkpoint of another run is not removed
    for step in (5, 10, 15, 20, 25):
        saved = Checkpoint(run_id="r", step=step, tensors={"t": torch.zeros(1)}, state={})
        save_checkpoint(folder, saved, keep=2, keep_every=10)
    assert checkpoint_steps(folder) == [25, 20, 10]
    remove_checkpoints(folder, keep_every=10)
    assert checkpoint_steps(folder) == [20, 10]


def test_permanent_checkpoints_are_due_by_themselves(settings: Build) -> None:
    config = settings(checkpoint={"keep_every": 4, "minutes": 0})
    assert [event.step for event in run(config) if isinstance(event, Checkpoint)] == [4, 8]
