"""The only function of ``scipy.special`` that training needs, from torch: nearly the same numbers, other bits."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def ndtri(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal distribution's quantiles of probabilities."""
    return np.asarray(torch.special.ndtri(torch.from_numpy(p)).numpy(), dtype=np.float64)
