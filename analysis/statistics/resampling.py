"""Random numbers for resampling, from the project's named streams, so that they are reproducible."""

from __future__ import annotations

import numpy as np

from grok.streams import Stream


def generator(purpose: str, seed: int = 0) -> np.random.Generator:
    """Return a new generator for ``purpose``; equal arguments give equal numbers."""
    return np.random.Generator(np.random.Philox(key=Stream("analysis", seed).at(purpose).key()))
