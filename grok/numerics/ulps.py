"""Changes weights by units in the last place: runs that then differ although all seeds are equal show chaos."""

from __future__ import annotations

import torch
from torch import Tensor

from grok.streams import Stream


def move_by_ulps(tensor: Tensor, ulps: int, stream: Stream) -> Tensor:
    """Return ``tensor`` with each element changed by a random -ulps .. ulps units in the last place.

    The bits of neighbouring floats of one sign, read as integers, are neighbouring integers.
    Elements so close to zero that they would change their sign are not changed.
    """
    bits = tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)
    moves = torch.from_numpy(stream.integers(tensor.numel(), 2 * ulps + 1) - ulps).reshape(tensor.shape)
    moved = (bits + moves.to(bits)).view(tensor.dtype)
    return torch.where(moved.sign() == tensor.sign(), moved, tensor)
