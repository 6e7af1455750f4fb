"""ChainReader: finds the head of a chain in a store.

One listing, the newest manifest that it names, and those behind its base at once. Stores name the newest
manifests first, and the listing is read no further than that takes; then the slot behind the head is looked
at. Where they keep no order, it is read to its end. Any number of tasks may call it. Never writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from uploader.chain.link import MOST_ALPHA, Link
from uploader.chain.moment import Moment
from uploader.chain.names import MANIFEST_PREFIX, manifest_key
from uploader.chain.recovery import WINDOW_SLOTS, slots_of, to_read, walk
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ORDER_PROOF, ListingOrder, ObjectStore
from uploader.together import all_of
from walstore.errors import CorruptionError, StorageUnavailableError
from walstore.ports import Clock
from walstore.threads import Lane

LISTING_SECONDS: Final = 5.0
"""How old a listing may be on which it is relied that the slot behind the head was not pruned."""
_ATTEMPTS: Final = 16
assert ORDER_PROOF > WINDOW_SLOTS + 1, "so many slots in falling order reach below the window"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a chain, as it was at some moment after ``asked``."""

    chain: list[Link]
    """Links known to belong to the chain, the head last."""
    asked: Moment
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
        # Whether the last listing that was read to its end came in no order, or is suspected of that.
        self._reads_all = False
        # When the store was last asked for a listing that named nothing new.
        self._unchanged: Moment | None = None

    async def may_follow(self, head: Link) -> bool:
        """Return whether something may follow a head that :meth:`find_head` returned.

        One look at the one slot in which it would lie, which costs less than a listing. A slot is empty, too,
        once it was pruned, and that takes more than 500 manifests behind it. So this is relied upon for
        :data:`LISTING_SECONDS` after a listing that named nothing new, and True at other times.
        """
        unchanged = self._unchanged
        if unchanged is None or unchanged.age_seconds(self._clock) >= LISTING_SECONDS:
            return True
        return await self._store.head(manifest_key(head.next)) is not None

    async def find_head(self, known: Link | None = None) -> Head | None:
        """Return the head; None if there is no manifest.

        ``known`` was the head once; what was read then is not read again. CorruptionError if a manifest on
        the way to the head is damaged, or does not go on from the one before it, or if the chain ends before
        ``known``; else the store's errors.
        """
        missing: int | None = None
        for _ in range(_ATTEMPTS):
            asked = Moment.now(self._clock)
            slots, is_whole = await self._newest_slots()
            newest = slots[0] if slots else None
            is_same = known is not None and newest == known.slot
            self._unchanged = asked if is_same else None
            if newest is None and known is None:
                return None
            is_behind = newest is None or (known is not None and newest < known.slot)
            if is_behind and is_whole:
                raise CorruptionError(
                    "a manifest was deleted that may be the newest", path=_path(known)
                )
            chain = None
            if not is_behind:
                chain = (
                    [known] if is_same and known is not None else await self._chain(slots, known)
                )
            if chain is not None and (is_whole or await self._go_on(chain)):
                if chain[-1] is not known:
                    await self._worker.run(partial(_scrub, chain, known))
                return Head(chain, asked)
            if not is_whole:
                self._reads_all = True
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
        far that it cannot be told.
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

    async def _newest_slots(self) -> tuple[list[int], bool]:
        """Return the slots that recovery may need, from the newest down, whatever the listing's order.

        Only a listing that has proven its order is left before its end. Returns also whether this one was
        read to its end.
        """
        slots: list[int] = []
        order = ListingOrder()
        is_whole = True
        async for listed in self._store.list(MANIFEST_PREFIX):
            order.note(listed.key)
            slots += slots_of([listed.key])
            if order.is_proven and not self._reads_all and slots[-1] < slots[0] - WINDOW_SLOTS:
                is_whole = False
                break
        else:
            self._reads_all = not order.is_proven
        newest = max(slots, default=0)
        wanted = (slot for slot in slots if slot >= newest - WINDOW_SLOTS)
        return sorted(wanted, reverse=True), is_whole

    async def _go_on(self, chain: list[Link]) -> bool:
        """Add what follows, slot by slot; return False if there is too much of it.

        Little may have been put since the listing. Much says that its keys come in order by parts only.
        """
        for _ in range(MOST_ALPHA):
            after = await self._read(chain[-1].next)
            if after is None or not after.follows(chain[-1]):
                return True
            chain.append(after)
        return False

    async def _chain(self, slots: list[int], known: Link | None) -> list[Link] | None:
        """Return the chain up to its head; None if a link was pruned before it could be read."""
        newest = await self._read(slots[0])
        if newest is None:
            return None
        wanted = to_read(newest, slots, known)
        found = await all_of(map(self._read, wanted))
        if None in found:
            return None
        return walk(newest, {link.slot: link for link in found if link is not None}, known)

    async def _read(self, slot: int) -> Link | None:
        try:
            stored = await self._store.get(manifest_key(slot))
        except ObjectNotFoundError:
            return None
        return await self._worker.run(partial(Link.parse, stored.data, slot=slot))


def _scrub(chain: Sequence[Link], known: Link | None) -> None:
    """Check each manifest behind ``known``, and that it goes on from the one before it."""
    before = known
    for link in chain:
        if link is not known:
            link.manifest.scrub(path=link.key)
            if before is not None:
                before.manifest.scrub_successor(link.manifest, path=link.key)
        before = link


def _path(link: Link | None) -> str:
    return MANIFEST_PREFIX if link is None else link.key
