"""Memory of a program that serves: large blocks go back to the system, full collections are rare."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Final

_MMAP_THRESHOLD: Final = -3  # of mallopt(3)
_LARGE_BYTES: Final = 2 << 20
_FULL_COLLECTION: Final = 100
"""Collections of the middle generation before a full one is considered; Python's own is 10."""


def return_large_blocks() -> None:
    """Let the C library keep no block of 2 MiB or more once it is freed. For a program's beginning.

    Otherwise glibc keeps those of up to 32 MiB for later, for each thread: a server that had a few large
    requests on each stayed as large as all of them together. Does nothing with another C library, or where
    ``MALLOC_MMAP_THRESHOLD_`` says something else.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def collect_rarely() -> None:
    """Let Python look through all objects a tenth as often. For a program's beginning.

    Such a look takes some 0.2 s where half a million objects wait, as of 20 000 requests, and nothing else is
    done meanwhile. Cycles that are young, as of errors, are found as before. Garbage that became old is found
    once some 700 000 more objects were made than freed: at most about 100 MiB of it.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_COLLECTION)
