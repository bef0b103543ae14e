"""Your own architecture on lanes: the transformer with gated linear units in its MLP (Shazeer 2020).

    grok sweep model.plugin._target_=gated.Gated 'seed=range(0,8)' experiment=quickstart

A lane model computes on rows [..., R, D], one for each distinct prefix of a batch. A part that acts on each row
separately, such as an MLP, needs no change for this; rows that several examples share are computed once.
"""

from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.weights import Parameters, parameter_shapes
from grok.config import ArithmeticConfig


class Gated(LaneModel):
    """down(gelu(up x) · gate x). The gate is a separate tensor: ``seeds.layers.blocks.0.mlp.gate=7`` redraws it."""

    @staticmethod
    def parameter_shapes(config: ArithmeticConfig) -> dict[str, tuple[int, ...]]:
        """Return the transformer's parameters, and a gate for every ``up``."""
        ordinary = parameter_shapes(replace(config, model=replace(config.model, plugin={})))
        gates = {name.replace(".up.", ".gate."): shape for name, shape in ordinary.items() if ".mlp.up." in name}
        return {**ordinary, **gates}

    def mlp(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        up = self.ops.linear(x, p[name + "up.weight"], p.get(name + "up.bias"))
        gate = self.ops.linear(x, p[name + "gate.weight"], p.get(name + "gate.bias"))
        return self.ops.linear(F.gelu(up) * gate, p[name + "down.weight"], p.get(name + "down.bias"))
