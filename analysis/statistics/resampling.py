"""Random numbers for resampling: reproducible, from the project's named streams, never global."""

from __future__ import annotations

import numpy as np

from grok.streams import Stream


def generator(purpose: str, seed: int = 0) -> np.random.Generator:
    """Return the generator of one resampling ``purpose``: the same numbers every time it is asked for."""
    return np.random.Generator(np.random.Philox(key=Stream("analysis", seed).at(purpose).key()))
