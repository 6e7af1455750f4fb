"""Memory: large blocks that were freed go back to the system."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_MMAP_THRESHOLD: Final = -3  # of mallopt(3)
_LARGE_BYTES: Final = 2 << 20


def return_large_blocks() -> None:
    """Let the C library keep no block of 2 MiB or more once it is freed. For a program's beginning.

    Otherwise glibc keeps those of up to 32 MiB for later, for each thread: a server that had a few large
    requests on each stayed as large as all of them together. Does nothing with another C library, or where
    ``MALLOC_MMAP_THRESHOLD_`` says something else.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
