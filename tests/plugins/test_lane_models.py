"""An architecture of one's own on the lanes' contract: right, independent of its neighbours, redrawn by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.engine import seat, train
from grok.arithmetic.lanes import no_noise
from grok.arithmetic.model import MLP, Transformer
from grok.arithmetic.task import shapes_of, split
from grok.arithmetic.user import OwnLaneProgram, tokens_of
from grok.config import ArithmeticConfig
from grok.errors import GrokError
from grok.execute.groups import prepare_runs
from grok.execute.refusals import refuse_unusable_code
from grok.records import Checkpoint, Job, RunResult
from tests.arithmetic.cases import curve, events, results, tiny
from tests.plugins.conftest import Write

EXAMPLES = Path(__file__).parents[2] / "examples"
MINE = """
from grok.arithmetic.weights import parameter_shapes
from grok.arithmetic.lanes import LaneModel
from dataclasses import replace

class Same(LaneModel):
    @staticmethod
    def parameter_shapes(config):
        return parameter_shapes(replace(config, model=replace(config.model, plugin={})))

class Silent(LaneModel):
    pass

class Broken(Same):
    def mlp(self, p, name, x):
        return p[name + "absent"]
"""


def own(target: str = "gated.Gated", **over: Any) -> ArithmeticConfig:
    """Return the tiny config with a lane model of one's own, ready to be imported."""
    model = {**over.pop("model", {}), "plugin": {"_target_": target}}
    folder = str(EXAMPLES) if target.startswith("gated.") else "."
    config = tiny(model=model, plugin_path=folder, **over)
    prepare_runs([config])
    return config


class GatedMLP(MLP):
    """The same arithmetic as a plain module, for the reference."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.gate = torch.nn.Linear(config.d_model, config.d_ff, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down(F.gelu(self.up(x)) * self.gate(x))
        return projected


@pytest.mark.parametrize("model", [{}, {"norm": "pre", "bias": False, "positions": "sinusoidal"}, {"layers": 1}])
def test_its_losses_and_gradients_are_those_of_a_plain_module(
    model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own(model=model, precision="float64")
    lane = seat(Job(run_id="run0", config=config), {})
    assert isinstance(lane.program, OwnLaneProgram)
    batch = lane.batch(1)
    loss, accuracy, gradients = lane.program.gradients(lane.parameters, batch, no_noise)

    shapes = shapes_of(config.task)
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)  # of the table of sines
    module = Transformer(config.model, vocab_size=shapes.tokens, length=shapes.length).double()
    for block in module.blocks:
        block.mlp = GatedMLP(config.model).double()
    module.load_state_dict({name: p.detach() for name, p in lane.parameters.items()})
    train_set, _ = split(config.task, config.stream_seeds().split)
    inputs, answers = tokens_of(train_set, config.task, torch.float64)
    rows = torch.from_numpy(lane.run.order.padded_batch(1)[0])
    logits = module(inputs[rows])[:, -1]
    expected = F.cross_entropy(logits, answers[rows])
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    assert accuracy == pytest.approx((logits.argmax(-1) == answers[rows]).double().mean().item())
    slopes = {name: p.grad for name, p in module.named_parameters()}
    assert slopes.keys() == gradients.keys() and any(".gate." in name for name in slopes)
    for name, slope in slopes.items():
        torch.testing.assert_close(gradients[name], slope, rtol=1e-9, atol=1e-12)


def test_lanes_side_by_side_have_the_bits_of_one_run() -> None:
    first, second, third = (own(seed=seed) for seed in (1, 2, 3))
    alone = [results(config)[0] for config in (first, second, third)]
    together = results(first, second, third, lanes=2)
    assert [r.weights_hash for r in together] == [r.weights_hash for r in alone]
    assert [curve(r) for r in together] == [curve(r) for r in alone]
    assert len({r.weights_hash for r in alone}) == 3


def test_it_goes_on_from_a_checkpoint_with_the_same_bits() -> None:
    config = own(checkpoint={"every": 10})
    whole = events(config)
    (result,) = [e for e in whole if isinstance(e, RunResult)]
    middle = next(e for e in whole if isinstance(e, Checkpoint) and e.step == 10)
    (again,) = [e for e in train([Job(run_id="run0", config=config, resume=middle)]) if isinstance(e, RunResult)]
    assert (again.weights_hash, curve(again)) == (result.weights_hash, curve(result))


def test_the_ordinary_model_under_another_name_has_its_bits(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mine=MINE)
    monkeypatch.chdir(tmp_path)
    (built_in,), (mine,) = results(tiny()), results(own("mine.Same"))
    assert (mine.weights_hash, curve(mine)) == (built_in.weights_hash, curve(built_in))


@pytest.mark.parametrize(
    ("target", "said"),
    [("mine.Silent", "without parameter_shapes"), ("mine.Broken", "a trial step fails")],
)
def test_one_that_cannot_train_is_refused_before_anything_is_trained(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    write(mine=MINE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GrokError, match=said):
        refuse_unusable_code([own(target)])
