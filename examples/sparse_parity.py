"""Sparse parity with a two-layer perceptron, a standard task of feature learning (Barak et al. 2022).

    grok sweep task.plugin._target_=sparse_parity.SparseParity model.plugin._target_=sparse_parity.Perceptron \\
        'seed=range(0,8)' train.steps=3000 train.batch_size=32 optim.lr=0.01 optim.weight_decay=0.01

The label is the product of ``k`` of ``bits`` signs. The model must learn which ``k`` they are.
"""

import numpy as np
from torch import Tensor, nn

from grok.plugins import Examples


def SparseParity(bits: int = 20, k: int = 3, examples: int = 1000) -> Examples:
    """Return random signs [examples, bits]. The class is 1 if an odd number of the first ``k`` is -1, else 0."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(examples, bits))
    return Examples(signs, (signs[:, :k].prod(1) < 0).astype(int))


class Perceptron(nn.Module):
    """One hidden layer. ``length`` and ``classes`` are passed in, because the signature names them."""

    def __init__(self, length: int, classes: int, width: int = 256) -> None:
        super().__init__()
        self.hidden = nn.Linear(length, width)
        self.head = nn.Linear(width, classes)

    def forward(self, signs: Tensor) -> Tensor:  # [B, bits] -> logits [B, 2]
        return self.head(self.hidden(signs).relu())
