"""The window: who may be planned when, in whatever order the answers come."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from uploader.chain.next_manifest import LinkBase, PendingLink
from uploader.chain.window import PendingWindow
from uploader.format.link import Link
from uploader.format.manifest import Manifest
from uploader.runtime.two_clock_time import TwoClockTime

EMPTY = Manifest.initial("w")
NOW = TwoClockTime(0.0, 0)


async def _nothing(ground: LinkBase) -> Manifest | None:
    return ground.manifest


def pending_link(*, is_append: bool = True) -> PendingLink:
    return PendingLink(_nothing, is_append=is_append)


class Model:
    """A window, and a chain that is planned, put, lost and failed by a list of choices."""

    def __init__(self, alpha: int) -> None:
        self.alpha = alpha
        self.ids = iter(range(10**6))
        self.window = PendingWindow(alpha=alpha, make_id=lambda: f"id {next(self.ids)}")
        root = Link.root(EMPTY, author="somebody", alpha=3)
        self.window.set_head(root, NOW)
        self.chain = [root]
        self.links: list[PendingLink] = []
        self.slots: dict[tuple[str, int], Link] = {}

    @property
    def planned(self) -> list[PendingLink]:
        return [item for item in self.links if item.link is not None]

    def plan(self) -> None:
        """Plan the first link that is not, if it may be."""
        window = self.window
        first = next((item for item in self.links if item.link is None), None)
        if first is None or not window._may_plan(first):
            return
        if window.is_stale:
            assert not self.planned
            window.set_head(self.chain[-1], NOW)
        tip, head = window.tip, window.head
        assert tip is not None
        assert head is not None
        link = tip.successor(
            EMPTY, author=window.author, alpha=self.alpha, base=head.slot, now_us=0
        )
        # W1
        assert head.next <= link.slot < head.next + self.alpha
        assert tip is head or (tip.author == link.author == head.author)
        assert not link.is_takeover or not self.planned
        # W3
        assert self.slots.setdefault((link.author, link.slot), link) is link
        window.plan(first, link, NOW)

    def put(self, at: int) -> None:
        """The answer to one of the puts comes."""
        waiting = [item for item in self.planned if not item.is_durable]
        if not waiting:
            return
        item = waiting[at % len(waiting)]
        done = self.window.put(item)
        # W2
        for first in done:
            assert first.link is not None
            assert first.link.follows(self.chain[-1])
            self.chain.append(first.link)
            self.links.remove(first)
        assert self.window.head is self.chain[-1]
        assert (item in done) == item.is_done

    def lose(self, at: int) -> None:
        """Somebody took the slot of one of them; those before it may still come."""
        waiting = [item for item in self.planned if not item.is_durable]
        if waiting:
            item = waiting[at % len(waiting)]
            index = self.links.index(item)
            self.window.lost(item)
            assert all(later.link is None for later in self.links[index:])
            if index == 0:
                head = self.chain[-1]
                author = f"foreign {next(self.ids)}"
                self.chain.append(
                    head.successor(EMPTY, author=author, alpha=2, base=head.slot, now_us=0)
                )

    def fail(self, at: int) -> None:
        """One of them has no answer, or is cancelled."""
        if not self.planned:
            return
        item = self.planned[at % len(self.planned)]
        index = self.links.index(item)
        self.window.fail(item, TimeoutError())
        behind = self.links[index + 1 :]
        assert all(later.error is not None for later in behind if later.is_append)
        assert all(later.link is None for later in self.links[index:])
        self.links = [later for later in self.links if later.error is None]


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "plan", "plan", "put", "put", "lose", "fail"]), st.integers(0, 9)
    ),
    max_size=80,
)


@given(st.integers(1, 8), ACTS)
@settings(max_examples=300)
def test_whatever_order_the_answers_come_in(alpha: int, acts: list[tuple[str, int]]) -> None:
    model = Model(alpha)
    for act, at in acts:
        if act == "enter":
            entered = pending_link(is_append=bool(at % 4))
            model.window.enter(entered)
            model.links.append(entered)
        elif act == "plan":
            model.plan()
        else:
            getattr(model, act)(at)
        assert [item.link is not None for item in model.links] == sorted(
            (item.link is not None for item in model.links), reverse=True
        )


async def test_turns_come_in_the_order_of_entry() -> None:
    """Also for who has to be planned again, before those that came later."""
    model = Model(alpha=2)
    window = model.window
    first, second, third = pending_link(), pending_link(), pending_link()
    for item in (first, second, third):
        window.enter(item)
    await window.wait_turn(first)
    link = window.tip.successor(EMPTY, author=window.author, alpha=2, base=0, now_us=0)
    window.plan(first, link, NOW)
    async with asyncio.TaskGroup() as group:
        turns: list[PendingLink] = []

        async def turn(item: PendingLink) -> None:
            await window.wait_turn(item)
            turns.append(item)
            window.leave(item)

        group.create_task(turn(second))
        group.create_task(turn(third))
        await asyncio.sleep(0)
        assert turns == []
        window.lost(first)
        assert first.decided.is_set()
        group.create_task(turn(first))
    assert turns == [first, second, third]
