"""Finding a group in a store, or making it: its object, and then the cursor that keeps its jobs."""

from __future__ import annotations

from collections.abc import Callable

from uploader.format.group_document import GroupDocument
from uploader.groups.group_place import GroupPlace, cursor_of, remove, remove_cursor
from uploader.root import cas
from walstore.errors import OffsetTrimmedError
from walstore.groups.settings import GroupSettings
from walstore.offset_range import OffsetRange


async def find_or_make(
    place: GroupPlace,
    name: str,
    settings: GroupSettings,
    *,
    make_tag: Callable[[], str],
    next_tag: Callable[[], str],
    check: Callable[[], None],
) -> tuple[GroupDocument, str]:
    """Return a group and the ETag of its object; it has a cursor at its floor, or behind it, by then.

    ``make_tag`` names a group that is made, ``next_tag`` each change. ``check`` is called between attempts,
    and raises once nobody wants the group any more. Raises as :meth:`uploader.CloudLog.group`.
    """
    while True:
        check()
        found = await place.load(name)
        is_new = found is None or found[0].is_removed
        if found is None or is_new:
            etag = None if found is None else found[1]
            found = await _make(place, name, settings, etag, made=make_tag(), tag=next_tag())
            if found is None:
                continue
        document = found[0]
        await _check_position(place, name, document)
        try:
            await place.cursors.create(cursor_of(name, document), document.floor)
        except OffsetTrimmedError as error:
            # A collection came between the group and its cursor. Nobody has a job of a new group.
            if not is_new:
                raise jobs_trimmed(name, error) from error
            await remove(place, name, next_tag(), only=document.made)
            if settings.start != "earliest":
                raise
            continue
        again = await place.load(name)
        if again is not None and not again[0].is_removed and again[0].made == document.made:
            return again
        # It was deleted meanwhile, perhaps before it had this cursor.
        await remove_cursor(place, name, document)


def jobs_trimmed(name: str, error: OffsetTrimmedError) -> OffsetTrimmedError:
    """Return what is raised when the log no longer has jobs of a group."""
    return OffsetRange(error.head, error.tail).trimmed(
        error.requested,
        f"jobs of group {name!r} were removed from the log, so its cursor was deleted or changed by "
        "somebody; delete_group() removes the group, and start= says where a new one begins",
    )


async def _make(
    place: GroupPlace, name: str, settings: GroupSettings, etag: str | None, *, made: str, tag: str
) -> tuple[GroupDocument, str] | None:
    """Make the group where there is none, or a removed one; None if another process came first."""
    document = GroupDocument(
        made=made,
        tag=tag,
        position=await _start(place, settings),
        stream=settings.stream,
        is_ordered=settings.is_ordered,
    )
    result = await place.put(name, document, etag)
    result.decided(place.store.url, f"group {name!r} was made; call again")
    if result.outcome is not cas.PutOutcome.COMMITTED:
        return None
    assert result.etag is not None
    return document, result.etag


async def _start(place: GroupPlace, settings: GroupSettings) -> int:
    """Return the offset at which a new group begins."""
    log = place.log
    await log.refresh()
    async with log.reader(settings.start) as reader:
        position = reader.position
    why = "the group cannot begin there"
    OffsetRange(log.head, log.tail).check_position(position, why, why)
    return position


async def _check_position(place: GroupPlace, name: str, document: GroupDocument) -> None:
    """Raise OffsetNotWrittenError if the group has seen more of the log than there is."""
    log = place.log
    if document.position > log.tail:
        await log.refresh()
    OffsetRange(log.head, log.tail).check_tail(
        document.position,
        f"group {name!r} has seen records that the log does not have: it is of another log, or the log "
        "is restored as of an earlier time. delete_group() removes it; start= says where a new one begins",
    )
