"""Turns: whose request begins next, and how many in one pass of the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from walstore.serve.turns import SHORT_HEAD_BYTES, Turns

MIB = 1 << 20
SHORT, LONG = 40, 64 << 10


class Loop:
    """Runs what was to be called soon, a pass at a time."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def run_pass(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()

    def run(self) -> None:
        while self.soon:
            self.run_pass()


class Client:
    """Has sent requests with heads of some lengths."""

    def __init__(self, turns: Turns, begun: list[Client]) -> None:
        self._turns = turns
        self._begun = begun
        self._sent: deque[int] = deque()
        self.held: list[int] = []

    def send(self, *heads: int) -> None:
        self._sent.extend(heads)
        self.take_turn()

    def take_turn(self) -> None:
        while self._sent:
            held = self._turns.begin(self, self._sent[0], is_first=not self.held)
            if held is None:
                return
            if held:
                self.held.append(held)
            self._sent.popleft()
            self._begun.append(self)

    def answer(self) -> None:
        while self.held:
            self._turns.release(self.held.pop())

    @property
    def unbegun(self) -> int:
        return len(self._sent)


class Setting:
    def __init__(self, most_bytes: int = 32 * MIB) -> None:
        self.loop = Loop()
        self.turns = Turns(self.loop.soon.append, most_bytes)
        self.begun: list[Client] = []

    def client(self) -> Client:
        return Client(self.turns, self.begun)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_a_client_alone_begins_at_once(setting: Setting) -> None:
    one = setting.client()
    for _ in range(1000):
        one.send(SHORT)
        setting.loop.run()
        assert not one.unbegun


def test_a_request_begins_behind_few_of_each_other_client(setting: Setting) -> None:
    many = [setting.client() for _ in range(50)]
    for one in many:
        one.send(*[SHORT] * 500)
    late = setting.client()
    late.send(SHORT)
    while late.unbegun:
        before = len(setting.begun)
        setting.loop.run_pass()
        assert len(setting.begun) - before < 220  # the loop goes on to other things
    assert setting.begun.count(many[-1]) <= 32  # one round of turns, and the pass that ended it
    setting.loop.run()
    assert all(setting.begun.count(one) == 500 for one in many)


def test_short_requests_do_not_wait_for_long_ones_and_these_come_to_their_turn(
    setting: Setting,
) -> None:
    many = [setting.client() for _ in range(50)]
    for one in many:
        one.send(*[LONG] * 5)
        one.answer()
    steady = setting.client()
    passes = 0
    while any(one.unbegun for one in many):
        steady.send(SHORT)
        setting.loop.run_pass()
        passes += 1
        assert not steady.unbegun
        for one in many:
            one.answer()
    assert passes <= 50 * 5


def test_long_ones_of_a_client_wait_behind_those_of_others(setting: Setting) -> None:
    greedy, other = setting.client(), setting.client()
    greedy.send(*[LONG] * 100)
    other.send(LONG)
    while other.unbegun:
        setting.loop.run_pass()
        greedy.answer()
    assert setting.begun.count(greedy) <= 3


def test_what_heads_become_is_bounded_and_a_client_that_holds_nothing_begins_a_short_one() -> None:
    setting = Setting(most_bytes=4 * MIB)
    many = [setting.client() for _ in range(20)]
    for one in many:
        one.send(LONG, LONG)
    setting.loop.run()
    assert setting.turns.held_bytes <= 4 * MIB
    assert 0 < len(setting.begun) < 40
    fine = setting.client()
    fine.send(SHORT_HEAD_BYTES)
    setting.loop.run()
    assert not fine.unbegun
    fine.send(SHORT_HEAD_BYTES)  # now it holds something, as the others
    setting.loop.run()
    while any(one.unbegun for one in many) or fine.unbegun:
        for one in [*many, fine]:
            one.answer()
        setting.loop.run()
    for one in many:
        one.answer()
    assert setting.turns.held_bytes == 0


def test_the_largest_begin_one_after_the_other_and_nobody_overtakes_one() -> None:
    setting = Setting(most_bytes=MIB)
    holder, huge, later = setting.client(), setting.client(), setting.client()
    holder.send(32 << 10)
    huge.send(16 * MIB)
    later.send(32 << 10)
    setting.loop.run()
    assert (holder.unbegun, huge.unbegun, later.unbegun) == (0, 0, 1)
    huge.send(16 * MIB)
    setting.loop.run()
    holder.answer()
    setting.loop.run()
    assert (huge.unbegun, later.unbegun) == (1, 0)
    huge.answer()
    setting.loop.run()
    assert not huge.unbegun


def test_what_waits_long_with_few_parts_holds_nothing(setting: Setting) -> None:
    """A name of a megabyte is one object; its bytes count as those of the request."""
    turns, client = setting.turns, setting.client()
    held = turns.begin(client, 2 * MIB, is_first=True)
    assert held
    assert turns.settle(held, 2 * MIB, 12) == 0
    assert turns.held_bytes == 0
    turns = Setting().turns
    held = turns.begin(client, 2 * MIB, is_first=True)
    assert held
    assert turns.settle(held, 2 * MIB, 1000) == turns.held_bytes == 2 * MIB + 64_000


def test_one_that_leaves_holds_nobody_up() -> None:
    setting = Setting(most_bytes=MIB)
    holder, huge, later = setting.client(), setting.client(), setting.client()
    holder.send(16 << 10, 16 << 10)
    huge.send(16 * MIB)
    later.send(8 << 10)
    setting.loop.run()
    assert (huge.unbegun, later.unbegun) == (1, 1)
    setting.turns.leave(huge)
    setting.loop.run()
    assert not later.unbegun
