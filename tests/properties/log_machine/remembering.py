"""What a log remembers beside its records: fences, producers, streams."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.properties.log_machine.running import Running
from tests.properties.log_machine.strategies import BODIES, LEVELS, NAMES, PICK, STREAMS, VALUES
from tests.properties.log_model import Item, Op
from walstore.errors import (
    FencedError,
    SequenceMismatchError,
    StreamClosedError,
)


class Remembering(Running):
    """What a log remembers beside its records: fences, producers, streams."""

    @rule(owner=st.sampled_from(["me", "you"]), register=st.sampled_from(["fence", "a"]))
    def take_fence(self, owner: str, register: str) -> None:
        token = self.model.next_token(owner, register)
        fence = self.run(self.wal.fence(owner, register=register))
        assert fence.token == token
        self._accept(Op(update={register: token}))
        self._acknowledge()
        self.fences = [*self.fences[-3:], fence]

    @rule(value=VALUES, level=LEVELS, pick=PICK)
    def append_under_a_fence(self, value: bytes, level: str | None, pick: int) -> None:
        if not self.fences:
            return
        fence = self.fences[pick % len(self.fences)]
        holds = self.model.registers.get(fence.register) == fence.token
        assert fence.holds == holds
        call = fence.append_many([value], durability=level)
        self._expect(call, Op([(value, {})]), level, None if holds else FencedError)

    @rule(name=st.sampled_from("pqrs"), body=BODIES, back=st.integers(-2, 6), level=LEVELS)
    def produce(self, name: str, body: list[Item], back: int, level: str | None) -> None:
        """Append under the next number, or one that was used, is forgotten, or leaves a gap."""
        items = [(value, {}) for value, _ in body]
        producer, last = self.wal.producer(name), self.model.last_sequence(name)
        assert self.run(producer.last_sequence()) == last
        number = max(1, last + 1 - back) if back else None

        async def work() -> range:
            async with producer.transaction(sequence=number, durability=level) as transaction:
                for value, options in items:
                    await transaction.append(value, **options)
            return transaction.span

        if number is None or number == last + 1:
            self._expect(work(), Op(items, producer=name), level, None)
            return
        span = self.model.producers.get(name, {}).get(number)
        if span is not None:
            assert self.run(work()) == span
            return
        with pytest.raises(SequenceMismatchError) as caught:
            self.run(work())
        assert caught.value.outcome == ("not_written" if number > last else "durable")
        self._acknowledge()

    @rule(name=st.sampled_from("pqrs"), count=st.integers(1, 7), level=LEVELS)
    def produce_more(self, name: str, count: int, level: str | None) -> None:
        """Fill the window, each number twice."""
        producer = self.wal.producer(name)
        for number in range(self.model.last_sequence(name) + 1, count + 1):
            item = (b"produced %d" % number, {})
            call = producer.append_many([item[0]], sequence=number, durability=level)
            self._expect(call, Op([item], producer=name), level, None)
            span = self.run(producer.append_many([b"again"], sequence=number, durability=level))
            assert span == self.model.producers[name][number]

    @rule(name=STREAMS, metadata=st.dictionaries(NAMES, NAMES, max_size=2))
    def open_stream(self, name: str, metadata: dict[str, str]) -> None:
        self.run(self.wal.open_stream(name, metadata=metadata))
        self._accept(Op(opened={name: metadata}))
        self._acknowledge()

    @rule(name=STREAMS)
    def close_stream(self, name: str) -> None:
        if name not in self.model.streams:
            with pytest.raises(StreamClosedError):
                self.run(self.wal.close_stream(name))
            return
        self.run(self.wal.close_stream(name))
        self._accept(Op(closed=[name]))
        self._acknowledge()
