"""fork: creates a new log with the records of another one.

The fork copies fragments byte for byte under the same numbers, so offsets, times and sums equal the source's.
Afterwards the two logs are independent. Fragments cannot be shared: wal3's keys are relative to a log's
prefix, and its collectors know only one log.

The process may die between any two calls to the store; calling again with the same arguments continues:

  1. A note in the target records the source log and the offset range, so that every attempt copies the same
     records. A target that contains fragments but no note is refused. The note stays, to distinguish a
     finished fork from one with another range.
  2. The source is pinned, so that collectors leave it alone (``forking.py``).
  3. The table of streams is copied as it is, unless an earlier call has done that.
  4. Fragments are copied. Those that an earlier call has put are checked, and not put again.
  5. The manifest is created. Until then there is no log; from then on it is complete.
  6. The pin is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from uploader.care.admin.bootstrap import check_empty, create_manifest
from uploader.care.admin.forking import Forked, Forking, ForkPin
from uploader.format import layout
from uploader.format.document import MOST_SMALL_BYTES, Fields, position, read_document, serialise
from uploader.format.stream_table import closings_in, finished_closings
from uploader.layouts.log_session import LogSession, open_session
from uploader.root import cas
from uploader.root.ownership import fork_writer_name
from uploader.root.stored_document import read_stored
from uploader.root.stream_file import StreamFile
from uploader.root.write_guard import check_creatable
from uploader.stores.port import ObjectNotFoundError, ObjectStore
from uploader.stores.retry import RetryPolicy
from walstore.core.ports import Clock
from walstore.core.runtime.old_names import renamed
from walstore.core.validation.arguments import as_count
from walstore.errors import ContentionError, InvalidSettingsError

__all__ = ["Forked", "fork"]


@renamed(parallel="concurrency")
async def fork(
    source_url: str,
    target_url: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    concurrency: int = 4,
    progress: Callable[[Forked], None] | None = None,
    source_store: ObjectStore | None = None,
    target_store: ObjectStore | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> Forked:
    """Create a new log at ``target_url`` with the records ``[start, stop)`` of another one.

    It begins with the fragment that contains ``start`` and ends exactly at ``stop``. The source may be
    written, collected and read meanwhile; without ``stop`` the fork ends where the source ended when the fork
    began. The fork of a sealed log is not sealed. Every record is hashed.

    If the call fails or is cancelled, the target contains no log yet, except after OutcomeUnknownError; call
    again with the same arguments. If the fork exists and nothing was appended to it, calling again with the
    same ``start`` and ``stop`` returns its contents, even if the source has grown since. A pin stays on the
    source until the fork is complete or a day has passed.

    Raises LogNotFoundError if there is no source, or a log was destroyed at the target; ContentionError if
    the target contains anything else, including a fork with another ``start`` or ``stop``; OffsetTrimmedError
    or OffsetNotWrittenError if the source has no such records; CorruptionError if a fragment is missing or
    does not match the manifest.

    Args:
        source_url: The log to copy from; needs write access, for the pin.
        target_url: Location of the new log; it must be empty.
        start: First offset to copy; None for the source's first, or the first one not being collected.
        stop: Exclusive end offset; None for the source's end.
        concurrency: Fragments copied at the same time; memory use is about three times their size. 1 to 64.
        progress: Called after each fragment with the totals so far.
        source_store: Replaces the store that the URL names, and stays open.
        target_store: The same for the target.
        retry: Retry policy of conditional puts.
        clock: Gives the time for the pin, and sleeps between attempts.
    """
    as_count(concurrency, "concurrency", high=64)
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
            forking = Forking(source, target, pin, concurrency=concurrency, is_resumed=is_resumed)
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
    """Raise OffsetTrimmedError or OffsetNotWrittenError unless the log contains ``[start, stop)``."""
    if start is not None and stop is not None and start > stop:
        raise InvalidSettingsError(f"start must not be above stop ({start}, {stop})")
    url = source.store.url
    for wanted in (start, stop):
        if wanted is not None:
            source.root.manifest.offsets.check_position(
                wanted, f"the offset was removed from {url}", f"the offset is not in {url} yet"
            )


async def _begin(
    source: LogSession, target: LogSession, start: int | None, stop: int | None
) -> tuple[int, bool]:
    """Put the note unless an earlier call has. Return the fork's end, and whether a note existed."""
    try:
        return await _check_same(source, target, start, stop), True
    except ObjectNotFoundError:
        await check_creatable(target.store, is_gone=False)
    await check_empty(target)
    ends = source.root.manifest.next_offset if stop is None else stop
    note = _Note(source.store.url, start, ends, is_whole=stop is None)
    result = await cas.create(
        target.store, layout.FORK_NOTE, serialise(note.document()), retry=target.retry
    )
    result.decided(target.store.url, "the note was put; call again")
    return await _check_same(source, target, start, stop), False


async def _copy_streams(source: LogSession, target: LogSession, stop: int) -> None:
    """Copy the source's table of streams, if it has one and no earlier call copied it."""
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
            f"{target.store.url} holds a fork, but no note ({layout.FORK_NOTE}) of where it should begin "
            "and end; take another prefix"
        ) from error


async def _check_same(
    source: LogSession, target: LogSession, start: int | None, stop: int | None
) -> int:
    """Return the end of the fork noted in the target; ContentionError if that is a different fork."""
    parse = partial(read_document, build=_note, path=layout.FORK_NOTE, most_bytes=MOST_SMALL_BYTES)
    found = await read_stored(target.store, layout.FORK_NOTE, parse, most_bytes=MOST_SMALL_BYTES)
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
    """The note in a target: which fork it is."""

    source_url: str
    start: int | None
    """The ``start`` argument."""
    stop: int
    """Where the fork ends."""
    is_whole: bool | None
    """Whether ``stop`` was None; None if an older version, which did not record that, put the note."""

    def is_of(self, source_url: str, start: int | None, stop: int | None) -> bool:
        """Return whether a call with these arguments creates this fork."""
        if (source_url, start) != (self.source_url, self.start):
            return False
        return self.is_whole is not False if stop is None else stop == self.stop

    def document(self) -> dict[str, Any]:
        """Return the note as a JSON document."""
        return {
            "source": self.source_url,
            "start": None if self.start is None else position(self.start),
            "stop": position(self.stop),
            "whole": self.is_whole,
        }

    def __str__(self) -> str:
        """Describe the fork, for messages."""
        start = "its first record" if self.start is None else self.start
        end = f"its end then ({self.stop})" if self.is_whole else self.stop
        return f"{self.source_url} from {start} to {end}"


def _note(fields: Fields) -> _Note:
    return _Note(
        fields.text("source"),
        fields.position("start") if fields.has("start") else None,
        fields.position("stop"),
        is_whole=fields.flag("whole") if fields.has("whole") else None,
    )
