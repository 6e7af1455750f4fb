"""AppendConditions: the conditions of an append, and its changes apart from adding records. Pure.

They are checked when the request is accepted, against the channel's ledger and before it takes an
offset: appends are ordered at that moment, so nothing can come between the check and the records. The
changes are written in the same frame as the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from walstore.core.format.ledger import Ledger, Marks, ProducerRun, StreamInfo
from walstore.core.format.packed import MOST_SEQUENCE
from walstore.core.validation.arguments import as_int, as_mapping, as_text
from walstore.errors import (
    FencedError,
    InvalidSettingsError,
    LimitExceededError,
    OffsetMismatchError,
    OutcomeUnknownError,
    RegisterMismatchError,
    SequenceMismatchError,
    StreamClosedError,
)

MAX_NAME_CHARS: Final = 256
"""Of registers, producers and streams."""
MAX_VALUE_CHARS: Final = 4096
"""Of a register's value, and of a stream's metadata together."""
MAX_REGISTERS: Final = 1024
RESERVED: Final = "\0"
"""Names of registers that begin with it are the log's own; they do not count, and users do not see them."""
MAX_STREAMS: Final = 65_536
MAX_LEDGER_BYTES: Final = 16 << 20
"""Of registers, streams with their metadata, and producers together: every segment begins with them."""
CONDITIONS_BYTES: Final = 128
"""Approximate cost of conditions in the channel's budget."""


class RegisterChoice:
    """Values that a register may have, or may not. Not for callers: :class:`OneOf`, :class:`NoneOf`."""

    __slots__ = ("values",)
    is_excluding = False

    def __init__(self, *values: str | None) -> None:
        """The values; None is that of an absent register. TypeError; ValueError if there are none."""
        if not values:
            raise ValueError(
                f"{type(self).__name__} needs values; None stands for an absent register"
            )
        self.values = tuple(check_value(value, "a value of a register") for value in values)

    def allows(self, value: str | None) -> bool:
        """Return whether a register may have a value."""
        return (value in self.values) is not self.is_excluding

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and set(other.values) == set(self.values)

    def __hash__(self) -> int:
        return hash((self.is_excluding, frozenset(self.values)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.values))})"


class OneOf(RegisterChoice):
    """In ``expect``: a register with one of these values. ``OneOf("a", None)``: ``"a"``, or it is absent."""

    __slots__ = ()


class NoneOf(RegisterChoice):
    """In ``expect``: a register with none of these values. ``NoneOf(None)``: it is there, whatever it has."""

    __slots__ = ()
    is_excluding = True


Expected: TypeAlias = Mapping[str, "str | OneOf | NoneOf | None"]
"""Registers, and what they must have."""

_NO_METADATA: Mapping[str, str] = {}


@dataclass(slots=True, kw_only=True)
class AppendConditions:
    """Conditions and changes of one append. ``span`` is set when it is accepted."""

    expect_offset: int | None = None
    """Offset that its first record must get; None for any."""
    expect: Expected | None = None
    """Registers and the values they must have; None: must be absent."""
    update: dict[str, str | None] | None = None
    """Registers to set; None removes."""
    fence: str | None = None
    """Register of ``expect`` that is a fence: FencedError if it has another value."""
    producer: str | None = None
    sequence: int | None = None
    """Sequence number of the producer's append; None for the next."""
    is_repeated: bool = False
    """Whether the append may have been accepted before, with this number."""
    open_streams: Mapping[str, Mapping[str, str]] | None = None
    """Streams to open, with their metadata."""
    close_streams: Iterable[str] = ()
    is_upkeep: bool = False
    """Whether it is accepted although records are refused for lack of space."""
    span: range | None = None
    """Its offsets; the original ones if the producer had appended it before."""
    is_duplicate: bool = False

    def check(self, ledger: Ledger, tail: int) -> None:
        """Raise an error if a condition fails; set ``span`` if the append was accepted before."""
        if self.producer is not None and self._check_sequence(self.producer, ledger):
            return
        if self.expect_offset is not None and self.expect_offset != tail:
            raise OffsetMismatchError(
                f"the log's tail is {tail}, not {self.expect_offset}; nothing was written",
                expected=self.expect_offset,
                actual=tail,
            )
        registers = ledger.registers
        for name, value in (self.expect or {}).items():
            actual = registers.get(name)
            choice = value if isinstance(value, RegisterChoice) else None
            is_so = actual == value if choice is None else choice.allows(actual)
            if not is_so and name == self.fence:
                raise FencedError(f"{actual!r} took over from {value!r}; nothing was written")
            if not is_so:
                wanted = f"not {value!r}" if choice is None else f"and must be {choice}"
                raise RegisterMismatchError(
                    f"register {name!r} is {actual!r}, {wanted}; nothing was written",
                    expected=dict(self.expect or {}),
                    actual=dict(users_registers(registers)),
                )
        if self.update:
            _check_count(registers, self.update)
        opened = sum(name not in ledger.streams for name in self.open_streams or ())
        if opened:
            check_stream_count(len(ledger.streams) + opened)
        for name in self.close_streams:
            if name not in ledger.streams:
                raise StreamClosedError(f"there is no stream {name!r} to close", stream=name)

    def marks(self, ledger: Ledger, start: int, count: int) -> Marks | None:
        """Return the changes to write with ``count`` records at ``start``; None for none."""
        streams = {
            name: StreamInfo(
                is_open=True, metadata=metadata, opened_at=_opened_at(ledger, name, start)
            )
            for name, metadata in (self.open_streams or {}).items()
        }
        for name in self.close_streams:
            streams[name] = ledger.streams[name]._replace(is_open=False)
        marks = Marks(registers=dict(self.update or {}), streams=streams)
        if self.producer is not None:
            assert self.sequence is not None
            marks.producers.append((self.producer, ProducerRun(self.sequence, start, count, 1)))
        has_any = marks.registers or marks.streams or marks.producers
        return marks if has_any else None

    def _check_sequence(self, producer: str, ledger: Ledger) -> bool:
        """Set or check the sequence number; True if it was appended before."""
        window = ledger.producers.get(producer)
        if window is None and self.is_repeated and ledger.may_have_forgotten:
            raise OutcomeUnknownError(
                f"producer {producer!r} may be forgotten for newer ones (max_producers), so sequence "
                f"{self.sequence} may or may not be in the log; read before submitting it again"
            )
        last = window.last if window is not None else 0
        if self.sequence is None:
            self.sequence = last + 1
        if self.sequence > last + 1:
            raise SequenceMismatchError(
                f"producer {producer!r} is at sequence {last}: {self.sequence} would leave a gap; "
                "nothing was written",
                expected=last + 1,
                actual=self.sequence,
            )
        if self.sequence == last + 1:
            return False
        assert window is not None
        self.span = window.find(self.sequence)
        if self.span is None:
            raise SequenceMismatchError(
                f"producer {producer!r} appended sequence {self.sequence} before, but its offset is "
                f"no longer remembered (the window begins at {window.first})",
                expected=last + 1,
                actual=self.sequence,
                outcome="durable",
            )
        self.is_duplicate = True
        return True


def _check_count(registers: Mapping[str, str], update: Mapping[str, str | None]) -> None:
    """Raise LimitExceededError for more registers of users than a log can have."""
    given = {name: value for name, value in update.items() if not name.startswith(RESERVED)}
    added = sum(value is not None and name not in registers for name, value in given.items())
    added -= sum(value is None and name in registers for name, value in given.items())
    if (
        added > 0
        and len(registers) + added > MAX_REGISTERS
        and len(users_registers(registers)) + added > MAX_REGISTERS
    ):
        raise LimitExceededError(
            f"a log holds at most {MAX_REGISTERS} registers; remove some", limit=MAX_REGISTERS
        )


def users_registers(registers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the registers without the log's own: the same object if it has none."""
    if not any(name.startswith(RESERVED) for name in registers):
        return registers
    return {name: value for name, value in registers.items() if not name.startswith(RESERVED)}


def stream_marks(ledger: Ledger, names: Iterable[str | None], start: int) -> Marks | None:
    """Return marks for the streams that records at ``start`` open as their first records.

    StreamClosedError if one is closed.
    """
    opened: dict[str, StreamInfo] = {}
    for name in dict.fromkeys(names):
        if name is None:
            continue
        info = ledger.streams.get(name)
        if info is None:
            opened[name] = StreamInfo(is_open=True, metadata=_NO_METADATA, opened_at=start)
        elif not info.is_open:
            raise StreamClosedError(
                f"stream {name!r} is closed; open it again with open_stream()", stream=name
            )
    if not opened:
        return None
    check_stream_count(len(ledger.streams) + len(opened))
    return Marks(streams=opened)


def check_stream_count(count: int) -> None:
    """Raise LimitExceededError for more streams than a log can have."""
    if count > MAX_STREAMS:
        raise LimitExceededError(
            f"a log holds at most {MAX_STREAMS} streams; put unbounded names into the key",
            limit=MAX_STREAMS,
        )


def make_conditions(expect_offset: object, expect: object, update: object) -> AppendConditions:
    """Return conditions with copies of a caller's arguments; TypeError or ValueError."""
    return AppendConditions(
        expect_offset=None if expect_offset is None else as_int(expect_offset, "expect_offset"),
        expect=check_expected(expect),
        update=check_registers(update, "update"),
    )


def check_expected(expect: object) -> dict[str, str | OneOf | NoneOf | None] | None:
    """Return a copy of what registers must have; as :func:`check_registers` raises."""
    if expect is None:
        return None
    given = as_mapping(expect, "expect must map names of registers to str, OneOf, NoneOf or None")
    return {
        check_register(name): value
        if isinstance(value, OneOf | NoneOf)
        else check_value(value, f"the value of register {name!r}")
        for name, value in given.items()
    } or None


def check_value(value: object, what: str) -> str | None:
    """Return a value of a register, or None for an absent one; TypeError or ValueError."""
    if value is None:
        return None
    text = as_text(value, what)
    if len(text) > MAX_VALUE_CHARS:
        raise ValueError(f"{what} has {len(text)} characters; the maximum is {MAX_VALUE_CHARS}")
    return text


def check_registers(registers: object, what: str) -> dict[str, str | None] | None:
    """Return a copy of registers and their values, or None if none are given; TypeError or ValueError.

    InvalidSettingsError, which is one, for names that the log uses itself. ``what`` names the argument.
    """
    if registers is None:
        return None
    given = as_mapping(registers, f"{what} must map names of registers to str or None")
    checked = {
        check_register(name): check_value(value, f"the value of register {name!r}")
        for name, value in given.items()
    }
    return checked or None


def check_register(name: object) -> str:
    """Return the name of a user's register; as :func:`check_registers` raises."""
    name = check_name(name, "register")
    if name.startswith(RESERVED):
        raise InvalidSettingsError(
            f"names of registers that begin with a NUL character are reserved for the log, as {name!r}"
        )
    return name


def check_name(name: object, what: str) -> str:
    """Return a name of 1 to :data:`MAX_NAME_CHARS` characters; TypeError or ValueError."""
    what = f"an {what} name" if what[0] in "aeiou" else f"a {what} name"
    name = as_text(name, what)
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise ValueError(f"{what} must have 1 to {MAX_NAME_CHARS} characters, not {len(name)}")
    return name


def check_sequence(sequence: object, *, repeated: bool) -> int | None:
    """Return the number of a producer's append, None for the next; TypeError or ValueError."""
    if sequence is None:
        if repeated:
            raise ValueError("repeated needs the sequence of the first time")
        return None
    number = as_int(sequence, "sequence")
    if not 1 <= number <= MOST_SEQUENCE:
        raise ValueError(f"sequence must be 1 to 2**63 - 1, not {number}")
    return number


def check_metadata(metadata: object) -> dict[str, str]:
    """Return a stream's metadata, copied; TypeError or ValueError."""
    given = as_mapping(metadata, "metadata of a stream must map str to str")
    checked = {
        as_text(name, "a name in a stream's metadata"): as_text(value, f"metadata {name!r}")
        for name, value in given.items()
    }
    if sum(len(name) + len(value) for name, value in checked.items()) > MAX_VALUE_CHARS:
        raise ValueError(f"metadata of a stream may have {MAX_VALUE_CHARS} characters together")
    return checked


def check_room(ledger: Ledger, marks: Marks) -> None:
    """Raise LimitExceededError if changes would make the ledger too large."""
    grown = ledger.growth(marks)
    if grown > 0 and ledger.size_bytes + grown > MAX_LEDGER_BYTES:
        raise LimitExceededError(
            f"the registers, streams and producers of this log have {ledger.size_bytes} bytes, and "
            f"{grown} more would exceed {MAX_LEDGER_BYTES}; remove registers, or open the log with a "
            "smaller producer_window or max_producers; nothing was written",
            limit=MAX_LEDGER_BYTES,
        )


def _opened_at(ledger: Ledger, name: str, start: int) -> int:
    """Return where a stream was first opened, so that its older records are found."""
    info = ledger.streams.get(name)
    return start if info is None else info.opened_at
