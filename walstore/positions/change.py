"""CursorChange: what a handle asks of its cursor, and the one rule by which it is granted. Pure.

The rule is the same wherever a cursor is: a handle changes only what it read or wrote last, or what a change
of its own made whose outcome it does not know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from walstore.errors import CursorMovedError
from walstore.positions.cursor_state import CursorState

CursorVerb: TypeAlias = Literal["commit", "rewind", "renew", "refresh", "delete"]


@dataclass(frozen=True, slots=True)
class CursorChange:
    """A change of one cursor by one handle."""

    verb: CursorVerb
    name: str
    position: int
    """Where to: of a commit and a rewind."""
    seen: CursorState
    """What the handle last read or wrote."""
    writer: bytes
    """The tag of what the handle writes."""

    def made_of(
        self,
        found: CursorState | None,
        *,
        now_us: int,
        owner: str,
        check_retained: Callable[[int], None],
    ) -> CursorState | None:
        """Return what the cursor ``found`` becomes: the same object if it stays as it is, None if removed.

        CursorMovedError if it was deleted, or is neither what the handle has seen nor its own.
        ``check_retained`` is called with a position that the log may have removed.
        """
        if found is None:
            if self.verb == "delete":
                return None
            raise self._moved(None, f"cursor {self.name!r} was deleted")
        if self.verb == "refresh":
            return found
        is_own = found.writer == self.writer and found.revision > self.seen.revision
        if found.tag != self.seen.tag and not is_own:
            raise self._moved(
                found,
                f"cursor {self.name!r} was moved from {self.seen.position} to {found.position} "
                f"by {found.owner}; open it again, or call Cursor.refresh(), to continue from there",
            )
        if self.verb == "delete":
            return None
        moves = self.verb == "rewind"
        moves |= self.verb == "commit" and self.position != found.position
        if not (moves or found.lease_us):
            return found
        position = self.position if moves else found.position
        # A commit may also move back, if an earlier one of unknown outcome has moved the cursor.
        if self.verb == "rewind" or position < found.position or found.is_expired(now_us):
            check_retained(position)
        made = found.renewed(now_us, owner)
        if moves:
            made = dataclasses.replace(
                made, position=position, revision=found.revision + 1, writer=self.writer
            )
        return made

    def _moved(self, found: CursorState | None, message: str) -> CursorMovedError:
        actual = None if found is None else found.position
        return CursorMovedError(
            message, expected=self.seen.position, actual=actual, cursor=self.name
        )
