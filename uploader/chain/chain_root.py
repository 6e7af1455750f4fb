"""ChainRoot: the root of a log as a chain of immutable manifests. Needs nothing of a store but put-if-absent.

Owns the requests of publishing; ``window.py`` owns the order of what is under way, and decides what follows
from each answer. Every change is one put in a slot that no one else can have used. Never touches fragments.

What may go wrong, and what follows:
  * the slot is taken: the chain is read again, and what was under way is put behind its new head; or
    ContentionError if another writer appended;
  * no answer: the slot is read back; if that fails too the outcome is unknown and the caller may call again
    with the same fragments, which publishes them once whatever happened before;
  * the answer took so long that the slot may have been used and cleaned up meanwhile: the chain is read to
    find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from uploader.chain.chain_reader import ChainHead, ChainReader
from uploader.chain.inline import InlineFragments
from uploader.chain.next_manifest import LinkBase, NextManifest, PendingLink, WaitForDurableError
from uploader.chain.pruning import Pruner
from uploader.chain.shards import list_behind
from uploader.chain.window import PendingWindow, new_author
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.layout import MOST_SHARDS, FragmentName, shard_folder
from uploader.format.link import MOST_ALPHA, MOST_INLINE, Link
from uploader.format.manifest import Manifest
from uploader.format.rollup import RollUpSettings
from uploader.format.setsum import Setsum
from uploader.root import cas
from uploader.root.garbage_file import Announced
from uploader.root.roller import Roller
from uploader.root.root import Change, Note
from uploader.root.write_guard import check_creatable, check_not_destroyed, destroyed
from uploader.runtime.task_groups import task_group
from uploader.runtime.two_clock_time import TwoClockTime
from uploader.stores.port import ListedObject, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.threads import Worker
from walstore.core.validation.arguments import as_settings
from walstore.core.validation.fields import MIB, check_fields, described, whole
from walstore.errors import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OutcomeUnknownError,
    WalError,
)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    """How one program writes a chain. Others, before and after, may do it with other settings."""

    alpha: int = whole(
        8,
        """Manifests under way at once. Each may be put before the one before it is durable, so that
        publishing takes one round trip however often it happens. Recovery takes that many reads.""",
        low=1,
        high=MOST_ALPHA,
    )

    shards: int = whole(
        1,
        """Prefixes that new fragments are spread over: stores limit the requests for each prefix. Readers
        accept any number; to change it, close the log and open it again.""",
        low=1,
        high=MOST_SHARDS,
    )

    inline_bytes: int = whole(
        0,
        """Fragments up to this length are put into the manifest that names them, so that an append takes one
        round trip instead of two. Their own objects follow, so these bytes are sent twice, 2.3 times as many
        in all: for an uplink with room for them. 0: never. 1 MiB is a good value.""",
        low=0,
        high=MIB,
    )

    def __post_init__(self) -> None:
        """Check the fields; InvalidSettingsError."""
        check_fields(self)


_SHORT_BYTES: Final = 1 << 20
"""Copying so much takes a fraction of a millisecond."""
TRUSTED_SECONDS: Final = 600.0
"""How long a slot that was free stays one that nobody has used and cleaned up; see ``link.KEPT_SECONDS``."""


class ChainRoot:
    """A :class:`~uploader.root.root.Root` that is a chain of manifests. Belongs to one event loop.

    Any number of tasks may call it; as many manifests are under way at once as the settings say.
    """

    def __init__(
        self,
        store: ObjectStore,
        retry: RetryPolicy,
        worker: Worker,
        *,
        settings: ChainSettings | None = None,
        roll_up: RollUpSettings | None = None,
        note: Note | None = None,
        make_id: Callable[[], str] = new_author,
    ) -> None:
        """``worker`` takes the work on long manifests off the event loop; ``note`` is called before
        fragments are published; ``make_id`` returns an id that no other writer of the log ever has."""
        self._store = store
        self._retry = retry
        self._worker = worker
        self._note = note
        self._clock = retry.clock
        self._settings = as_settings(settings, ChainSettings, "chain")
        self._reader = ChainReader(store, worker, self._clock)
        self._inline = InlineFragments(
            store,
            retry,
            self._reader.read_link,
            worker,
            most_bytes=self._settings.inline_bytes,
        )
        self._window = PendingWindow(alpha=self._settings.alpha, make_id=make_id)
        self._reading = asyncio.Lock()
        # Whether the newest manifest, when it was read last, was the last one of a destroyed log.
        self._is_ended = False
        self._roller = Roller(store, retry, worker, roll_up or RollUpSettings())
        self._pruner = Pruner(store, self._reader)
        self._announced = Announced(store, worker, self._clock)
        self._next_manifest = NextManifest(store, worker, self._roller, self._announced)

    @property
    def manifest(self) -> Manifest:
        """The newest manifest known to be current when it was read or written."""
        return _NOTHING if self._window.head is None else self._window.head.manifest

    @property
    def is_known(self) -> bool:
        """Whether there is a manifest, as far as we know."""
        return self._window.head is not None

    @property
    def head(self) -> Link | None:
        """The newest manifest and its place in the chain; None if none is known."""
        return self._window.head

    @property
    def put_snapshots(self) -> int:
        """Snapshots put so far, named by a manifest or not yet."""
        return self._roller.put_snapshots

    @property
    def max_publishing(self) -> int:
        """As many as manifests may be under way; one if there is a note.

        So a note that failed leaves no hole before later fragments.
        """
        return self._settings.alpha if self._note is None else 1

    def fragment_key(self, seq_no: int, *, start: int, limit: int, setsum: Setsum) -> str:
        """Return the key in the shard whose turn it is."""
        return FragmentName(seq_no, start, limit, setsum).key(shards=self._settings.shards)

    def early_key(self, seq_no: int) -> str | None:
        """Return None: keys say what is in a fragment."""
        del seq_no
        return None

    def take_content(self, path: str, data: bytes, store: ObjectStore) -> bool:
        """Take a short fragment, to be held by the manifest that names it; see :meth:`Root.take_content`."""
        return self._inline.take(path, data, store)

    def begin_inline(self) -> None:
        """Begin to put the objects that may be missing; see :meth:`Root.begin_inline`."""
        if (head := self._window.head) is not None:
            self._inline.adopt(head)

    async def put_inline(self) -> None:
        """Put the objects that are missing; see :meth:`Root.put_inline`."""
        self.begin_inline()
        if self._window.head is not None:
            await self._inline.store([found.path for found in self._window.head.inline])

    async def unpublished(self) -> AsyncIterator[ListedObject]:
        """Yield the fragments behind the manifest's end, of all shards, by number."""
        manifest, first = self.manifest, shard_folder(1)
        is_spread = not all(one.path.startswith(first) for one in manifest.fragments)
        for listed in await list_behind(self._store, manifest.next_seq_no, is_spread=is_spread):
            yield listed

    async def load(self) -> bool:
        """Read the newest manifest; return False if there is none, or the log was destroyed.

        One or two requests if there is nothing new.
        """
        found = await self._find_head(self._window.head)
        self._is_ended = found is not None and found.link.manifest.is_destroyed
        if found is None or self._is_ended:
            return False
        if self._window.is_idle:
            self._take(found)
        return True

    async def may_have_changed(self) -> bool:
        """Return False if nothing follows the head. Usually one look at the slot behind it is enough."""
        head = self._window.head
        return head is None or await self._reader.may_follow(head)

    async def load_or_create(self, writer: str) -> None:
        """Read the newest manifest, or create an empty one; see :meth:`Root.load_or_create`."""
        if not await self.load():
            self._check_not_ended()
            await check_creatable(self._store, is_gone=self.is_known)
            await self._create(writer)
        await check_not_destroyed(self._store)

    async def publish(self, fragments: Sequence[Fragment], writer: str) -> None:
        """Append fragments to the log with one manifest; see :meth:`Root.publish`.

        OutcomeUnknownError also if a call before this one failed: call again with the same fragments then, in
        order. ValueError for a key that is not of the form of :meth:`fragment_key`, for whatever number of
        shards.
        """
        if self._note is not None:
            await self._note(fragments)
        make = self._next_manifest.append(fragments, writer)
        self._current()
        await self._do(PendingLink(make, is_append=True, fragments=fragments))
        self._inline.begin()
        self._roller.begin(self.manifest)
        self._announced.begin()

    async def change(self, make: Change) -> bool:
        """Put a manifest that ``make`` makes of the newest one; again, if another writer was quicker.

        LogNotFoundError if the log was destroyed.
        """
        if not self.is_known and not await self.load():
            self._current()
        return await self._do(PendingLink(self._next_manifest.change(make), is_append=False))

    async def settle(self) -> None:
        """Return when no background work is left: no object is put, no manifest pruned."""
        await self._inline.wait()
        await self._roller.wait()
        await self._announced.wait()
        await self._pruner.wait()

    async def aclose(self) -> None:
        """Cancel the background work, which does no harm; twice is allowed.

        Objects of fragments that manifests hold are waited for, five seconds at most.
        """
        await self._roller.aclose()
        await self._announced.aclose()
        await self._pruner.aclose()
        await self._inline.aclose()

    # -- how it gets there -------------------------------------------------------------------

    async def _do(self, pending: PendingLink) -> bool:
        """Carry a change to its end; return whether it put a link, or an earlier try of it had."""
        self._window.enter(pending)
        try:
            while await self._plan(pending):
                await self._put(pending)
                if pending.is_done:
                    return True
        except BaseException as error:
            if pending.link is not None:
                self._window.fail(pending, error)
            raise
        finally:
            self._window.leave(pending)
        return pending.is_done

    async def _plan(self, pending: PendingLink) -> bool:
        """Give a change its link when its turn comes; return False if it needs none."""
        while True:
            await self._window.wait_turn(pending)
            if self._must_reload() and await self._reload(pending):
                return False
            tip, is_durable = self._current(), self._window.is_idle
            if not is_durable:
                assert self._window.tip is not None
                tip = self._window.tip
            try:
                manifest = await pending.make(LinkBase(tip.manifest, is_durable))
            except WaitForDurableError:
                pending.must_be_alone = True
                continue
            if manifest is None:
                return False
            if tip.manifest.is_destroyed:
                raise destroyed(self._store.url)
            inline = self._inline.inherited(tip, manifest)
            contents = self._inline.contents(pending.fragments)
            is_full = len(inline) + len(contents) > MOST_INLINE
            # A takeover outlives the log: what is destroyed must not be left in it.
            is_takeover = tip.author != self._window.author
            if contents and (is_takeover or is_full or self._inline.is_slow):
                await self._inline.store(contents)
                contents = {}
            link = tip.successor(
                manifest,
                author=self._window.author,
                alpha=self._settings.alpha,
                base=self._current().slot,
                now_us=self._clock.now_us(),
                inline=inline,
                contents=contents,
            )
            # A thread would be woken for less time than that takes, and all appends wait for it.
            is_short = link.manifest.is_short and sum(map(len, contents.values())) <= _SHORT_BYTES
            data = link.serialise() if is_short else await self._worker.run(link.serialise)
            pending.check()
            # Another answer may have come meanwhile: then the link may follow nothing, or be too far ahead.
            if self._is_timely(link, tip):
                self._window.plan(pending, link, TwoClockTime.now(self._clock))
                pending.data = data
                return True

    async def _put(self, pending: PendingLink) -> None:
        """Put the link of a change; return when its outcome is decided."""
        link = pending.link
        assert link is not None
        async with task_group() as group:
            sending = group.create_task(self._send(pending, link))
            await pending.decided.wait()
            # What it was to put is either there, or can never be part of the chain.
            sending.cancel()
        pending.check()

    async def _send(self, pending: PendingLink, link: Link) -> None:
        if pending.link is not link:
            return  # one before it was lost already
        try:
            result = await cas.create(self._store, link.key, pending.data, retry=self._retry)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._window.fail(pending, error)
            return
        if pending.link is not link:
            return
        is_ours = result.outcome is cas.PutOutcome.COMMITTED and self._is_trusted(pending)
        if is_ours and link.is_takeover:
            try:
                is_ours = await self._reader.is_linked(link)
            except WalError as error:
                if pending.link is link:
                    self._window.fail(pending, _unknown(self._store, "put", error))
                return
            if pending.link is not link:
                return
        if result.outcome is cas.PutOutcome.UNKNOWN:
            self._window.fail(pending, _unknown(self._store, "put", result.cause))
        elif not is_ours:
            self._window.lost(pending)
        else:
            for done in self._window.put(pending):
                assert done.link is not None
                self._note_durable(done.link)

    def _note_durable(self, link: Link) -> None:
        """Record that a link of ours is durable."""
        self._pruner.note(link)
        if link.is_takeover:
            self._inline.adopt(link)

    def _is_trusted(self, pending: PendingLink) -> bool:
        """Return whether a slot that took our link cannot hold a takeover that was cleaned up before.

        A takeover's own slot may have held anything, so in that case the chain is read.
        """
        return (
            pending.since is not None and pending.since.age_seconds(self._clock) < TRUSTED_SECONDS
        )

    def _is_timely(self, link: Link, tip: Link) -> bool:
        window = self._window
        return (
            not window.is_stale
            and window.tip is tip
            and link.author == window.author
            and (window.is_idle or tip.author == window.author)
        )

    def _must_reload(self) -> bool:
        """Return whether the head must be read: it is not the newest, or was seen long ago."""
        window = self._window
        if window.is_stale or window.head_since is None:
            return True
        return window.is_idle and window.head_since.age_seconds(self._clock) > TRUSTED_SECONDS / 2

    async def _reload(self, pending: PendingLink) -> bool:
        """Read the head again; return whether the pending link is part of the chain after all."""
        before = self._current()
        found = await self._find_head(before)
        if found is None:
            raise ContentionError(f"the manifests of {self._store.url} were deleted")
        self._take(found, must=True)
        tried = pending.tried
        if tried is None:
            return False
        if any(link.place == tried.place for link in found.chain):
            pending.is_done = True
            if tried.place == found.link.place:
                self._note_durable(tried)
            return True
        if found.link.slot == before.slot and tried.slot == before.next:
            raise CorruptionError(
                "a manifest that belongs to no chain is in the next slot", path=tried.key
            )
        return False

    # -- inside ------------------------------------------------------------------------------

    def _current(self) -> Link:
        if self._window.head is None:
            raise LogNotFoundError(
                f"there is no log at {self._store.url}; create one first", location=self._store.url
            )
        return self._window.head

    async def _find_head(self, known: Link | None) -> ChainHead | None:
        """Return the head; LogNotFoundError if what is missing was destroyed."""
        try:
            async with self._reading:
                return await self._reader.find_head(known)
        except CorruptionError:
            await check_not_destroyed(self._store)
            raise

    def _check_not_ended(self) -> None:
        if self._is_ended:
            raise destroyed(self._store.url)

    def _take(self, found: ChainHead, *, must: bool = False) -> None:
        known = self._window.head
        is_newer = known is None or found.link.slot >= known.slot
        if must or (is_newer and not self._window.is_stale):
            self._window.set_head(found.link, found.asked)

    async def _create(self, writer: str) -> None:
        link = Link.root(
            Manifest.initial(writer), author=self._window.author, alpha=self._settings.alpha
        )
        result = await cas.create(self._store, link.key, link.serialise(), retry=self._retry)
        result.decided(self._store.url, "the manifest was created; open again")
        if await self._store.head(layout.MANIFEST) is not None:
            raise InvalidSettingsError(
                f"a log of the other layout was created at {self._store.url} at the same time; "
                f"delete {layout.MANIFEST} or {link.key}, whichever is empty"
            )
        if not await self.load():
            self._check_not_ended()
            await check_not_destroyed(self._store)
            raise ContentionError(f"the manifest of {self._store.url} was deleted")


def _unknown(store: ObjectStore, done: str, cause: WalError | None) -> OutcomeUnknownError:
    error = OutcomeUnknownError(
        f"{store.url} did not say whether the manifest was {done}; open again", retriable=True
    )
    error.__cause__ = cause
    return error


_NOTHING: Final = Manifest.initial("")
