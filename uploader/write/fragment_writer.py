"""FragmentWriter: builds and puts fragments of a local log, and finds out whose the existing ones are.

A number may be taken when its fragment is put: by an attempt of ours that was given up and arrived late, or
by another writer. Ours are known by their content: the setsum over the same local records. Nothing is
overwritten that any manifest could name, now or later. No manifest can name the fragments of a directory from
which the log was taken over (``ownership.py``). Never touches the manifest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from uploader.format.entries import Fragment
from uploader.fragments.fragment_builder import EncodedFragment
from uploader.fragments.fragment_columns import setsum_of
from uploader.root.orphan_recovery import Orphan
from uploader.root.ownership import is_outdated
from uploader.write.encoding import Building
from uploader.write.fragment_puts import FragmentPuts, Taken
from walstore.batches.batch import Batch
from walstore.errors import ContentionError
from walstore.ports import Clock, LocalRecords
from walstore.runtime.threads import Worker

_READ_BYTES = 1 << 20

Turn = Callable[[], Awaitable[None]]
"""Returns when all fragments before one's own are published."""


class LateFragmentError(ContentionError):
    """An earlier put of ours arrived where another cut was to go: plan again and adopt it."""


class FragmentWriter:
    """Puts fragments of one log. Any number of tasks may call it."""

    def __init__(self, *, url: str, puts: FragmentPuts, clock: Clock, worker: Worker) -> None:
        self._url = url
        self.puts = puts
        self._clock = clock
        self._worker = worker
        self.adopted_fragments = 0
        self.maker: str | None = None
        """The claim under which fragments are put; their footers contain it."""

    def begin(self) -> Building:
        """Return a fragment to be built, with the present time."""
        return Building(self._worker, timestamp_us=self._clock.now_us(), writer=self.maker)

    async def put(
        self,
        source: LocalRecords,
        seq_no: int,
        building: Building,
        batches: list[Batch],
        *,
        my_turn: Turn,
    ) -> Fragment:
        """Complete a fragment by its last batches and put it, once, however often the store has to be asked.

        Raises LateFragmentError and ContentionError if its number is taken. If cancelled, it
        may still have been put, or be put later.
        """
        built, found = await self.puts.build(building, lambda: batches, seq_no)
        while isinstance(found, Taken):
            orphan = await self.puts.examine(found.data, found.key)
            is_dead = is_outdated(orphan.maker, self.puts.manifest)
            if not is_dead:
                await self._contest(source, orphan, built)
                if (orphan.entry.start, orphan.entry.limit) == (built.start, built.limit):
                    self.adopted_fragments += 1
                    return orphan.entry
            await my_turn()
            try:
                found = await self.puts.replace(found, built, seq_no)
            except ContentionError:
                if not is_dead:
                    raise
                found = await self.puts.create(built, seq_no)
        return found

    async def adopt(self, source: LocalRecords, orphan: Orphan) -> Fragment:
        """Return an orphan's entry after proving that it holds our records; see :meth:`prove`."""
        await self.prove(source, orphan)
        self.adopted_fragments += 1
        return orphan.entry

    async def prove(self, source: LocalRecords, orphan: Orphan) -> None:
        """Raise ContentionError unless a fragment holds exactly our records, and these are here."""
        if not await self.is_ours(source, orphan):
            raise ContentionError(
                f"{orphan.entry.path} in {self._url} holds other records than this log; "
                "another writer put it"
            )

    async def is_ours(self, source: LocalRecords, orphan: Orphan) -> bool:
        """Return whether a fragment holds exactly our records; False also if these are no longer here."""
        entry = orphan.entry
        if entry.start < source.head or entry.limit > source.durable_limit:
            return False
        batches = await gather(source, entry.start, entry.limit, most_bytes=None)
        setsum = await self._worker.run(setsum_of, batches, orphan.timestamp_us)
        return setsum == entry.setsum

    # -- inside ------------------------------------------------------------------------------

    async def _contest(self, source: LocalRecords, orphan: Orphan, built: EncodedFragment) -> None:
        """Raise unless the object in our way is ours, and either equivalent or of no use.

        It is of no use if it does not begin where the fragment before it ends: no manifest can ever
        name it once that one is published. Otherwise one could, so it must be adopted.
        """
        await self.prove(source, orphan)
        if orphan.entry.start == built.start and orphan.entry.limit != built.limit:
            raise LateFragmentError(f"an earlier put of {orphan.entry.path} arrived late")


async def gather(
    source: LocalRecords, position: int, limit: int, *, most_bytes: int | None
) -> list[Batch]:
    """Return local batches of ``[position, limit)``.

    All of it, or with ``most_bytes`` as many as reach that size, the last one whole.
    """
    batches: list[Batch] = []
    size = 0
    while position < limit and (most_bytes is None or size < most_bytes):
        missing = _READ_BYTES if most_bytes is None else most_bytes - size
        for batch in await source.read_local(position, limit, missing):
            batches.append(batch)
            size += batch.nbytes
            position = batch.limit
    return batches
