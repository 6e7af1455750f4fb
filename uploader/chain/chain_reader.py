"""ChainReader: finds the head of a chain in a store.

The newest name need not be the head: links are put before those in front of them are there, and a put may
arrive late. But its writer knew a durable link, its base, at most ``2 * MOST_ALPHA`` slots below
(docs/chain.md). From there the chain is followed.

It takes one listing, the newest manifest that it names, and those behind its base at once. Stores name the
newest manifests first, and the listing is read no further than that takes; then the slot behind the head is
looked at, too. If that is taken, or the keys come in no order, a listing is read to its end. So a writer that
never pauses does not cost more requests. Any number of tasks may call it. Never writes.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from uploader.format.layout import MANIFEST_PREFIX, manifest_key, parse_manifest_key
from uploader.format.link import MOST_ALPHA, Link
from uploader.root.stored_document import find_stored
from uploader.runtime.task_groups import gather_all
from uploader.runtime.two_clock_time import TwoClockTime
from uploader.stores.port import ORDER_PROOF, ListingOrder, ObjectStore
from walstore.core.ports import Clock
from walstore.core.runtime.threads import Lane
from walstore.errors import CorruptionError, StorageUnavailableError

WINDOW_SLOTS: Final = 2 * MOST_ALPHA
"""How far below the newest name its base is, at most."""
LISTING_SECONDS: Final = 5.0
"""How old a listing may be that shows that the slot behind the head was not pruned; and how long listings are
read to their end, which takes no more requests, once one that was left early had to be."""
_ATTEMPTS: Final = 16
assert ORDER_PROOF > WINDOW_SLOTS + 1, "so many slots in falling order reach below the window"


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The head of a chain, as it was at some moment after ``asked``."""

    chain: list[Link]
    """Links known to belong to the chain, the head last."""
    asked: TwoClockTime
    """When the store had not been asked yet."""

    @property
    def link(self) -> Link:
        """The head."""
        return self.chain[-1]


class ChainReader:
    """Reads one chain."""

    def __init__(self, store: ObjectStore, worker: Lane, clock: Clock) -> None:
        """``worker`` takes the work on long manifests off the event loop."""
        self._store = store
        self._worker = worker
        self._clock = clock
        # Whether the last listing that was read to its end came in no order.
        self._is_unordered = False
        # When a listing that was left early was last found to lack the head.
        self._lacked: TwoClockTime | None = None
        # When the store was last asked for a listing that named nothing new.
        self._unchanged: TwoClockTime | None = None

    async def may_follow(self, head: Link) -> bool:
        """Return whether something may follow a head that :meth:`find_head` returned.

        One look at the one slot that would hold it, which costs less than a listing. A slot is empty, too,
        once it was pruned, and that takes more than 500 manifests behind it. So this is trusted for
        :data:`LISTING_SECONDS` after a listing that named nothing new; at other times it returns True.
        """
        unchanged = self._unchanged
        if unchanged is None or unchanged.age_seconds(self._clock) >= LISTING_SECONDS:
            return True
        return await self._store.head(manifest_key(head.next)) is not None

    async def find_head(self, known: Link | None = None) -> ChainHead | None:
        """Return the head; None if there is no manifest.

        ``known`` was the head once; what was read then is not read again. CorruptionError if a manifest on
        the way to the head is damaged, or does not continue the one before it, or if the chain ends before
        ``known``; else the store's errors.
        """
        missing: int | None = None
        must_be_whole = self._must_be_whole()
        for _ in range(_ATTEMPTS):
            asked = TwoClockTime.now(self._clock)
            slots, is_whole = await self._newest_slots(to_end=must_be_whole)
            newest = slots[0] if slots else None
            is_same = known is not None and newest == known.slot
            self._unchanged = asked if is_same else None
            if newest is None and known is None:
                return None
            is_behind = newest is None or (known is not None and newest < known.slot)
            if is_behind and is_whole:
                path = MANIFEST_PREFIX if known is None else known.key
                raise CorruptionError("a manifest was deleted that may be the newest", path=path)
            seen = _Seen(self.read_link)
            chain = None
            if is_same and known is not None:
                chain = [known]
            elif not is_behind:
                chain = await self._chain(slots, known, seen, looks_behind=not is_whole)
            if chain is not None and (is_whole or not await self._is_followed(chain[-1], seen)):
                if chain[-1] is not known:
                    await self._worker.run(partial(_scrub, chain, known))
                return ChainHead(chain, asked)
            if not is_whole:
                self._lacked, must_be_whole = TwoClockTime.now(self._clock), True
                continue
            if missing == newest:
                assert newest is not None
                raise CorruptionError(
                    "the manifests before it are missing", path=manifest_key(newest)
                )
            missing = newest
        raise StorageUnavailableError(
            f"the manifests at {self._store.url} are pruned faster than they can be read"
        )

    async def is_linked(self, link: Link) -> bool:
        """Return whether a link that was put belongs to the chain, as far as that can be seen.

        The one before it was durable. One listing, if it is still the newest; False if the chain went on so
        far that nobody can say.
        """
        slots = await self.list_slots()
        if slots and slots[0] == link.slot:
            return True  # nothing ever followed another one in this slot, or it would be there
        found = await self.find_head()
        return found is not None and any(item.place == link.place for item in found.chain)

    async def list_slots(self) -> list[int]:
        """Return the slots of all manifests, from the newest down."""
        keys = [listed.key async for listed in self._store.list(MANIFEST_PREFIX)]
        return sorted(slots_of(keys), reverse=True)

    async def read_link(self, slot: int) -> Link | None:
        """Return the manifest in a slot, whether it belongs to the chain or not; None if there is none.

        CorruptionError, FormatVersionError, and the store's errors.
        """
        parse = partial(Link.parse, slot=slot)
        found = await find_stored(self._store, manifest_key(slot), parse, worker=self._worker)
        return None if found is None else found.value

    def _must_be_whole(self) -> bool:
        """Return whether a listing that is left early would most likely lack the head."""
        lacked = self._lacked
        is_busy = lacked is not None and lacked.age_seconds(self._clock) < LISTING_SECONDS
        return is_busy or self._is_unordered

    async def _newest_slots(self, *, to_end: bool) -> tuple[list[int], bool]:
        """Return the slots that recovery may need, from the newest down, whatever the listing's order.

        Only a listing that has proven its order is left before its end, and not if ``to_end``. Returns also
        whether this one was read to its end.
        """
        slots: list[int] = []
        order = ListingOrder()
        is_whole = True
        async for listed in self._store.list(MANIFEST_PREFIX):
            order.note(listed.key)
            slots += slots_of([listed.key])
            if order.is_proven and not to_end and slots[-1] < slots[0] - WINDOW_SLOTS:
                is_whole = False
                break
        else:
            self._is_unordered = not order.is_proven
        newest = max(slots, default=0)
        wanted = (slot for slot in slots if slot >= newest - WINDOW_SLOTS)
        return sorted(wanted, reverse=True), is_whole

    async def _is_followed(self, link: Link, seen: _Seen) -> bool:
        """Return whether something follows a link that is the head by a listing that was left early.

        Either it was put since, or the keys come in order by parts only.
        """
        after = (await seen.read([link.next]))[link.next]
        return after is not None and after.follows(link)

    async def _chain(
        self, slots: list[int], known: Link | None, seen: _Seen, *, looks_behind: bool
    ) -> list[Link] | None:
        """Return the chain up to its head; None if a link was pruned before it could be read.

        With ``looks_behind`` the slot behind the newest is read at the same time as those before it.
        """
        newest = (await seen.read(slots[:1]))[slots[0]]
        if newest is None:
            return None
        wanted = to_read(newest, slots, known)
        found = await seen.read([*wanted, newest.next] if looks_behind else wanted)
        links = {slot: link for slot in wanted if (link := found[slot]) is not None}
        return walk(newest, links, known) if len(links) == len(wanted) else None


class _Seen:
    """What slots held after a listing; each is read once."""

    def __init__(self, read: Callable[[int], Coroutine[Any, Any, Link | None]]) -> None:
        self._read = read
        self._links: dict[int, Link | None] = {}

    async def read(self, slots: Sequence[int]) -> Mapping[int, Link | None]:
        """Return what slots hold, read at the same time, and those read before."""
        missing = [slot for slot in slots if slot not in self._links]
        found = await gather_all(map(self._read, missing))
        self._links.update(zip(missing, found, strict=True))
        return self._links


def _scrub(chain: Sequence[Link], known: Link | None) -> None:
    """Check each manifest behind ``known``, and that it continues the one before it."""
    before = known
    for link in chain:
        if link is not known:
            link.manifest.scrub(path=link.key)
            if before is not None:
                before.manifest.scrub_successor(link.manifest, path=link.key)
        before = link


def slots_of(keys: Iterable[str]) -> list[int]:
    """Return the slots that a listing names, in its order; what is no manifest of a chain is left out."""
    slots = []
    for key in keys:
        try:
            slots.append(parse_manifest_key(key))
        except ValueError:
            continue
    return slots


def to_read(newest: Link, slots: Sequence[int], known: Link | None) -> list[int]:
    """Return the slots to be read next to ``newest`` and ``known``, given the names near the newest one.

    At most twice :data:`~uploader.format.link.MOST_ALPHA`, in practice as many as were under way at once.
    """
    low = newest.base if known is None or known.slot < newest.base else known.slot + 1
    return [slot for slot in slots if low <= slot < newest.slot]


def walk(newest: Link, links: Mapping[int, Link], known: Link | None) -> list[Link] | None:
    """Return the chain from where it is known to its head.

    It begins with ``known`` or with the base of ``newest``, both of which were durable. None if that is not
    among ``links`` any more: it was pruned meanwhile, so the listing is old.
    """
    found = {**links, newest.slot: newest}
    if known is not None and known.slot >= newest.base:
        link = known
    elif newest.base in found:
        link = found[newest.base]
    else:
        return None
    chain = [link]
    while (after := found.get(link.next)) is not None and after.follows(link):
        chain.append(after)
        link = after
    return chain
