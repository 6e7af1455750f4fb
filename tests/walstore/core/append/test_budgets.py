"""B1 to B3: what the logs of a store share."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from walstore.core.append.budgets import LEASE_BYTES, CacheBudget, ChannelBudget, ChannelShare


class Holder:
    """A cache as the budget sees it."""

    def __init__(self, budget: CacheBudget) -> None:
        self.budget = budget
        self.batches: deque[int] = deque()

    @property
    def size_bytes(self) -> int:
        return sum(self.batches)

    def evict_oldest(self) -> int:
        return self.batches.popleft()

    def add(self, size_bytes: int) -> None:
        self.batches.append(size_bytes)
        self.budget.grow(self, size_bytes)

    def clear(self) -> None:
        size_bytes = self.size_bytes
        self.batches.clear()
        self.budget.shrink(self, size_bytes)


def test_B1_the_log_used_longest_ago_gives_its_oldest_first() -> None:
    budget = CacheBudget(100)
    a, b, c = (Holder(budget) for _ in range(3))
    a.add(30)
    a.add(20)
    b.add(40)
    c.add(20)
    assert list(a.batches) == [20]
    budget.touch(a)
    c.add(30)
    assert (list(a.batches), list(b.batches), list(c.batches)) == ([20], [], [20, 30])
    assert budget.size_bytes == 70


def test_B1_a_batch_larger_than_the_budget_is_not_kept() -> None:
    budget = CacheBudget(100)
    a, b = Holder(budget), Holder(budget)
    a.add(50)
    b.add(101)
    assert (list(a.batches), list(b.batches), budget.size_bytes) == ([], [], 0)


def test_B1_what_a_cache_gives_up_by_itself_is_free() -> None:
    budget = CacheBudget(100)
    a, b = Holder(budget), Holder(budget)
    a.add(100)
    a.clear()
    b.add(100)
    assert (budget.size_bytes, b.size_bytes) == (100, 100)
    budget.touch(a)  # holds nothing: nobody to evict
    b.add(1)
    assert list(b.batches) == [1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 60) | st.none()), max_size=60))
def test_B1_the_sum_is_right_and_within_the_budget(steps: list[tuple[int, int | None]]) -> None:
    budget = CacheBudget(100)
    holders = [Holder(budget) for _ in range(5)]
    for at, size_bytes in steps:
        if size_bytes is None:
            holders[at].clear()
        else:
            holders[at].add(size_bytes)
        assert budget.size_bytes == sum(holder.size_bytes for holder in holders) <= 100


class Appender:
    """A channel as the budget sees it: groups wait in order."""

    def __init__(self, budget: ChannelBudget, log: list[str] | None = None, name: str = "") -> None:
        self.share = budget.share(self.admit)
        self.queue: deque[int] = deque()
        self.accepted: deque[int] = deque()
        self.log = [] if log is None else log
        self.name = name

    def put(self, size_bytes: int) -> None:
        self.queue.append(size_bytes)
        self.admit()

    def admit(self) -> None:
        while self.queue:
            if not self.share.has_room(self.queue[0]):
                self.share.wait(self.queue[0])
                return
            size_bytes = self.queue.popleft()
            self.share.take(size_bytes)
            self.accepted.append(size_bytes)
            self.log.append(self.name)

    def release(self) -> None:
        if self.accepted:
            self.share.give(self.accepted.popleft())
        self.admit()
        self.share.serve()


def test_B2_appends_wait_for_room() -> None:
    budget = ChannelBudget(100)
    a, b = Appender(budget), Appender(budget)
    a.put(60)
    b.put(50)
    assert (list(b.accepted), budget.waiting, budget.used_bytes) == ([], 1, 60)
    a.release()
    assert (list(b.accepted), budget.waiting, budget.used_bytes) == ([50], 0, 50)


def test_B2_a_group_larger_than_the_budget_is_accepted_alone() -> None:
    budget = ChannelBudget(100)
    a, b, c = (Appender(budget) for _ in range(3))
    a.put(10)
    b.put(500)
    c.put(10)  # it would fit, but b asked first
    assert (list(b.accepted), list(c.accepted)) == ([], [])
    a.release()
    assert (list(b.accepted), list(c.accepted)) == ([500], [])
    b.release()
    assert list(c.accepted) == [10]


def test_B3_logs_that_wait_are_served_in_turn_one_group_each() -> None:
    budget = ChannelBudget(100)
    log: list[str] = []
    flood, other = Appender(budget, log, "flood"), Appender(budget, log, "other")
    for _ in range(10):
        flood.put(50)
    other.put(50)
    other.put(50)
    assert log == ["flood", "flood"]
    for _ in range(5):
        flood.release()
        other.release()
    assert log[2:6] == ["flood", "other", "flood", "other"]
    for _ in range(20):
        flood.release()
        other.release()
    assert (log.count("flood"), log.count("other"), budget.used_bytes) == (10, 2, 0)


def test_B3_who_goes_first_is_served_before_all_who_do_not() -> None:
    budget = ChannelBudget(100)
    served: list[str] = []

    def share(name: str) -> ChannelShare:
        return budget.share(lambda: served.append(name))

    holder = share("holder")
    holder.take(100)
    for name, is_first in (("a", False), ("b", True), ("c", False), ("d", True)):
        share(name).wait(10, is_first=is_first)
    assert budget.waiting == 4
    holder.give(100)
    holder.serve()
    assert served == ["b", "d", "a", "c"]


def test_B4_others_leave_room_for_those_that_are_first_and_the_newest_of_them_is_served() -> None:
    budget = ChannelBudget(100, first_bytes=50)
    served: list[str] = []

    def share(name: str) -> ChannelShare:
        return budget.share(lambda: served.append(name))

    holder, first = share("holder"), share("first")
    assert holder.has_room(50)
    holder.take(50)
    assert not share("other").has_room(1)
    assert first.has_room(50, is_first=True)
    for name in "abc":
        share(name).wait(40)
    first.wait(40, is_first=True)
    holder.serve()
    assert served == ["first"]
    holder.give(40)
    holder.serve()
    assert served == ["first", "c", "b", "a"]


def test_a_lease_counts_until_it_is_used_or_returned() -> None:
    budget = ChannelBudget(10 * LEASE_BYTES)
    a = budget.share(lambda: None)
    assert a.lease(1 << 30) == LEASE_BYTES
    assert budget.used_bytes == LEASE_BYTES
    a.take(100)
    assert budget.used_bytes == LEASE_BYTES
    assert a.lease(50) == 50
    assert budget.used_bytes == 150
    assert a.lease(0) == 0
    a.give(100)
    assert budget.used_bytes == 0


def test_a_lease_takes_no_more_than_what_is_left_and_nothing_while_somebody_waits() -> None:
    budget = ChannelBudget(100)
    a, b, c = (Appender(budget) for _ in range(3))
    a.put(70)
    assert a.share.lease(1000) == 30
    assert not b.share.has_room(1)
    assert a.share.has_room(30)  # it is its own
    b.put(50)
    assert a.share.lease(1000) == 0
    assert c.share.lease(1000) == 0
    a.release()
    assert list(b.accepted) == [50]


def test_a_closed_share_gives_everything_back_and_waits_no_more() -> None:
    budget = ChannelBudget(100)
    a, b, c = (Appender(budget) for _ in range(3))
    a.put(90)
    b.put(20)
    c.put(30)
    b.share.close()
    assert (budget.waiting, list(c.accepted)) == (1, [])
    a.share.lease(10)
    a.share.close()
    assert (budget.used_bytes, list(b.accepted), list(c.accepted)) == (30, [], [30])
    a.share.give(90)  # a commit that was under way ends
    assert budget.used_bytes == 30


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["put", "release", "lease"]), st.integers(1, 150)
        ),
        max_size=80,
    )
)
def test_B2_nothing_is_lost_and_everybody_is_served_in_the_end(
    steps: list[tuple[int, str, int]],
) -> None:
    budget = ChannelBudget(100)
    appenders = [Appender(budget) for _ in range(4)]
    asked = 0
    for at, what, size_bytes in steps:
        if what == "put":
            appenders[at].put(size_bytes)
            asked += 1
        elif what == "release":
            appenders[at].release()
        else:
            appenders[at].share.lease(size_bytes)
        held = sum(sum(appender.accepted) for appender in appenders)
        groups = sum(len(appender.accepted) for appender in appenders)
        assert held <= budget.used_bytes
        assert budget.used_bytes <= 100 or groups == 1
    for appender in appenders:
        appender.share.lease(0)
    for _ in range(2 * asked + 1):
        for appender in appenders:
            appender.release()
    assert all(not appender.queue and not appender.accepted for appender in appenders)
    assert (budget.used_bytes, budget.waiting) == (0, 0)
