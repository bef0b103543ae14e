"""Many lanes side by side in batched products, for a device on which one lane is too small.

All lanes of one program are stacked along a leading axis and every product is a batched
one. The width is fixed (short groups are padded with idle lanes), a finished lane is
refilled in place, and no sum uses atomics, so a lane's bits depend on the tag and on
nothing beside it.

``engine`` decides on the host what is due; ``state`` holds all tensors, in buffers that
never move; ``step`` computes on them and never speaks to the host; ``captured`` turns
that into CUDA graphs; ``width`` says how many lanes fit.
"""

from grok.arithmetic.stacked.engine import train_stacked

__all__ = ["train_stacked"]
