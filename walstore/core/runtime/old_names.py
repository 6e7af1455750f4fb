"""Old names: each lives for one version more, and its use says what to write instead."""

from __future__ import annotations

import inspect
import warnings
from typing import Final

_OURS: Final = frozenset(("walstore", "uploader"))


def warn_old(text: str) -> None:
    """Give a DeprecationWarning to the nearest caller outside of this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, DeprecationWarning, stacklevel=level + 1)
