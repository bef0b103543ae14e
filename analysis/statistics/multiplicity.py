"""Many tests at once: false-discovery and family-wise control.

Sources: Benjamini and Hochberg 1995; Holm 1979.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.multitest import multipletests


def benjamini_hochberg(p: ArrayLike) -> NDArray[np.float64]:
    """Return q-values: rejecting all hypotheses with q below a rate keeps the false-discovery rate below it."""
    return np.asarray(stats.false_discovery_control(np.asarray(p, dtype=np.float64)), dtype=np.float64)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Return adjusted p-values: rejecting those below 0.05 keeps the chance of any false rejection at most 5%."""
    values = np.asarray(p, dtype=np.float64)
    return np.asarray(multipletests(values, method="holm")[1], dtype=np.float64) if len(values) else values
