"""Laws S1 to S3 of the sequencer, for any interleaving of producers, duplicates, crashes and restarts.

Producers follow the protocol on two logs on paper: they publish, store their intents, send them, abort, die
in between and are recovered; duplicates of messages come at any time; readers read a little, die and are
resumed. What the model says was committed must come out, and nothing else.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.messages import Paper, run
from walstore.messages import Flag, ReadCheckpoint, Sequencer, Stamp

LOGS = 2
ACTORS = 3
ACTIONS = (
    *("publish",) * 8,
    *("store", "ack", "ack", "duplicate", "duplicate", "read", "read"),
    *("abort", "crash", "outside", "resume"),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS), st.integers(0, ACTORS - 1), st.integers(0, LOGS - 1),
        st.integers(0, 60),
    ),
    max_size=120,
)  # fmt: skip


@dataclass
class Actor:
    """A program that publishes; each life has another producer id."""

    producer: bytes
    begun: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    unsent: dict[int, int] = field(default_factory=dict)  # intents: the clock for each log
    stored: dict[int, int] = field(default_factory=dict)


class Model:
    """Two logs, the programs that write them, one reader of each, and what is committed."""

    def __init__(self) -> None:
        self.names = (b"%06d" % n for n in itertools.count())
        self.clock = itertools.count(1)  # one for all does no harm: each producer's increases
        self.logs = [Paper() for _ in range(LOGS)]
        self.readers = [Sequencer(ring_records=3) for _ in range(LOGS)]
        self.actors = [Actor(next(self.names)) for _ in range(ACTORS)]
        self.alone = [next(self.names) for _ in range(ACTORS)]
        # By log and producer.
        self.committed: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        self.delivered: list[list[bytes]] = [[] for _ in range(LOGS)]
        self.pins = [0] * LOGS

    def write(self, log: int, producer: bytes, flag: Flag, clock: int) -> bytes:
        value = b"%s/%d" % (producer, clock)
        self.logs[log].write(producer, flag, clock, value)
        return value

    def publish(self, actor: Actor, log: int) -> None:
        if not actor.unsent:
            value = self.write(log, actor.producer, Flag.CONTINUE, next(self.clock))
            actor.begun[log].append(value)

    def store(self, actor: Actor) -> None:
        if actor.unsent:
            return
        for log, values in actor.begun.items():
            self.committed[log, actor.producer] += values
            actor.unsent[log] = next(self.clock)
        actor.stored = dict(actor.unsent)
        actor.begun.clear()

    def ack(self, actor: Actor) -> None:
        if actor.unsent:
            log, clock = actor.unsent.popitem()
            self.write(log, actor.producer, Flag.ACK, clock)

    def abort(self, actor: Actor) -> None:
        for log in actor.begun:
            self.write(log, actor.producer, Flag.ABORT, next(self.clock))
        actor.begun.clear()

    def crash(self, at: int, times: int = 1) -> None:
        """Die, and be recovered, more than once if the recovery dies too."""
        actor = self.actors[at]
        for _ in range(times):
            for log in range(LOGS):
                if log in actor.stored:
                    self.write(log, actor.producer, Flag.ACK, actor.stored[log])
                else:
                    self.write(log, actor.producer, Flag.ABORT, next(self.clock))
        self.actors[at] = Actor(next(self.names))

    def outside(self, at: int, log: int) -> None:
        value = self.write(log, self.alone[at], Flag.OUTSIDE, next(self.clock))
        self.committed[log, self.alone[at]].append(value)

    def duplicate(self, log: int, back: int) -> None:
        """A message comes again, as from a retry; acknowledgements are only sent again when recovering."""
        records = self.logs[log].records
        if back < len(records):
            record = records[-1 - back]
            stamp = Stamp.of(record)
            assert stamp is not None
            if stamp.flag in (Flag.CONTINUE, Flag.OUTSIDE):
                self.logs[log].write(*stamp[::2], stamp.clock, record.value)

    def read(self, log: int, most: int) -> None:
        """Deliver some messages, and stop anywhere, also within a commit."""
        sequencer, records = self.readers[log], self.logs[log].records
        wanted = len(self.delivered[log]) + most
        while len(self.delivered[log]) < wanted:
            if sequencer.replay:
                found = sequencer.replayed(records[sequencer.replay.start - 1])
            elif sequencer.is_delivering:
                found = sequencer.take()
            elif max(sequencer.position, 1) <= len(records):
                sequencer.step(records[max(sequencer.position, 1) - 1])
                continue
            else:
                return
            if found is not None:
                self.delivered[log].append(found.value)

    def resume(self, log: int, ring_records: int) -> None:
        """The reader dies; another goes on from its checkpoint."""
        checkpoint = self.readers[log].checkpoint()
        assert checkpoint.pin >= self.pins[log], "what was let go is never wanted again"
        self.pins[log] = checkpoint.pin
        data = checkpoint.to_bytes()
        self.readers[log] = Sequencer(ReadCheckpoint.from_bytes(data), ring_records=ring_records)

    def do(self, action: str, at: int, log: int, number: int) -> None:
        actor = self.actors[at]
        match action:
            case "publish":
                self.publish(actor, log)
            case "store":
                self.store(actor)
            case "ack":
                self.ack(actor)
            case "abort":
                self.abort(actor)
            case "crash":
                self.crash(at, 1 + number % 2)
            case "outside":
                self.outside(at, log)
            case "duplicate":
                self.duplicate(log, number)
            case "read":
                self.read(log, number % 8)
            case "resume":
                self.resume(log, number % 4)

    def finish(self) -> None:
        for at in range(ACTORS):
            self.crash(at)
        for log in range(LOGS):
            self.read(log, 10**6)

    def check(self) -> None:
        for log in range(LOGS):
            delivered = self.delivered[log]
            expected = [values for (at, _), values in self.committed.items() if at == log]
            assert sorted(delivered) == sorted(itertools.chain(*expected))
            by_producer: dict[bytes, list[bytes]] = defaultdict(list)
            for value in delivered:
                by_producer[value.partition(b"/")[0]].append(value)
            for producer, values in by_producer.items():
                assert values == self.committed[log, producer]
            assert not self.readers[log].pending


@given(steps=STEPS)
@settings(max_examples=100)
def test_each_committed_message_once_and_in_order(steps) -> None:
    model = Model()
    for step in steps:
        model.do(*step)
    model.finish()
    model.check()


SCRIPTS = st.lists(
    st.tuples(
        st.sampled_from("PQ"), st.sampled_from(["", "", "", "!", ".", "-"]), st.integers(1, 12)
    ),
    max_size=40,
).map(lambda words: " ".join(f"{name}{mark}{clock}" for name, mark, clock in words))


@given(script=SCRIPTS, ring_records=st.integers(0, 4), cuts=st.sets(st.integers(0, 40)))
@settings(max_examples=100)
def test_neither_ring_nor_restarts_change_anything(
    script: str, ring_records: int, cuts: set[int]
) -> None:
    """Also for producers that do not follow the protocol at all."""
    log = Paper()
    log.script(script)
    _, expected = run(Sequencer(), log)
    whole = Paper(log.records[:])
    sequencer = Sequencer(ring_records=ring_records)
    values: list[bytes] = []
    for cut in sorted({*cuts, len(whole.records)}):
        values += run(sequencer, Paper(whole.records[:cut]))[1]
        sequencer = Sequencer(sequencer.checkpoint(), ring_records=ring_records)
    assert values == expected
