"""Stacked lanes: many lanes in batched products, for a device that one lane cannot keep busy.

All lanes of one program are stacked along a leading axis, and every product is a batched
one. The width is fixed (short groups are padded with idle lanes), a finished lane is
refilled in place, and no sum uses atomics, so a lane's bits depend only on the run and the
numerics tag.

``engine`` chooses the number of lanes and schedules on the host; ``state`` holds all tensors in buffers with fixed
addresses; ``step`` computes on them without synchronising with the host; it is replayed
as CUDA graphs.
"""

from grok.arithmetic.gpu.engine import train_stacked

__all__ = ["train_stacked"]
