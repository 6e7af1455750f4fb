"""Messages for tests: a log on paper for the sequencer, and reading real logs to their end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from walstore import Record, Wal
from walstore.messages import (
    HEADER,
    CommittedReader,
    Flag,
    Outcome,
    ReadCheckpoint,
    Sequencer,
    Stamp,
)

P, Q, R = b"P-----", b"Q-----", b"R-----"


def message(
    offset: int, producer: bytes, flag: int, clock: int, value: bytes = b"", timestamp_us: int = 0
) -> Record:
    """Return a stamped record."""
    stamp = Stamp(producer, clock, flag).encode()
    return Record(offset, value, headers={HEADER: stamp}, timestamp_us=timestamp_us)


@dataclass
class Paper:
    """A log on paper, beginning at offset 1. Values are ``<producer><clock>`` unless given."""

    records: list[Record] = field(default_factory=list)

    def write(
        self,
        producer: bytes,
        flag: int,
        clock: int,
        value: bytes | None = None,
        timestamp_us: int = 0,
    ) -> Record:
        """Append a message."""
        if value is None:
            value = b"" if flag in (Flag.ACK, Flag.ABORT) else b"%c%d" % (producer[0], clock)
        offset = len(self.records) + 1
        self.records.append(message(offset, producer, flag, clock, value, timestamp_us))
        return self.records[-1]

    def script(self, text: str) -> None:
        """Append messages from words like ``P1 P2 P!3 Q.4 P-0``: CONTINUE, ACK ``!``, OUTSIDE ``.``,
        ABORT ``-``."""
        flags = {"!": Flag.ACK, ".": Flag.OUTSIDE, "-": Flag.ABORT}
        for word in text.split():
            producer = {"P": P, "Q": Q, "R": R}[word[0]]
            flag = flags.get(word[1], Flag.CONTINUE)
            self.write(producer, flag, int(word[1:].lstrip("!.-")))


def drain(sequencer: Sequencer, log: Paper) -> Iterator[Record]:
    """Yield the messages of a commit, reading again what the sequencer asks for."""
    while sequencer.is_delivering:
        while sequencer.replay:
            found = sequencer.replayed(log.records[sequencer.replay.start - 1])
            if found is not None:
                yield found
        found = sequencer.take()
        if found is not None:
            yield found


def run(sequencer: Sequencer, log: Paper) -> tuple[list[Outcome], list[bytes]]:
    """Feed the rest of a log; return the outcomes and the values of the committed messages."""
    outcomes: list[Outcome] = []
    values: list[bytes] = []
    for record in log.records[max(sequencer.position, 1) - 1 :]:
        outcomes.append(sequencer.step(record))
        values += [found.value for found in drain(sequencer, log)]
    return outcomes, values


def ids(*names: bytes) -> Callable[[], bytes]:
    """Return a factory of producer ids that gives these, then numbered ones."""
    numbered = (b"id%04d" % n for n in itertools.count())
    return itertools.chain(names, numbered).__next__


async def committed(
    log: Wal, checkpoint: ReadCheckpoint | None = None, **options: int
) -> list[bytes]:
    """Return the values of the messages that are committed now."""
    reader = CommittedReader(log, checkpoint=checkpoint, follow=False, **options)
    return [record.value async for record in reader]
