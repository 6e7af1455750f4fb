"""PendingWindow: the pending links of a chain, in order; which may be planned, what follows from an answer.

Owns the durable head, the author's id and the order of the pending links. Planned ones come first, in the
order of their slots, then those that wait to be planned. Never does I/O: ``chain_root.py`` makes the requests
and reports their outcomes.

Invariants (tests/uploader/chain/test_window.py)
  W1  A link is planned behind one of the same author, at most ``alpha`` slots beyond the durable head; or
      right behind the durable head, with nothing else under way.
  W2  A pending link is done when its link and all before it are in the store.
  W3  After any trouble the author has a new id. So no author ever has two links for a slot.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from uploader.chain.next_manifest import PendingLink
from uploader.format.link import Link
from uploader.runtime.two_clock_time import TwoClockTime
from walstore.errors import OutcomeUnknownError


class PendingWindow:
    """The pending links of one program on one chain. Belongs to one event loop."""

    def __init__(self, *, alpha: int, make_id: Callable[[], str]) -> None:
        self._make_id = make_id
        self._alpha = alpha
        self._pending: list[PendingLink] = []
        self.author = make_id()
        self.head: Link | None = None
        """The newest link known to be durable."""
        self.head_since: TwoClockTime | None = None
        """When the slot behind the head was not taken yet."""
        self.is_stale = False
        """Whether the head must be read before the next link is planned."""

    @property
    def tip(self) -> Link | None:
        """The link that the next one is to follow."""
        planned = self._planned()
        return planned[-1].link if planned else self.head

    @property
    def tip_since(self) -> TwoClockTime | None:
        """When the slot behind the tip was not taken yet."""
        planned = self._planned()
        return planned[-1].sent if planned else self.head_since

    @property
    def is_idle(self) -> bool:
        """Whether no link is being put."""
        return not self._planned()

    def set_head(self, link: Link, since: TwoClockTime) -> None:
        """Record what was read."""
        self.head, self.head_since, self.is_stale = link, since, False
        self._wake()

    def enter(self, pending: PendingLink) -> None:
        """Add a pending link behind all others."""
        self._pending.append(pending)

    async def wait_turn(self, pending: PendingLink) -> None:
        """Return when it is the turn of this one to be planned; raises the error that those before it left.

        No other turn comes before it is planned or leaves.
        """
        if pending.error is None and not self._may_plan(pending):
            pending.turn = asyncio.get_running_loop().create_future()
            try:
                await pending.turn
            finally:
                pending.turn = None
        pending.check()

    def plan(self, pending: PendingLink, link: Link, now: TwoClockTime) -> None:
        """Set the link that a pending one is to become, right before that is put."""
        pending.since = self.tip_since
        pending.link, pending.sent, pending.is_durable = link, now, False
        pending.decided.clear()
        self._wake()

    def put(self, pending: PendingLink) -> list[PendingLink]:
        """Record that a link is in the store; return the pending links that are done by that."""
        pending.is_durable = True
        done: list[PendingLink] = []
        while self._pending and self._pending[0].is_durable:
            first = self._pending.pop(0)
            self.head, self.head_since = first.link, first.sent
            done.append(first)
            first.is_done = True
            first.decided.set()
        self._wake()
        return done

    def lost(self, pending: PendingLink) -> None:
        """Record that its slot holds something else: it and those behind it are planned again."""
        self.author, self.is_stale = self._make_id(), True
        for later in self._from(pending):
            _replan(later)
        self._wake()

    def fail(self, pending: PendingLink, error: BaseException) -> None:
        """Record that it ends with an error, and that its link may be in the store or not.

        Appends behind it end too: nobody knows whether they would continue the log.
        """
        self.author = self._make_id()
        for later in self._from(pending):
            if later is pending:
                _end(later, error)
            elif later.is_append:
                unknown = OutcomeUnknownError(
                    "what was to be published before it was not, or may not be; publish both again",
                    retriable=True,
                )
                unknown.__cause__ = error
                _end(later, unknown)
                self._pending.remove(later)
            else:
                _replan(later)
        self.leave(pending)

    def leave(self, pending: PendingLink) -> None:
        """Remove one that is done without a link, or was never planned."""
        if pending in self._pending:
            self._pending.remove(pending)
        self._wake()

    # -- inside ------------------------------------------------------------------------------

    def _planned(self) -> list[PendingLink]:
        return [pending for pending in self._pending if pending.link is not None]

    def _from(self, pending: PendingLink) -> list[PendingLink]:
        return self._pending[self._pending.index(pending) :] if pending in self._pending else []

    def _may_plan(self, pending: PendingLink) -> bool:
        under_way = len(self._planned())
        if under_way == len(self._pending) or self._pending[under_way] is not pending:
            return False
        if not under_way:
            return True
        is_ours = self.head is not None and self.head.author == self.author
        if self.is_stale or pending.must_be_alone or not is_ours:
            return False
        return under_way < self._alpha

    def _wake(self) -> None:
        under_way = len(self._planned())
        if under_way == len(self._pending):
            return
        first = self._pending[under_way]
        if first.turn is not None and not first.turn.done() and self._may_plan(first):
            first.turn.set_result(None)


def _replan(pending: PendingLink) -> None:
    if pending.link is not None:
        pending.tried, pending.link, pending.is_durable = pending.link, None, False
        pending.decided.set()


def _end(pending: PendingLink, error: BaseException) -> None:
    pending.link, pending.error = None, error
    pending.decided.set()
    if pending.turn is not None and not pending.turn.done():
        pending.turn.set_result(None)


def new_author() -> str:
    """Return an id that no other author ever has: 128 random bits in hex."""
    return secrets.token_hex(16)
