"""Verbs: what a client may ask of a served log, one entry each. Pure.

An entry is all that both sides know of a verb. A client is told by it how to ask, and what becomes of the
question when the connection is lost; a server which arguments belong to it, who may ask, and whose method of
the same name does it. So a new verb is an entry here and a method there, of the log itself in most cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from walstore.core.runtime.statistics import unpack_statistics
from walstore.net.wire.access_scope import (
    ADMIN,
    ANY,
    APPEND_ONLY,
    READ_AND_APPEND,
    READ_ONLY,
    Needs,
)
from walstore.net.wire.answers import (
    pack_cursors,
    pack_extents,
    pack_streams,
    unpack_cursors,
    unpack_extents,
    unpack_streams,
)
from walstore.net.wire.cursors import pack_cursor, pack_start, unpack_cursor, unpack_start
from walstore.net.wire.groups import pack_groups, unpack_groups, unpack_jobs
from walstore.net.wire.message import Kind, ProtocolViolationError
from walstore.net.wire.registers import pack_conditions, unpack_conditions


class Fate(Enum):
    """What becomes of a request when its connection is lost."""

    REPEATED = "repeated"
    """It is sent again: doing it twice is the same as once."""
    UNKNOWN = "unknown"
    """OutcomeUnknownError, if it was sent."""
    DROPPED = "dropped"
    """StorageUnavailableError: what it was part of ended with the connection."""


class VerbPlace(StrEnum):
    """Whose method at the server does what a verb asks."""

    LOG = "log"
    """The log's, with its arguments by name."""
    SERVICE = "service"
    """Of what one client is served."""
    CURSORS = "cursors"
    APPENDS = "appends"
    """Of what keeps the order of a client's appends: it has its turn among them."""
    TRANSACTIONS = "transactions"
    MEMBERS = "members"


Converter = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""How one argument travels: what packs it, and what unpacks it; that raises for what is none."""


class AnswerForm(NamedTuple):
    """How an answer travels."""

    pack: Callable[[Any], Any] = lambda found: found
    """Returns the answer for what the method returned."""
    unpack: Callable[[Any, memoryview], Any] = lambda head, _: head
    """Returns what a client's caller gets for the head and the payload."""


_PLAIN: Final = AnswerForm()
_CALL: Final = Kind.CALL
"""Of each request: to look up a member takes as long as two calls."""


@dataclass(frozen=True, slots=True)
class Verb:
    """What a client may ask for."""

    name: str
    """In requests, and for the figures of a server."""
    parameters: tuple[str, ...] = ()
    """Names of the arguments, all of which are given."""
    needs: Needs = ADMIN
    """The scopes that a token must have for it, all of them; none where any token of the log will do."""
    place: VerbPlace = VerbPlace.LOG
    fate: Fate = Fate.REPEATED
    is_write: bool = False
    """Whether it may change the log, so that a failure leaves that open once it was sent."""
    is_reading: bool = False
    """Whether a client that only reads may ask it, too."""
    is_listing: bool = False
    """Whether its answer has no limit of its own."""
    kind: Kind = Kind.CALL
    """All but calls are known by it, and not by their name."""
    part: str | None = None
    """The first argument, of several that share a name."""
    takes_more: bool = False
    """Whether others may follow the named arguments."""
    converters: Sequence[tuple[int, Converter]] = ()
    """Of the arguments that are no values of msgpack: which ones, and how they travel."""
    tells_limits: bool = False
    """Whether the answer is what the limits of the log are then."""
    answer: AnswerForm = _PLAIN

    def head(self, arguments: Sequence[object]) -> Sequence[object]:
        """Return the head of a request."""
        if self.kind is not _CALL:
            return arguments
        if self.converters:
            arguments = list(arguments)
            for at, (pack, _) in self.converters:
                arguments[at] = pack(arguments[at])
        if self.part is not None:
            arguments = [self.part, *arguments]
        return [self.name, arguments]

    def unpack(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the arguments that a client sent.

        ProtocolViolationError if there are more or fewer than it takes; raises as its converters do.
        """
        wanted = self.parameters
        if len(arguments) < len(wanted) or (len(arguments) > len(wanted) and not self.takes_more):
            listed = ", ".join(wanted) or "none"
            raise ProtocolViolationError(
                f"a call of {self.name!r} with {len(arguments)} arguments; it takes {listed}"
            )
        given = list(arguments)
        for at, (_, unpack) in self.converters:
            given[at] = unpack(given[at])
        return given


VERBS: Final[dict[str, Verb]] = {}
"""The calls by their names."""
MEMBER_VERBS: Final[dict[str, Verb]] = {}
"""What a member of a group asks for, by the first argument of the call."""


_CONVERTERS: Final[Mapping[str, Converter]] = {
    "start": (pack_start, unpack_start),
    "state": (pack_cursor, unpack_cursor),
    "conditions": (pack_conditions, unpack_conditions),
}
"""Of the arguments with these names."""


def _call(name: str, needs: Needs, *parameters: str, **rest: Any) -> Verb:
    ways = [(at, _CONVERTERS[one]) for at, one in enumerate(parameters) if one in _CONVERTERS]
    return VERBS.setdefault(name, Verb(name, parameters, needs, converters=ways, **rest))


def _of_member(part: str, needs: Needs, **rest: Any) -> Verb:
    """Return what a member of a group asks for; the group's name and settings are its first arguments."""
    made = Verb(GROUP.name, needs=needs, place=VerbPlace.MEMBERS, part=part, **rest)
    return MEMBER_VERBS.setdefault(part, made)


def find_verb(name: str, arguments: Sequence[object]) -> Verb | None:
    """Return the entry of a call, by what is asked for in its arguments; None if there is none."""
    verb = VERBS.get(name)
    if verb is GROUP and arguments and isinstance(arguments[0], str):
        return MEMBER_VERBS.get(arguments[0], GROUP)
    if verb is MOVE_CURSOR and "delete" in arguments[_MOVE_AT : _MOVE_AT + 1]:
        return DELETE_CURSOR
    return verb


APPEND: Final = Verb(
    "append", needs=APPEND_ONLY, kind=Kind.APPEND, fate=Fate.UNKNOWN, is_write=True
)
READ: Final = Verb("read", needs=READ_ONLY, kind=Kind.READ)

LIMITS: Final = _call("limits", ANY, place=VerbPlace.SERVICE, is_reading=True)
"""Answered at once, whatever the log does."""
REFRESH: Final = _call("refresh", ANY, place=VerbPlace.SERVICE, is_reading=True, is_listing=True)
REGISTERS: Final = _call("registers", ANY, place=VerbPlace.SERVICE)
"""Those that the greeting had no room for."""
WAIT_DURABLE: Final = _call("wait_durable", ANY, "offset", "durability", tells_limits=True)
FLUSH: Final = _call("flush", APPEND_ONLY, tells_limits=True)
TRIM: Final = _call("trim", ADMIN, "before", is_write=True)
ROTATE: Final = _call("rotate", ADMIN, is_write=True)
OFFSET_AT: Final = _call("offset_at", READ_ONLY, "timestamp_us", is_reading=True)
TIMESTAMP_AT: Final = _call("timestamp_at", READ_ONLY, "offset", is_reading=True)
OPEN_STREAM: Final = _call("open_stream", APPEND_ONLY, "name", "metadata", is_write=True)
CLOSE_STREAM: Final = _call("close_stream", APPEND_ONLY, "name", is_write=True)
STREAMS: Final = _call(
    "streams",
    READ_ONLY,
    place=VerbPlace.SERVICE,
    is_reading=True,
    is_listing=True,
    answer=AnswerForm(pack_streams, unpack_streams),
)
STATISTICS: Final = _call(
    "statistics",
    READ_ONLY,
    is_listing=True,
    answer=AnswerForm(asdict, lambda head, _: unpack_statistics(head)),
)
EXTENTS: Final = _call(
    "extents", READ_ONLY, is_listing=True, answer=AnswerForm(pack_extents, unpack_extents)
)
BEGIN_SCRUB: Final = _call("begin_scrub", ADMIN)

FENCE: Final = _call(
    "fence",
    APPEND_ONLY,
    "owner",
    "register",
    is_write=True,
    answer=AnswerForm(lambda fence: fence.token),
)
LAST_SEQUENCE: Final = _call("last_sequence", APPEND_ONLY, "producer_id", place=VerbPlace.SERVICE)
APPEND_GROUP: Final = _call(
    "append_group", APPEND_ONLY, "durability", "sizes", "options", "conditions",
    place=VerbPlace.APPENDS, fate=Fate.UNKNOWN, is_write=True,
)  # fmt: skip
"""With a number of its producer it is asked as one that may be repeated."""
BEGIN: Final = _call(
    "begin", APPEND_ONLY, "number", "durability", "conditions",
    place=VerbPlace.TRANSACTIONS, fate=Fate.DROPPED,
)  # fmt: skip
ADD: Final = _call(
    "add",
    APPEND_ONLY,
    "number",
    "sizes",
    "options",
    place=VerbPlace.TRANSACTIONS,
    fate=Fate.DROPPED,
)
COMMIT: Final = _call(
    "commit",
    APPEND_ONLY,
    "number",
    "update",
    place=VerbPlace.TRANSACTIONS,
    fate=Fate.UNKNOWN,
    is_write=True,
)
ROLLBACK: Final = _call(
    "rollback", APPEND_ONLY, "number", place=VerbPlace.TRANSACTIONS, fate=Fate.DROPPED
)

OPEN_CURSOR: Final = _call(
    "open_cursor", APPEND_ONLY, "name", "start", "lease_seconds",
    place=VerbPlace.CURSORS, is_write=True,
    answer=AnswerForm(
        lambda cursor: [pack_cursor(cursor.state), cursor.writer],
        lambda head, _: (unpack_cursor(head[0]), head[1]),
    ),
)  # fmt: skip
MOVE_CURSOR: Final = _call(
    "move_cursor", APPEND_ONLY, "name", "state", "writer", "is_unsure", "verb", "offset",
    place=VerbPlace.CURSORS, is_write=True,
    answer=AnswerForm(
        lambda cursor: pack_cursor(cursor.state), lambda head, _: unpack_cursor(head)
    ),
)  # fmt: skip
_MOVE_AT: Final = MOVE_CURSOR.parameters.index("verb")
CURSORS: Final = _call(
    "cursors", READ_ONLY, is_listing=True, answer=AnswerForm(pack_cursors, unpack_cursors)
)
DELETE_CURSOR: Final = _call("delete_cursor", ADMIN, "name", fate=Fate.UNKNOWN, is_write=True)

GROUPS: Final = _call(
    "groups", READ_ONLY, is_listing=True, answer=AnswerForm(pack_groups, unpack_groups)
)
DELETE_GROUP: Final = _call("delete_group", ADMIN, "name", is_write=True)
GROUP: Final = _call(
    "group", READ_AND_APPEND, "verb", "name", "options", place=VerbPlace.MEMBERS, takes_more=True
)
OPEN_GROUP: Final = _of_member("open", APPEND_ONLY)
STAY: Final = _of_member("stay", APPEND_ONLY, fate=Fate.DROPPED)
FETCH: Final = _of_member("fetch", READ_AND_APPEND, answer=AnswerForm(unpack=unpack_jobs))
SETTLE: Final = _of_member("settle", APPEND_ONLY, is_write=True)
GIVE_BACK: Final = _of_member("give_back", APPEND_ONLY, is_write=True)
TAKE_BACK: Final = _of_member("take_back", APPEND_ONLY, fate=Fate.DROPPED, is_write=True)
EXTEND: Final = _of_member("extend", APPEND_ONLY, is_write=True)
LEAVE: Final = _of_member("leave", APPEND_ONLY, is_write=True)
GROUP_STATISTICS: Final = _of_member("statistics", READ_ONLY)
