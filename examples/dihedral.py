"""Your own group operation: the symmetries of a polygon with ``n`` corners, which do not commute.

    grok sweep task.plugin._target_=dihedral.dihedral task.plugin.n=30 task.modulus=60 \\
        'seed=range(0,8)' experiment=quickstart task.train_fraction=0.5

Elements 0 to n - 1 are rotations by r corners, elements n to 2n - 1 the same rotations after a reflection. It trains on
the standard lanes: compiled, with shared rows, also on a GPU.
"""

import numpy as np

from grok.plugins import Operation


def dihedral(n: int = 30) -> Operation:
    """Return the multiplication table [2n, 2n] of the dihedral group of order 2n."""
    flip, turn = np.divmod(np.arange(2 * n), n)
    # s^f r^a · s^g r^b = s^(f+g) r^(±a + b): the sign is minus if g = 1
    turned = np.where(flip[None, :] == 1, -turn[:, None], turn[:, None]) + turn[None, :]
    return Operation((flip[:, None] ^ flip[None, :]) * n + turned % n)
