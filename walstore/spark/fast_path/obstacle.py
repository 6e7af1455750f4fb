"""Why a read cannot take the fast path."""

from __future__ import annotations

from walstore.errors import WalError


class FastPathError(WalError):
    """The JVM cannot read this log by itself; ``fast_path="auto"`` reads it with Python instead."""
