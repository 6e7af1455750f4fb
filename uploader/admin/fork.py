"""fork: a new log that begins with what another one holds.

A fork by copy, byte for byte: the same fragments under the same numbers, so offsets, times and sums are
those of the source, and either log goes on by itself afterwards. Fragments cannot be shared without a
copy: wal3's keys are relative to a log's prefix, and its collectors know one log only.

Between any two calls to the store the process may die; calling again with the same arguments goes on:

  1. A note in the target says what is going to be there: which log, from where, and up to which offset,
     so that every attempt copies the same. Without it, a target that holds fragments is refused. It stays,
     so that a finished fork is told from another one that would begin or end elsewhere.
  2. The source is pinned, so that collectors leave it alone (``fork_pin.py``).
  3. The table of streams is copied as it is, unless an earlier call has done that.
  4. Fragments are copied. Those that an earlier call has put are looked at, and not put again.
  5. The manifest is created. Until then there is no log; from then on it is whole.
  6. The pin is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uploader.admin.creation import check_empty, create_manifest
from uploader.admin.fork_pin import ForkPin
from uploader.admin.forking import Forking
from uploader.format import layout
from uploader.format.closings import closings_in, finished_closings
from uploader.format.document import (
    MOST_SMALL_BYTES,
    Fields,
    position,
    read_document,
    serialise,
)
from uploader.layouts.growing_manifest import Forked
from uploader.layouts.log_session import LogSession, open_session
from uploader.root import cas
from uploader.root.ownership import fork_writer_name
from uploader.root.stored_document import read_stored
from uploader.root.stream_file import StreamFile
from uploader.root.write_guard import check_not_destroyed
from uploader.stores.errors import ObjectNotFoundError
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.errors import (
    ContentionError,
    InvalidSettingsError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
)
from walstore.ports import Clock
from walstore.validation.arguments import as_count

__all__ = ["Forked", "fork"]


async def fork(
    source_url: str,
    target_url: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    parallel: int = 4,
    progress: Callable[[Forked], None] | None = None,
    source_store: ObjectStore | None = None,
    target_store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> Forked:
    """Make a new log at ``target_url`` that holds the records ``[start, stop)`` of another one.

    It begins where the fragment that holds ``start`` does, and ends exactly at ``stop``. The source may
    be written, collected and read meanwhile; without ``stop`` the fork ends where the source did when it
    was begun. A sealed log's fork is not sealed. Every record is hashed on the way.

    If the call fails or is cancelled there is no log at the target yet, but for OutcomeUnknownError;
    call again with the same arguments. Where the fork is made already and nothing was appended to it,
    calling again with the same ``start`` and ``stop`` returns what it holds, also if the source has grown
    since. A pin stays on the source until the fork is made, or a day has passed.

    Raises LogNotFoundError if there is no source, or a log was destroyed at the target; ContentionError
    if the target holds something else, also a fork with another ``start`` or ``stop``; OffsetTrimmedError
    or OffsetNotWrittenError if the source has no such records; CorruptionError if a fragment is missing
    or not what the manifest says.

    Args:
        source_url: The log to copy from; needs write access, for the pin.
        target_url: Where the new one is to lie; nothing else may be there.
        start: First offset wanted; None for the source's first, or the first that is not being collected.
        stop: The offset to end before; None for the source's end.
        parallel: Fragments copied at the same time; memory is about three times as many. 1 to 64.
        progress: Called with what was copied so far, after each fragment.
        source_store: Replaces the store that the URL names, and stays open.
        target_store: The same for the target.
        retry: How conditional puts are repeated.
        clock: Tells the time for the pin, and sleeps between attempts.
    """
    as_count(parallel, "parallel", high=64)
    async with (
        open_session(source_url, store=source_store, retry=retry, clock=clock) as source,
        open_session(target_url, store=target_store, retry=retry, clock=clock) as target,
    ):
        source.check_found()
        writer = fork_writer_name(source.store.url)
        pin = ForkPin(source, target.store.url)
        if not target.root.is_known:
            check_range(source, start, stop)
            stop, is_resumed = await _begin(source, target, start, stop)
            await _copy_streams(source, target, stop)
            low = await pin.hold(start)
            forking = Forking(source, target, pin, parallel=parallel, is_resumed=is_resumed)
            manifest = await forking.run(writer, low, stop, progress)
            await create_manifest(target, manifest)
            if target.root.manifest.writer != writer:
                raise ContentionError(f"another log was begun at {target.store.url} meanwhile")
        elif target.root.manifest.writer != writer:
            raise ContentionError(f"there is a log at {target.store.url} already")
        else:
            await _check_finished(source, target, start, stop)
        await pin.release()
        return Forked.of(target.root.manifest)


def check_range(source: LogSession, start: int | None, stop: int | None) -> None:
    """Raise OffsetTrimmedError or OffsetNotWrittenError unless the log holds ``[start, stop)``."""
    manifest = source.root.manifest
    head, tail = manifest.oldest_offset, manifest.next_offset
    if start is not None and stop is not None and start > stop:
        raise InvalidSettingsError(f"start must not be above stop ({start}, {stop})")
    for wanted in (start, stop):
        if wanted is not None and wanted < head:
            raise OffsetTrimmedError(
                f"the offset was removed from {source.store.url}",
                requested=wanted,
                head=head,
                tail=tail,
            )
        if wanted is not None and wanted > tail:
            raise OffsetNotWrittenError(
                f"the offset is not in {source.store.url} yet",
                requested=wanted,
                head=head,
                tail=tail,
            )


async def _begin(
    source: LogSession, target: LogSession, start: int | None, stop: int | None
) -> tuple[int, bool]:
    """Put the note, unless an earlier call has. Return where the fork ends, and whether it had."""
    try:
        return await _check_same(source, target, start, stop), True
    except ObjectNotFoundError:
        await check_not_destroyed(target.store)
    await check_empty(target)
    ends = source.root.manifest.next_offset if stop is None else stop
    note = _Note(source.store.url, start, ends, is_whole=stop is None)
    result = await cas.create(
        target.store, layout.FORK_NOTE, serialise(note.document()), retry=target.retry
    )
    result.decided(target.store.url, "the note was put; call again")
    return await _check_same(source, target, start, stop), False


async def _copy_streams(source: LogSession, target: LogSession, stop: int) -> None:
    """Put the table of streams, if the source has one, and an earlier call has not."""
    table = await StreamFile(source.store, retry=source.retry, worker=source.worker).load()
    table.checked(closings_in(source.root.manifest.writer))
    if not table.revision:
        return
    copied = table.forked(finished_closings(await source.newest()), stop=stop)
    result = await cas.create(target.store, layout.STREAMS, copied.serialise(), retry=target.retry)
    result.decided(target.store.url, f"{layout.STREAMS} was put; call again")


async def _check_finished(
    source: LogSession, target: LogSession, start: int | None, stop: int | None
) -> None:
    """Raise ContentionError if the fork at the target was not made with these arguments."""
    try:
        await _check_same(source, target, start, stop)
    except ObjectNotFoundError as error:
        raise ContentionError(
            f"{target.store.url} holds a fork, and no note ({layout.FORK_NOTE}) of where it was to begin "
            "and end; take another prefix"
        ) from error


async def _check_same(
    source: LogSession, target: LogSession, start: int | None, stop: int | None
) -> int:
    """Return where the fork ends that the target is or is to be; ContentionError if it is another one."""
    found = await read_stored(
        target.store, layout.FORK_NOTE, _parse_note, most_bytes=MOST_SMALL_BYTES
    )
    note = found.value
    if not note.is_of(source.store.url, start, stop):
        held = "holds" if target.root.is_known else "is being made"
        raise ContentionError(
            f"{target.store.url} {held} another fork: of {note}; call with the same arguments, or take "
            "another prefix"
        )
    return note.stop


@dataclass(frozen=True, slots=True)
class _Note:
    """What a target begins with."""

    source_url: str
    start: int | None
    """As it was given."""
    stop: int
    """Where the fork ends."""
    is_whole: bool | None
    """Whether no ``stop`` was given; None if an older version put the note, which did not say."""

    def is_of(self, source_url: str, start: int | None, stop: int | None) -> bool:
        """Return whether a call with these arguments makes this fork."""
        if (source_url, start) != (self.source_url, self.start):
            return False
        return self.is_whole is not False if stop is None else stop == self.stop

    def document(self) -> dict[str, Any]:
        """Return what is put."""
        return {
            "source": self.source_url,
            "start": None if self.start is None else position(self.start),
            "stop": position(self.stop),
            "whole": self.is_whole,
        }

    def __str__(self) -> str:
        """Say which fork it is, for messages."""
        start = "its first record" if self.start is None else self.start
        end = f"its end then ({self.stop})" if self.is_whole else self.stop
        return f"{self.source_url} from {start} to {end}"


def _parse_note(data: bytes) -> _Note:
    return read_document(data, _note, path=layout.FORK_NOTE, most_bytes=MOST_SMALL_BYTES)


def _note(fields: Fields) -> _Note:
    return _Note(
        fields.text("source"),
        fields.position("start") if fields.has("start") else None,
        fields.position("stop"),
        is_whole=fields.flag("whole") if fields.has("whole") else None,
    )
