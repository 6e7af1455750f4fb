"""PendingWindow: the pending links of a chain, in order; which may be planned, what follows from an answer.

Owns the durable head, the author's id and the order of the steps. Planned steps come first, in the order of
their slots; those that wait to be planned come behind. Never does I/O: ``chain_root.py`` makes the requests
and tells what came of them.

Invariants (tests/uploader/chain/test_window.py)
  W1  A link is planned behind one of the same author, at most ``alpha`` slots beyond the durable head; or
      right behind the durable head, with nothing else under way.
  W2  A step is done when its link and all before it lie in the store.
  W3  After any trouble the author has a new id. So no author ever has two links for a slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uploader.format.link import Link
from uploader.format.pending_link import PendingLink
from uploader.format.two_clock_time import TwoClockTime
from walstore.errors import OutcomeUnknownError


class PendingWindow:
    """The steps of one program on one chain. Belongs to one event loop."""

    def __init__(self, *, alpha: int, make_id: Callable[[], str]) -> None:
        self._make_id = make_id
        self._alpha = alpha
        self._steps: list[PendingLink] = []
        self.author = make_id()
        self.head: Link | None = None
        """The newest link known to be durable."""
        self.head_since: TwoClockTime | None = None
        """When the slot behind the head was not taken yet."""
        self.is_stale = False
        """Whether the head must be read before the next step is planned."""

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
        """Take note of what was read."""
        self.head, self.head_since, self.is_stale = link, since, False
        self._wake()

    def enter(self, step: PendingLink) -> None:
        """Put a step behind all others."""
        self._steps.append(step)

    async def wait_turn(self, step: PendingLink) -> None:
        """Return when it is this step's turn to be planned; raises what the ones before it left.

        Nobody else's turn comes before it is planned or leaves.
        """
        if step.error is None and not self._may_plan(step):
            step.turn = asyncio.get_running_loop().create_future()
            try:
                await step.turn
            finally:
                step.turn = None
        step.check()

    def plan(self, step: PendingLink, link: Link, now: TwoClockTime) -> None:
        """Say which link a step is to become, right before that is put."""
        step.since = self.tip_since
        step.link, step.sent, step.is_durable = link, now, False
        step.decided.clear()
        self._wake()

    def put(self, step: PendingLink) -> list[PendingLink]:
        """Take note that a step's link lies in the store; return the steps that are done by that."""
        step.is_durable = True
        done: list[PendingLink] = []
        while self._steps and self._steps[0].is_durable:
            first = self._steps.pop(0)
            self.head, self.head_since = first.link, first.sent
            done.append(first)
            first.is_done = True
            first.decided.set()
        self._wake()
        return done

    def lost(self, step: PendingLink) -> None:
        """Take note that something else lies in a step's slot: it and those behind it are planned again."""
        self.author, self.is_stale = self._make_id(), True
        for later in self._from(step):
            _replan(later)
        self._wake()

    def fail(self, step: PendingLink, error: BaseException) -> None:
        """Take note that a step ends with an error, and its link may lie in the store or not.

        What is to be appended behind it ends too: nobody knows whether it would continue the log.
        """
        self.author = self._make_id()
        for later in self._from(step):
            if later is step:
                _end(later, error)
            elif later.is_append:
                told = OutcomeUnknownError(
                    "what was to be published before it was not, or may not be; publish both again",
                    retriable=True,
                )
                told.__cause__ = error
                _end(later, told)
                self._steps.remove(later)
            else:
                _replan(later)
        self.leave(step)

    def leave(self, step: PendingLink) -> None:
        """Take out a step that is done without a link, or was never planned."""
        if step in self._steps:
            self._steps.remove(step)
        self._wake()

    # -- inside ------------------------------------------------------------------------------

    def _planned(self) -> list[PendingLink]:
        return [step for step in self._steps if step.link is not None]

    def _from(self, step: PendingLink) -> list[PendingLink]:
        return self._steps[self._steps.index(step) :] if step in self._steps else []

    def _may_plan(self, step: PendingLink) -> bool:
        under_way = len(self._planned())
        if under_way == len(self._steps) or self._steps[under_way] is not step:
            return False
        if not under_way:
            return True
        is_ours = self.head is not None and self.head.author == self.author
        if self.is_stale or step.must_be_alone or not is_ours:
            return False
        return under_way < self._alpha

    def _wake(self) -> None:
        under_way = len(self._planned())
        if under_way == len(self._steps):
            return
        first = self._steps[under_way]
        if first.turn is not None and not first.turn.done() and self._may_plan(first):
            first.turn.set_result(None)


def _replan(step: PendingLink) -> None:
    if step.link is not None:
        step.tried, step.link, step.is_durable = step.link, None, False
        step.decided.set()


def _end(step: PendingLink, error: BaseException) -> None:
    step.link, step.error = None, error
    step.decided.set()
    if step.turn is not None and not step.turn.done():
        step.turn.set_result(None)
