"""Kept cursors: those of a replicated log. They are in its registers instead of files, and so in every copy.

A cursor is a register whose value has what a cursor's file has. The register :data:`MARKER` says that the
cursors are in the log: then files of cursors are of an earlier time, and not heeded. :class:`KeptCursors` has
in memory what the registers say, and what is being written.

Invariants (tests/walstore/cluster/replication/test_cursors.py)
  K1  While a change of a cursor is not on enough machines, its old place and its new one are pinned.
  K2  No cursor gets a place below a head that retention has decided on.
  K3  Cursors come from files or from registers, never from both: the marker decides, and changes with them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from walstore.core.batches.conditions import RESERVED, AppendConditions
from walstore.core.files.directory import PROMISE_NAME, write_durably
from walstore.core.files.log_bounds import LedgerView
from walstore.core.ports import FileSystem
from walstore.core.runtime.error_mapping import copy_error
from walstore.errors import (
    CorruptionError,
    FormatVersionError,
    InvalidSettingsError,
    LimitExceededError,
    WalError,
)
from walstore.positions.cursor_state import TAG_BYTES, CursorInfo, CursorState, is_possible
from walstore.positions.cursors.directory import (
    DIRECTORY_NAME,
    MOST_OWNER_BYTES,
    encode_cursor,
    list_cursors,
    remove_cursors,
)

logger = logging.getLogger("walstore.cursors")

PREFIX: Final = RESERVED + "cursor."
MARKER: Final = RESERVED + "cursors"
MOST_CURSORS: Final = 1024
"""Of one replicated log: every segment begins with them."""
_VERSION: Final = "1"
_FIELDS: Final = 7

Found: TypeAlias = CursorState | WalError | None
"""The state of a cursor, why it cannot be read, or None if there is none."""


def encode_register(state: CursorState) -> str:
    """Return the value of a cursor's register; an owner of more than 256 bytes is cut."""
    owner = state.owner.encode()[:MOST_OWNER_BYTES].decode(errors="ignore")
    numbers = (state.updated_us, state.lease_us, state.deadline_us)
    first = f"{state.position} {state.revision} {state.writer.hex()}"
    return f"{first} {' '.join(map(str, numbers))} {owner}"


def decode_register(value: str, name: str) -> CursorState:
    """Parse :func:`encode_register`; CorruptionError if it is nothing of the kind."""
    fields = value.split(" ", _FIELDS - 1)
    with contextlib.suppress(ValueError):
        at, revision, tag, updated, lease, deadline, owner = fields
        state = CursorState(
            int(at),
            int(revision),
            bytes.fromhex(tag),
            int(updated),
            int(lease),
            int(deadline),
            owner,
        )
        least = min(state.updated_us, state.lease_us, state.deadline_us)
        if len(state.writer) == TAG_BYTES and least >= 0 and is_possible(state):
            return state
    raise CorruptionError(
        "the register of this cursor cannot be read; delete the cursor and make it again",
        path=f"cursor {name}",
        found=value,
    )


def setting(states: Mapping[str, CursorState | None]) -> AppendConditions:
    """Return the change of registers that sets cursors, or removes them."""
    update = {
        PREFIX + name: None if state is None else encode_register(state)
        for name, state in states.items()
    }
    return AppendConditions(update=update, is_upkeep=True)


def adopting(found: Mapping[str, Found]) -> AppendConditions:
    """Return the change of registers by which a log begins to keep its cursors, those of files at first.

    LimitExceededError if there are too many. One that cannot be read cannot be read as a register, either.
    """
    if len(found) > MOST_CURSORS:
        raise LimitExceededError(
            f"a replicated log keeps at most {MOST_CURSORS} cursors, and this one has {len(found)}: delete "
            "some, with 'walstore cursors', before it becomes replicated",
            limit=MOST_CURSORS,
        )
    update: dict[str, str | None] = {MARKER: _VERSION}
    for name, state in found.items():
        update[PREFIX + name] = encode_register(state) if isinstance(state, CursorState) else ""
    return AppendConditions(update=update, is_upkeep=True)


def giving_up(registers: Mapping[str, str]) -> AppendConditions:
    """Return the change of registers by which a log keeps its cursors no longer; they are files by then."""
    update: dict[str, str | None] = dict.fromkeys(
        name for name in registers if name == MARKER or name.startswith(PREFIX)
    )
    return AppendConditions(update=update, is_upkeep=True)


def kept_cursors(registers: Mapping[str, str]) -> dict[str, Found]:
    """Return the cursors in registers by name."""
    found: dict[str, Found] = {}
    for register in sorted(registers):
        if register.startswith(PREFIX):
            name = register.removeprefix(PREFIX)
            try:
                found[name] = decode_register(registers[register], name)
            except CorruptionError as error:
                found[name] = error
    return found


def keeps_cursors(registers: Mapping[str, str], path: Path) -> bool:
    """Return whether a log with these registers keeps its cursors in them; FormatVersionError."""
    version = registers.get(MARKER, _VERSION)
    if version != _VERSION:
        raise FormatVersionError(
            "the cursors in this log were written by a newer version",
            path=str(path),
            found=version,
            supported=_VERSION,
        )
    return MARKER in registers


def cursor_info(name: str, found: CursorState | WalError, now_us: int) -> CursorInfo:
    """Return a cursor for retention and listings."""
    if isinstance(found, WalError):
        return CursorInfo(name, 0, is_expired=False, state=None, problem=copy_error(found))
    return CursorInfo(name, found.position, found.is_expired(now_us), found)


# -- in memory -------------------------------------------------------------------------------


class _HeadPlan(Protocol):
    """What retention decides on."""

    @property
    def head(self) -> int: ...


_P = TypeVar("_P", bound=_HeadPlan)


class KeptTable:
    """The cursors while nothing else changes them; implements :class:`CursorTable`."""

    def __init__(self, latest: Callable[[str], Found], count: Callable[[], int], head: int) -> None:
        """Not for callers; see :meth:`KeptCursors.change`."""
        self._latest, self._count, self._head = latest, count, head
        self.changes: dict[str, CursorState | None] = {}
        """What was written, and what was removed."""
        self.number = 0
        """Of the change, once it is taken note of."""

    def read(self, name: str) -> CursorState | None:
        """As of :class:`CursorTable`."""
        found = self._found(name)
        if isinstance(found, WalError):
            raise copy_error(found)
        return found

    def write(self, name: str, state: CursorState) -> None:
        """As of :class:`CursorTable`; LimitExceededError for one cursor too many."""
        if self._found(name) is None:
            new = sum(
                (made is not None) - (self._latest(other) is not None)
                for other, made in self.changes.items()
            )
            if self._count() + new >= MOST_CURSORS:
                raise LimitExceededError(
                    f"a replicated log keeps at most {MOST_CURSORS} cursors; delete some",
                    limit=MOST_CURSORS,
                )
        self.changes[name] = state

    def remove(self, name: str) -> bool:
        """As of :class:`CursorTable`."""
        if self._found(name) is None:
            return False
        self.changes[name] = None
        return True

    def head(self) -> int:
        """As of :class:`CursorTable`."""
        return self._head

    def _found(self, name: str) -> Found:
        return self.changes[name] if name in self.changes else self._latest(name)


class KeptCursors:
    """The cursors of one open log. Any thread may call; nothing blocks for longer than a decision."""

    def __init__(self, found: Mapping[str, Found], head: int) -> None:
        """Begin with what is in the log, whose head is ``head``."""
        self._lock = threading.Lock()
        # All guarded by the lock. What each cursor may be: first what is on enough machines, then what is
        # being written, each with the number of its change.
        self._versions: dict[str, list[tuple[int, Found]]] = {}
        self._unconfirmed: deque[tuple[int, Sequence[str]]] = deque()
        self._floor = head
        self._number = 0
        self.adopt(found)

    def adopt(self, found: Mapping[str, Found]) -> None:
        """Replace all cursors; only before anybody has one."""
        with self._lock:
            self._versions = {name: [(0, state)] for name, state in found.items()}

    @contextlib.contextmanager
    def change(self) -> Iterator[KeptTable]:
        """Let a block read and change cursors, and take note of the changes; then write them to the log.

        After that :meth:`confirm` them, or :meth:`withdraw` them if they were not accepted. If nobody knows,
        do neither: a later change settles it.
        """
        with self._lock:
            table = KeptTable(self._latest, self._count, self._floor)
            yield table
            if table.changes:
                self._number += 1
                for name, state in table.changes.items():
                    self._versions.setdefault(name, [(0, None)]).append((self._number, state))
                self._unconfirmed.append((self._number, tuple(table.changes)))
            table.number = self._number

    def confirm(self, number: int) -> None:
        """Take note that all changes up to one are on enough machines."""
        with self._lock:
            while self._unconfirmed and self._unconfirmed[0][0] <= number:
                for name in self._unconfirmed.popleft()[1]:
                    versions = self._versions.get(name, [])
                    while len(versions) > 1 and versions[1][0] <= number:
                        del versions[0]
                    self._drop_if_gone(name)

    def withdraw(self, number: int) -> None:
        """Take note that the last change was not accepted."""
        with self._lock:
            last, names = self._unconfirmed.pop()
            assert last == number
            for name in names:
                del self._versions[name][-1]
                self._drop_if_gone(name)

    @property
    def is_confirmed(self) -> bool:
        """Whether all changes are on enough machines."""
        return not self._unconfirmed

    def infos(self, now_us: int) -> list[CursorInfo]:
        """Return the cursors that are on enough machines, by name."""
        with self._lock:
            bases = {name: versions[0][1] for name, versions in self._versions.items()}
        return [
            cursor_info(name, found, now_us)
            for name, found in sorted(bases.items())
            if found is not None
        ]

    def settle(self, now_us: int, decide: Callable[[Sequence[CursorInfo]], _P]) -> _P:
        """Return the plan that ``decide`` makes of all places that a cursor may have.

        From then on no cursor gets one below the plan's head, until :meth:`end_settling`.
        """
        with self._lock:
            pins = [
                cursor_info(name, found, now_us)
                for name, versions in self._versions.items()
                for _, found in versions
                if found is not None
            ]
            plan = decide(pins)
            self._floor = max(self._floor, plan.head)
            return plan

    def end_settling(self, head: int) -> None:
        """Take note of the head as it became."""
        with self._lock:
            self._floor = head

    def _latest(self, name: str) -> Found:
        versions = self._versions.get(name)
        return None if versions is None else versions[-1][1]

    def _count(self) -> int:
        return sum(versions[-1][1] is not None for versions in self._versions.values())

    def _drop_if_gone(self, name: str) -> None:
        versions = self._versions.get(name)
        if versions is not None and len(versions) == 1 and versions[0][1] is None:
            del self._versions[name]


# -- files of cursors ------------------------------------------------------------------------


def cursors_of_files(fs: FileSystem, directory: Path) -> dict[str, Found]:
    """Return the cursors in the files of a log by name. Blocking; OSError."""
    return {one.name: one.state or one.problem for one in list_cursors(fs, directory, now_us=0)}


def restore_files(fs: FileSystem, directory: Path, registers: Mapping[str, str]) -> None:
    """Make the files of cursors say what registers say, durably. Blocking, while the log is closed; OSError.

    Other files of cursors are of an earlier time, and are removed.
    """
    remove_cursors(fs, directory)
    kept = kept_cursors(registers)
    if not kept:
        return
    cursors = directory / DIRECTORY_NAME
    fs.make_directory(cursors)
    for name, found in kept.items():
        data = encode_cursor(found) if isinstance(found, CursorState) else b"not readable"
        write_durably(fs, cursors / name, data)


def refuse_copy(fs: FileSystem, directory: Path) -> None:
    """Raise InvalidSettingsError if the log in a directory is replicated: its cursors are no files.

    Blocking; OSError.
    """
    if PROMISE_NAME in fs.list(directory):
        raise InvalidSettingsError(
            f"the cursors of a replicated log are kept in the log, not in {directory}: move them with the "
            "program that has the log open, or connect to it"
        )


def list_all_cursors(fs: FileSystem, directory: Path, now_us: int) -> list[CursorInfo]:
    """Return the cursors of a log by name, from its files or, of a replicated log's copy, from the log.

    Next to the program that has the log open, if there is one. Blocking; raises as :class:`LedgerView`.
    """
    if PROMISE_NAME not in fs.list(directory):
        return list_cursors(fs, directory, now_us)
    kept = kept_cursors(LedgerView(fs, directory).look().registers)
    return [cursor_info(name, found, now_us) for name, found in kept.items() if found is not None]
