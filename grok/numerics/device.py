"""Errors of a CUDA device. Needs torch."""

from __future__ import annotations

import torch


def is_device_error(error: BaseException) -> bool:
    """Return whether ``error`` is a CUDA error after which this process may be unable to use the device.

    CUDA keeps such an error in the process: every later call fails, too. Out of memory is not such an error.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
