"""Freed memory stays with the process, in large pages: a step's activations come back where they were.

A training step allocates and frees the same few megabytes hundreds of times. glibc
hands such blocks back to the kernel, which must then clear and map the same pages again
at the next step: at the default regime 850 to 1,750 page faults a step, 1 to 3 ms of 25.
The 30 MB that a step walks through are also more pages of 4 KiB than the processor
keeps addresses of; pages of 2 MiB, which Linux gives to those who ask, save another 3 to 5%.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3

KEPT: Final = 2**30
"""Bytes: blocks up to this size come from the heap, and the heap's end is not given back below it."""
MADV_HUGEPAGE: Final = 14
HUGE_PAGE: Final = 2**21
HUGE: Final = 2**29
"""Bytes of the heap for which large pages are requested: addresses only, until they are used."""


@functools.cache
def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory; return whether it can (glibc)."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl has none
        return False
    return all(mallopt(option, KEPT) == 1 for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))


@functools.cache
def use_large_pages() -> bool:
    """Let the heap grow by ``HUGE`` bytes and ask for large pages there; return whether the kernel agreed.

    After ``keep_freed_memory``, before what is to lie there is allocated.
    """
    if not keep_freed_memory():
        return False
    library = ctypes.CDLL(None, use_errno=True)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = library.malloc(HUGE)
    if start is None:  # a limit on address space
        return False
    first = -(-start // HUGE_PAGE) * HUGE_PAGE
    length = (start + HUGE - first) // HUGE_PAGE * HUGE_PAGE
    agreed = library.madvise(first, length, MADV_HUGEPAGE) == 0
    library.free(start)  # the heap keeps it: what is allocated next comes from there
    return bool(agreed)
