"""Accepted: what a stream has taken of its producers, and which appends it may take next. Pure.

It is kept in registers of the log, which change in one step with the records that they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from walstore.http.protocol import (
    EXPECTED_SEQUENCE,
    PRODUCER_EPOCH,
    RECEIVED_SEQUENCE,
    SEQUENCE,
    ProducerMark,
    RefusedError,
)

CLOSED_REGISTER: Final = "http.closed"
_SEQUENCE_REGISTER: Final = "http.sequence"
_PRODUCER_REGISTER: Final = "http.producer."
MOST_PRODUCERS: Final = 800
"""Remembered per stream; of more, the ones that appended least recently are forgotten."""


class _LastTaken(NamedTuple):
    epoch: int
    sequence: int
    used: int
    """Counts up with each append of any producer."""


class Accepted:
    """The state of a stream as of the last append that was accepted, which may not be durable yet."""

    def __init__(self, registers: Mapping[str, str]) -> None:
        """Begin with what is durable."""
        self._closed = registers.get(CLOSED_REGISTER)
        self._sequence = registers.get(_SEQUENCE_REGISTER)
        self._producers: dict[str, _LastTaken] = {}
        self._take(registers)
        self._used = max((one.used for one in self._producers.values()), default=0)

    @property
    def is_closed(self) -> bool:
        """Whether nothing may follow."""
        return self._closed is not None

    def mark(self, producer: ProducerMark | None) -> ProducerMark | None:
        """Return the last that was accepted of a producer."""
        known = None if producer is None else self._producers.get(producer.id)
        if producer is None or known is None:
            return producer
        return ProducerMark(producer.id, known.epoch, known.sequence)

    def check(
        self,
        sequence: str | None,
        producer: ProducerMark | None,
        *,
        is_last: bool,
        is_empty: bool,
    ) -> dict[str, str | None] | None:
        """Return the registers that an append sets, or None if it was done before.

        RefusedError if the protocol forbids it. ``is_empty``: closing is all there is to do.
        """
        if producer is not None and self._is_repeated(producer):
            if self._closed not in {None, _closed_by(producer)}:
                raise _closed()
            return None
        if self._closed is not None:
            if is_last and is_empty and producer is None:
                return None
            raise _closed()
        update: dict[str, str | None] = {}
        if producer is not None:
            self._check_gap(producer)
            update.update(self._register(producer))
        if sequence is not None:
            if self._sequence is not None and sequence.encode() <= self._sequence.encode():
                raise RefusedError(409, f"{SEQUENCE} must be above {self._sequence!r}")
            update[_SEQUENCE_REGISTER] = sequence
        if is_last:
            update.update(closing(producer))
        return update

    def remember(self, update: Mapping[str, str | None]) -> None:
        """Take over what :meth:`check` returned, once it was accepted."""
        self._closed = update.get(CLOSED_REGISTER, self._closed)
        self._sequence = update.get(_SEQUENCE_REGISTER, self._sequence)
        for name in [name for name, value in update.items() if value is None]:
            del self._producers[name.removeprefix(_PRODUCER_REGISTER)]
        self._take({name: value for name, value in update.items() if value is not None})

    def _take(self, registers: Mapping[str, str]) -> None:
        for name, value in registers.items():
            if name.startswith(_PRODUCER_REGISTER):
                found = _LastTaken(*map(int, value.split()))
                self._producers[name.removeprefix(_PRODUCER_REGISTER)] = found
                self._used = found.used

    def _is_repeated(self, producer: ProducerMark) -> bool:
        """Return whether an append was accepted before; RefusedError for one of an older epoch."""
        known = self._producers.get(producer.id)
        if known is None or producer.epoch > known.epoch:
            return False
        if producer.epoch < known.epoch:
            raise RefusedError(
                403, "a newer epoch of this producer is in use", {PRODUCER_EPOCH: str(known.epoch)}
            )
        return producer.sequence <= known.sequence

    def _check_gap(self, producer: ProducerMark) -> None:
        known = self._producers.get(producer.id)
        expected = 0
        if known is not None and producer.epoch > known.epoch:
            if producer.sequence != 0:
                raise RefusedError(400, "a new epoch begins with sequence 0")
        elif known is not None:
            expected = known.sequence + 1
        if producer.sequence != expected:
            raise RefusedError(
                409,
                f"sequence {expected} was expected, not {producer.sequence}",
                {EXPECTED_SEQUENCE: str(expected), RECEIVED_SEQUENCE: str(producer.sequence)},
            )

    def _register(self, producer: ProducerMark) -> dict[str, str | None]:
        """Return the registers that remember a producer, and forget another if there are too many."""
        update: dict[str, str | None] = {
            _PRODUCER_REGISTER
            + producer.id: f"{producer.epoch} {producer.sequence} {self._used + 1}"
        }
        if producer.id not in self._producers and len(self._producers) >= MOST_PRODUCERS:
            oldest = min(self._producers, key=lambda one: self._producers[one].used)
            update[_PRODUCER_REGISTER + oldest] = None
        return update


def closing(producer: ProducerMark | None = None) -> dict[str, str]:
    """Return the register that closes a stream, and says who closed it."""
    return {CLOSED_REGISTER: _closed_by(producer)}


def _closed_by(producer: ProducerMark | None) -> str:
    return "closed" if producer is None else json.dumps(producer)


def _closed() -> RefusedError:
    return RefusedError(409, "the stream is closed")
