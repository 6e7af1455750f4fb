"""Lease: a job that a member of this process has for a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Lease:
    """A lease on a job. Its deliveries do not tell it from others, since they go back when it is undone."""

    offset: int
    deliveries: int
    tags: set[str]
    """Of the change that made or extended it last, and of those since whose outcome is not known."""
    member: bytes = b""
    is_begun: bool = False
    """Whether the member said so, by extending it."""
