"""An architecture of one's own on lanes: the transformer with gated linear units for its MLP (Shazeer 2020).

    grok sweep model.plugin._target_=gated.Gated 'seed=range(0,8)' experiment=quickstart

A lane model computes on rows: [..., R, D] for the distinct prefixes of a batch, whatever their number. So what acts
on each row by itself, as an MLP does, is written as for one; the table's shared rows are computed once.
"""

from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.initial import Parameters, parameter_shapes
from grok.arithmetic.lanes import LaneModel
from grok.config import ArithmeticConfig


class Gated(LaneModel):
    """down(gelu(up x) · gate x). The gate is a tensor of its own: ``seeds.layers.blocks.0.mlp.gate=7`` redraws it."""

    @staticmethod
    def parameter_shapes(config: ArithmeticConfig) -> dict[str, tuple[int, ...]]:
        """Return the ordinary transformer's parameters, and a gate beside every ``up``."""
        ordinary = parameter_shapes(replace(config, model=replace(config.model, plugin={})))
        gates = {name.replace(".up.", ".gate."): shape for name, shape in ordinary.items() if ".mlp.up." in name}
        return {**ordinary, **gates}

    def mlp(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        up = self.ops.linear(x, p[name + "up.weight"], p.get(name + "up.bias"))
        gate = self.ops.linear(x, p[name + "gate.weight"], p.get(name + "gate.bias"))
        return self.ops.linear(F.gelu(up) * gate, p[name + "down.weight"], p.get(name + "down.bias"))
