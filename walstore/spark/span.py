"""Span: how much a run of records takes in storage. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """Records ``[start, limit)`` of one log that lie together."""

    start: int
    limit: int
    size_bytes: int
    """About how many stored bytes they take."""
