"""PendingLink: one change of a chain that is to become a link, and how far it has come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from uploader.format.link import Link
from uploader.format.manifest import Manifest
from uploader.runtime.two_clock_time import TwoClockTime


@dataclass(frozen=True, slots=True)
class LinkBase:
    """The manifest that a pending link is built upon."""

    manifest: Manifest
    is_durable: bool
    """If not, it may never be."""


Make = Callable[[LinkBase], Awaitable[Manifest | None]]
"""Makes the next manifest from the newest one. None: there is nothing to do."""


class WaitForDurableError(Exception):
    """The next step cannot be decided from a manifest that may never be durable."""


@dataclass(slots=True, eq=False)
class PendingLink:
    """Lives from a call of ``publish`` or ``change`` to its end."""

    make: Make
    is_append: bool
    """Whether it cannot do without the ones before it."""
    must_be_alone: bool = False
    """Whether it needs a durable manifest to be made from."""
    turn: asyncio.Future[None] | None = None
    """Set while it waits to be planned."""
    link: Link | None = None
    """What it is to become; None as long as it is not planned."""
    data: bytes = field(default=b"", repr=False)
    """The object of ``link``."""
    tried: Link | None = None
    """What it was to become before it had to be planned again."""
    since: TwoClockTime | None = None
    """When the slot of ``link`` was not taken yet."""
    sent: TwoClockTime | None = None
    """When ``link`` had not been put yet."""
    is_durable: bool = False
    """Whether its link is in the store. It counts once those before it are."""
    error: BaseException | None = None
    """Its error, from the outcome of another one or of its put."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is done, has an error, or lost its link and must be planned again."""
    is_done: bool = False
    """Whether its link, and all before it, are in the store."""

    def check(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error
