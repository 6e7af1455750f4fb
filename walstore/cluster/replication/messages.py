"""What a primary may ask of a node: each call's arguments, checked once, before anything is done. Pure.

A garbled message, or one of a program of another version, changes nothing, and its error says which field of
it cannot be. Whether a primary may ask is for the copy to say (``promise.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from walstore.cluster.replication.copy_look import LOOK
from walstore.core.format.packed import MOST_OFFSET
from walstore.errors import InvalidSettingsError
from walstore.net.wire.access_scope import ADMIN
from walstore.net.wire.verbs import Fate, Verb
from walstore.topology.documents import check_log_name

_TAG: Final = re.compile(r"[0-9a-f]{1,64}")
_MOST_SHOWN: Final = 80


class MessageField(NamedTuple):
    """One argument of a call."""

    name: str
    holds: Callable[[object], bool]
    wanted: str
    """What it must be, for the error."""
    is_optional: bool = False
    """Whether some calls leave it out; then all that follow, too."""


class NodeCall:
    """The arguments of one call, behind the name of the log."""

    __slots__ = ("fields", "has_payload", "least")

    def __init__(self, *fields: MessageField, has_payload: bool = False) -> None:
        self.fields = fields
        self.has_payload = has_payload
        self.least = sum(not field.is_optional for field in fields)
        """How many of them there are in any case."""


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_OFFSET


def _is_epoch(value: object) -> bool:
    return type(value) is int and 0 < value <= MOST_OFFSET


def _is_tag(value: object) -> bool:
    return type(value) is str and _TAG.fullmatch(value) is not None


def _is_flag(value: object) -> bool:
    return type(value) is bool or (type(value) is int and value in (0, 1))


def _are_offsets(value: object, types: list[type]) -> bool:
    if type(value) is not list or list(map(type, value)) != types:
        return False
    for one in value:  # noqa: SIM110 - of each write
        if not 0 <= one <= MOST_OFFSET:
            return False
    return True


def _flag(name: str, *, is_optional: bool = False) -> MessageField:
    return MessageField(name, _is_flag, "true or false", is_optional)


def _number(name: str, *, is_optional: bool = False) -> MessageField:
    return MessageField(name, _is_offset, f"a number from 0 to {MOST_OFFSET}", is_optional)


_EPOCH: Final = MessageField("epoch", _is_epoch, f"a number from 1 to {MOST_OFFSET}")
_PRIMARY: Final = MessageField("primary", _is_tag, "1 to 64 hex digits")
_PLACE: Final = MessageField(
    "place",
    lambda value: _are_offsets(value, [int, int, int]),
    "segment, time and byte, three numbers from 0 on",
)
_AGREED: Final = MessageField(
    "agreed",
    lambda value: value == [] or _are_offsets(value, [int, int]),
    "segment and byte, two numbers from 0 on, or nothing",
    is_optional=True,
)
_MOST_BYTES: Final = MessageField(
    "most_bytes",
    lambda value: value is None or _is_offset(value),
    "a number from 0 on, or nothing",
    is_optional=True,
)


def _of_primary(*fields: MessageField, has_payload: bool = False) -> NodeCall:
    return NodeCall(_EPOCH, _PRIMARY, *fields, has_payload=has_payload)


CALLS: Final[Mapping[str, NodeCall]] = {
    LOOK: NodeCall(),
    "obey": _of_primary(
        _flag("is_elected"),
        _number("generation", is_optional=True),
        _number("joined", is_optional=True),
    ),
    "confirm": _of_primary(),
    "make_whole": _of_primary(),
    "extents": _of_primary(),
    "frames": _of_primary(_number("start"), _number("begin", is_optional=True)),
    "read": _of_primary(_PLACE, _number("size")),
    "write": _of_primary(
        _PLACE,
        _flag("seals"),
        _number("shown", is_optional=True),
        _flag("checks", is_optional=True),
        has_payload=True,
    ),
    "cut": _of_primary(
        _number("start"), _number("position"), _AGREED, _number("first", is_optional=True)
    ),
    "trim": _of_primary(_number("head")),
    "keep_hint": _of_primary(_PLACE, has_payload=True),
    "show": _of_primary(_number("shown")),
    "check": _of_primary(_number("start"), _number("begin", is_optional=True), _MOST_BYTES),
    "mend": _of_primary(_PLACE, has_payload=True),
}
"""By name."""

NODE_VERBS: Final[Mapping[str, Verb]] = {
    name: Verb(name, needs=ADMIN, fate=Fate.DROPPED) for name in CALLS
}
"""How a primary asks for them: what a lost connection leaves open it finds out itself."""


def check_message(
    verb: object, name: object, arguments: Sequence[object], payload_bytes: int
) -> str:
    """Return the name of a log; InvalidSettingsError, naming the field, for a call that no primary sends."""
    try:
        found, call = _checked_call(verb, name, len(arguments), *arguments[:2])
    except TypeError:  # something in it has no hash
        found, call = _checked_call.__wrapped__(verb, name, len(arguments), *arguments[:2])
    _check_fields(verb, found, call.fields[2:], arguments[2:])
    if payload_bytes and not call.has_payload:
        raise _refused(
            f"the call {verb!r} of {found!r}: payload must be empty, not {payload_bytes} bytes"
        )
    return found


@lru_cache(typed=True)
def _checked_call(verb: object, name: object, count: int, *author: object) -> tuple[str, NodeCall]:
    """Check what is the same in all calls of a kind from one primary: looked up for each write but the first.

    Returns the name of the log, and what the call takes.
    """
    call = CALLS.get(verb) if isinstance(verb, str) else None
    if call is None:
        raise _refused(f"a node has no call {_shown(verb)}; it has {', '.join(sorted(CALLS))}")
    try:
        found = check_log_name(name)
    except (TypeError, ValueError) as error:
        raise _refused(f"the call {verb!r}: name: {error}") from None
    if not call.least <= count <= len(call.fields):
        listed = ", ".join(field.name for field in call.fields) or "none"
        raise _refused(f"the call {verb!r} of {found!r} with {count} arguments; it takes {listed}")
    _check_fields(verb, found, call.fields, author)
    return found, call


def _check_fields(
    verb: object, name: str, fields: Sequence[MessageField], values: Sequence[object]
) -> None:
    for field, value in zip(fields, values, strict=False):
        if not field.holds(value):
            raise _refused(
                f"the call {verb!r} of {name!r}: {field.name} must be {field.wanted}, not {_shown(value)}"
            )


def _refused(why: str) -> InvalidSettingsError:
    return InvalidSettingsError(
        f"a message that no primary sends: {why}. Nothing was changed; look whether the machine that sent "
        "it has the version of this one"
    )


def _shown(value: object) -> str:
    """Return a value for a message: no more of it than is of use, whatever it is."""
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
