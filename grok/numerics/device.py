"""Errors of a CUDA device. Needs torch."""

from __future__ import annotations

import torch


def is_device_error(error: BaseException) -> bool:
    """Return whether a CUDA device failed so that this process may not be able to use it any more.

    CUDA keeps such an error in the process: every later call fails as well. Running out of memory is none.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
