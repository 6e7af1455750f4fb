"""Redrive: dead letters of a group become jobs again, each once, whoever asks how often.

A letter is appended to the stream of its job again, for its group alone. Which letters are done is in a
register of the log, ``redriven.NAME``, which the same transaction sets. So a call whose answer is lost is
repeated without harm, and two callers do not append a letter twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

from walstore.errors import LimitExceededError, RecordTooLargeError, RegisterMismatchError
from walstore.positions.groups.delay import NOT_BEFORE
from walstore.positions.groups.letters import LETTER_HEADERS
from walstore.records import Record

REDRIVEN_FOR: Final = "walstore.redriven_for"
"""Header of a record that is a job of one group only: the group's name."""
_DROPPED: Final = LETTER_HEADERS | {NOT_BEFORE, REDRIVEN_FOR}
_PREFIX: Final = "redriven."
_MOST_CHARS: Final = 4096
_AT_ONCE: Final = 1000
_BYTES_AT_ONCE: Final = 4 << 20
_RECORD_ROOM: Final = 100


class Redriven(NamedTuple):
    """What :meth:`walstore.Wal.redrive_group` did."""

    letters: list[int]
    """Offsets of the letters that this call made jobs again."""
    skipped: list[int]
    """Offsets of letters that lack their value, and whose record is no longer in the log or too large."""
    left: int
    """How many letters are still to be redriven, those skipped included."""


def is_job(record: Record, group: str, skipped_stream: str | None) -> bool:
    """Return whether a record is a job of a group.

    A group of all streams skips that of its own letters, and each group what was redriven for another one.
    """
    if skipped_stream is not None and record.stream == skipped_stream:
        return False
    meant = record.headers.get(REDRIVEN_FOR) if record.headers else None
    return meant is None or meant == group.encode()


async def redrive(
    log: Any, name: str, stream: str, offsets: Collection[int] | None, limit: int | None
) -> Redriven:
    """Make jobs of the letters of group ``name`` in ``stream``; as :meth:`walstore.Wal.redrive_group`."""
    letters: list[int] = []
    too_large: set[int] = set()
    while True:
        await log.refresh()
        before = log.registers.get(_PREFIX + name)
        most = _AT_ONCE if limit is None else min(_AT_ONCE, limit - len(letters))
        look = await _look(log, name, stream, offsets, RedrivenLetters(before), most, too_large)
        if not look.chosen:
            return Redriven(letters, look.skipped, look.left)
        after = RedrivenLetters.of(look.states | dict.fromkeys(look.chosen, True))
        if len(after) > _MOST_CHARS:
            raise LimitExceededError(
                f"letters of group {name!r} were redriven with too many gaps between them; redrive the "
                "ones before first, or all",
                limit=_MOST_CHARS,
            )
        at = 0
        try:
            async with log.transaction(
                expect={_PREFIX + name: before}, update={_PREFIX + name: after}
            ) as transaction:
                for at, job in look.chosen.items():  # noqa: B007 - which one was refused
                    await transaction.append(job.value, job.key, job.stream, job.headers)
        except RegisterMismatchError:
            continue  # another caller was here: look again
        except RecordTooLargeError:  # with its header; nothing was appended
            too_large.add(at)
            continue
        letters += look.chosen


class RedrivenLetters:
    """Which letters are redriven: ranges of offsets, in which every letter is."""

    def __init__(self, value: str | None) -> None:
        self._ranges: list[tuple[int, int]] = []
        for word in (value or "").split():
            low, _, high = word.partition("-")
            if low.isdecimal() and high.isdecimal():
                self._ranges.append((int(low), int(high)))

    def __contains__(self, offset: int) -> bool:
        return any(low <= offset <= high for low, high in self._ranges)

    @staticmethod
    def of(states: Mapping[int, bool]) -> str:
        """Return the value of the register: ``states`` says of each letter, in order, whether it is done."""
        runs = (
            [at for at, _ in run] for is_done, run in groupby(states.items(), _is_done) if is_done
        )
        return " ".join(f"{run[0]}-{run[-1]}" for run in runs)


def _is_done(state: tuple[int, bool]) -> bool:
    return state[1]


class _LetterLook(NamedTuple):
    """The letters of a group that are there."""

    states: dict[int, bool]
    """Of all: whether they were redriven."""
    chosen: dict[int, Record]
    """Of those that are now to be: the job."""
    skipped: list[int]
    left: int
    """How many were neither redriven nor chosen."""


async def _look(
    log: Any,
    name: str,
    stream: str,
    offsets: Collection[int] | None,
    done: RedrivenLetters,
    most: int,
    too_large: Collection[int],
) -> _LetterLook:
    look, size, left = _LetterLook({}, {}, [], 0), 0, 0
    async with log.reader("earliest", stream=stream, follow=False) as reader:
        async for letter in reader:
            if letter.headers.get("walstore.group") != name.encode():
                continue
            look.states[letter.offset] = letter.offset in done
            if look.states[letter.offset]:
                continue
            left += 1
            is_meant = offsets is None or letter.offset in offsets
            if not is_meant or len(look.chosen) >= most or size > _BYTES_AT_ONCE:
                continue
            job = None if letter.offset in too_large else await _job_of(log, letter, name)
            if job is None:
                look.skipped.append(letter.offset)
                continue
            look.chosen[letter.offset] = job
            size += len(job.value) + _RECORD_ROOM
    return look._replace(left=left - len(look.chosen))


async def _job_of(log: Any, letter: Record, name: str) -> Record | None:
    """Return what is appended for a letter: as the record was, but for the headers that say what it is."""
    found = letter
    if "walstore.omitted" in letter.headers:
        offset = int(letter.headers["walstore.offset"])
        if offset < log.head:
            return None
        async with log.reader(offset, stop=offset + 1, follow=False) as reader:
            found = (await reader.fetch(max_records=1)).records()[0]
    stream = letter.headers.get("walstore.stream", b"").decode() or None
    own = {header: value for header, value in found.headers.items() if header not in _DROPPED}
    return found._replace(stream=stream, headers={**own, REDRIVEN_FOR: name.encode()})
