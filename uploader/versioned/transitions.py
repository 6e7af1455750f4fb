"""Transitions: the rules by which a head changes. Each takes a head and returns the next one. Pure.

A transition that finds nothing to change returns the head itself, and none is written. Since each is applied
to the newest head and put by compare-and-swap, whatever it checks holds at the moment of the change. So the
registration of a reader and the commit of a compaction are serialised: a new reader begins at the newest
``since`` and version, and no later commit advances updates beyond what it holds.

``now_us`` is the caller's clock in microseconds since 1970. Clocks that differ by less than a lease make
readers expire early or late. They never make a read wrong: a reader checks its registration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from uploader.format.layout import MAX_U64
from uploader.versioned.head import MOST_CONSUMED, Consumed, Head, ReaderHold
from uploader.versioned.version import MergedBatch, Version
from walstore.errors import (
    CollectionRefusedError,
    ContentionError,
    ExpectationError,
    FencedError,
    InvalidSettingsError,
    LeaseExpiredError,
    LimitExceededError,
    SinceViolationError,
    WalLockedError,
)

MOST_READERS: Final = 100
"""Each takes about 150 bytes of the head."""
SHARED: Final = "shared"
"""The handle of readers that many programs share; nobody takes them over, and nobody releases them."""


def advance_since(head: Head) -> Head:
    """Return the head with the greatest ``since`` that all readers allow; without readers it stays.

    Those that are shared hold objects, and no times.
    """
    frontiers = [hold.frontier for hold in head.readers.values() if hold.handle != SHARED]
    return replace(head, since=max(head.since, min(frontiers, default=head.since)))


def register(
    head: Head, name: str, *, handle: str, expires_us: int | None, since: int | None = None
) -> Head:
    """Register a reader; one of the same name continues with its frontier, and its old handle loses it.

    ``expires_us`` is the end of its lease; None for a critical reader. ``since`` is the frontier of a new
    reader, by default the collection's. SinceViolationError if it is earlier than that, LimitExceededError
    for one reader more than a head takes, InvalidSettingsError for a reader of the other kind.
    """
    held = head.readers.get(name)
    frontier = max(head.since if since is None else since, 0 if held is None else held.frontier)
    if frontier < head.since:
        raise SinceViolationError(
            f"the reader {name} cannot begin at a time that was compacted",
            as_of=frontier,
            since=head.since,
        )
    if held is None and len(head.readers) >= MOST_READERS:
        raise LimitExceededError(
            f"the collection has {MOST_READERS} readers; release or expire one", limit=MOST_READERS
        )
    if held is not None and (held.expires_us is None) != (expires_us is None):
        kind = "critical" if held.expires_us is None else "leased"
        raise InvalidSettingsError(
            f"the reader {name} is a {kind} one; use another name, or release it"
        )
    version = None if expires_us is None else head.version.n
    hold = ReaderHold(
        handle=handle,
        frontier=frontier,
        version=version,
        expires_us=expires_us,
        token="" if held is None else held.token,
    )
    return advance_since(replace(head, readers={**head.readers, name: hold}))


def share(head: Head, *, now_us: int, hold_us: int) -> Head:
    """Hold the objects of the newest version, and no times, for at least ``hold_us``.

    Programs that read the same version share one reader, :func:`shared_name`. Its lease grows by half more
    than is needed, so that of many programs few change the head. LimitExceededError if there is no room, also
    after readers whose lease has ended were removed; InvalidSettingsError if a reader has that name.
    """
    name = shared_name(head)
    held = head.readers.get(name)
    longer_us = now_us + hold_us + hold_us // 2
    if held is None:
        head = make_room(head, now_us=now_us)
        return register(head, name, handle=SHARED, expires_us=longer_us)
    if held.handle != SHARED:
        raise InvalidSettingsError(
            f"there is a reader {name}, a name that only shared readers have; release it"
        )
    if (held.expires_us or 0) >= now_us + hold_us:
        return head
    longer = replace(held, expires_us=longer_us)
    return replace(head, readers={**head.readers, name: longer})


def shared_name(head: Head) -> str:
    """Return the name of the reader that holds the newest version for all who share it."""
    return f"shared-{head.version.n:x}"


def clone(
    head: Head,
    source: str,
    name: str,
    *,
    handle: str,
    new_handle: str,
    expires_us: int,
    is_critical: bool = False,
) -> Head:
    """Register a second reader with the version and frontier of ``source``, which must still be registered.

    LeaseExpiredError if the source is not, InvalidSettingsError if there is a reader of that name.
    """
    hold = find_hold(head, source, handle, is_critical=is_critical)
    if name in head.readers:
        raise InvalidSettingsError(f"the collection has a reader {name} already")
    if len(head.readers) >= MOST_READERS:
        raise LimitExceededError(
            f"the collection has {MOST_READERS} readers; release or expire one", limit=MOST_READERS
        )
    version = head.version.n if hold.version is None else hold.version
    copy = replace(hold, handle=new_handle, version=version, expires_us=expires_us, token="")
    return replace(head, readers={**head.readers, name: copy})


def find_hold(head: Head, name: str, handle: str, *, is_critical: bool = False) -> ReaderHold:
    """Return what a handle holds; LeaseExpiredError if it is no longer registered.

    ``is_critical``: the handle's reader has no lease that could have expired.
    """
    hold = head.readers.get(name)
    if hold is None:
        raise LeaseExpiredError(
            f"the critical reader {name} was removed, and holds nothing any more"
            if is_critical
            else f"the reader {name} is not registered any more: its lease expired, or it was removed",
            reader=name,
        )
    if hold.handle != handle:
        raise LeaseExpiredError(f"another handle took over the reader {name}", reader=name)
    return hold


def renew(
    head: Head,
    name: str,
    *,
    handle: str,
    frontier: int,
    version: int | None,
    expires_us: int | None,
) -> Head:
    """Move what a handle holds forward, and its lease; nothing moves back. LeaseExpiredError."""
    hold = find_hold(head, name, handle, is_critical=expires_us is None)
    is_leased = hold.expires_us is not None
    moved = replace(
        hold,
        frontier=max(hold.frontier, frontier),
        version=max(hold.version or 0, version or 0) if is_leased else None,
        expires_us=max(hold.expires_us or 0, expires_us or 0) if is_leased else None,
    )
    if moved == hold:
        return head
    return advance_since(replace(head, readers={**head.readers, name: moved}))


def compare_and_downgrade(
    head: Head, name: str, *, handle: str, expected: str, token: str, frontier: int
) -> Head:
    """Replace a critical reader's token and move its frontier; ExpectationError if it has another token."""
    hold = find_hold(head, name, handle, is_critical=True)
    if hold.token != expected:
        raise ExpectationError(
            f"the critical reader {name} was changed by another program",
            expected=expected,
            actual=hold.token,
        )
    moved = replace(hold, token=token, frontier=max(hold.frontier, frontier))
    return advance_since(replace(head, readers={**head.readers, name: moved}))


def release(head: Head, name: str, *, handle: str | None = None) -> Head:
    """Remove a reader; with ``handle``, only if it is still that one. Nothing happens if there is none."""
    hold = head.readers.get(name)
    if hold is None or (handle is not None and hold.handle != handle):
        return head
    return advance_since(replace(head, readers=_without(head, [name])))


def expire(head: Head, *, now_us: int) -> Head:
    """Remove all readers whose lease has ended."""
    gone = [
        name
        for name, hold in head.readers.items()
        if hold.expires_us is not None and hold.expires_us <= now_us
    ]
    return advance_since(replace(head, readers=_without(head, gone))) if gone else head


def make_room(head: Head, *, now_us: int) -> Head:
    """Remove readers whose lease has ended if there is no room for another reader."""
    return expire(head, now_us=now_us) if len(head.readers) >= MOST_READERS else head


def evolve(head: Head, columns: pa.Schema) -> Head:
    """Add or widen columns; InvalidSettingsError for any other difference."""
    schema = head.schema.evolve(columns)
    return head if schema.id == head.schema.id else replace(head, schema=schema)


def take(head: Head, holder: str, *, now_us: int, expires_us: int, take_over: bool) -> Head:
    """Make ``holder`` the controller, with a new epoch.

    WalLockedError while another one's lease runs, unless ``take_over`` is true.
    """
    if head.holder is not None and head.holder_expires_us > now_us and not take_over:
        seconds = (head.holder_expires_us - now_us) / 1e6
        raise WalLockedError(
            f"the collection has a controller, {head.holder}, whose lease runs {seconds:.0f} s more",
            path="head",
            owner=head.holder,
        )
    return replace(head, epoch=head.epoch + 1, holder=holder, holder_expires_us=expires_us)


def check_epoch(head: Head, epoch: int) -> None:
    """Raise FencedError if another controller took over."""
    if head.epoch != epoch:
        raise FencedError(
            f"another controller, {head.holder}, has taken over this collection; nothing was changed"
        )


def renew_epoch(head: Head, *, epoch: int, expires_us: int) -> Head:
    """Extend a controller's lease; FencedError."""
    check_epoch(head, epoch)
    return replace(head, holder_expires_us=max(head.holder_expires_us, expires_us))


def resign(head: Head, *, epoch: int) -> Head:
    """End a controller's lease, so that the next one need not wait."""
    return replace(head, holder=None, holder_expires_us=0) if head.epoch == epoch else head


def next_version(
    head: Head,
    *,
    run: Sequence[MergedBatch],
    output: MergedBatch,
    created_us: int,
) -> Version:
    """Return the version in which ``output`` replaces ``run``; for an empty run, it is added at the end.

    ContentionError if the newest version no longer has that run. The output may reach beyond the run's end
    only as the newest batch, and may not be compacted further than all readers allow.
    """
    version = head.version
    at = version.position_of(run)
    if at is None:
        raise ContentionError("the batches that were compacted are no longer in the newest version")
    end = at + len(run)
    lower = run[0].lower if run else version.upper
    limit = version.upper if end == len(version.batches) else run[-1].upper
    fits = output.upper >= limit if end == len(version.batches) else output.upper == limit
    if output.lower != lower or not fits:
        raise ContentionError(
            f"a batch of [{output.lower}, {output.upper}) cannot replace [{lower}, {limit})"
        )
    if output.since > head.since:
        raise ContentionError(
            f"the batch was compacted up to {output.since}, but readers hold {head.since}"
        )
    return Version(
        n=version.n + 1,
        parent=head.version_key,
        created_us=max(created_us, version.created_us),
        since=head.since,
        batches=(*version.batches[:at], output, *version.batches[end:]),
    )


def commit(
    head: Head, version: Version, key: str, *, epoch: int, consumed: Iterable[Consumed] = ()
) -> Head:
    """Make ``version`` the newest one; FencedError, or ContentionError if it does not follow the newest."""
    check_epoch(head, epoch)
    if version.n != head.version.n + 1 or version.parent != head.version_key:
        raise ContentionError("another version was committed meanwhile")
    if version.since > head.since:
        raise ContentionError("the version was compacted beyond what readers hold")
    ring = (*head.consumed, *consumed)[-MOST_CONSUMED:]
    return replace(head, version=version, version_key=key, consumed=ring)


def announce_purge(head: Head, *, epoch: int, purged: int) -> Head:
    """Say that ``purged`` may be raised so far, unless somebody calls :func:`keep` first; FencedError.

    A batch that is published from now on is kept by whoever relies on it. So a listing that follows shows all
    batches that must not be lost.
    """
    check_epoch(head, epoch)
    return replace(head, purging=purged)


def keep(head: Head, positions: Iterable[int]) -> Head:
    """Make sure that pending batches at these positions stay, unless ``purged`` has passed them already."""
    if any(head.purged <= position < head.purging for position in positions):
        return replace(head, purging=0)
    return head


def raise_floors(head: Head, *, epoch: int, gc_floor: int, purged: int) -> Head:
    """Declare that objects before these may be removed; neither regresses. FencedError.

    CollectionRefusedError if a reader holds an older version, the merged area does not contain all of it, or
    the purge is not announced, or not any more.
    """
    check_epoch(head, epoch)
    if gc_floor > head.oldest_held_version or purged > head.upper:
        raise CollectionRefusedError("a reader registered meanwhile; look again")
    if head.purged < purged and head.purging < purged:
        raise CollectionRefusedError("a batch was published meanwhile; look again")
    return replace(
        head, gc_floor=max(head.gc_floor, gc_floor), purged=max(head.purged, purged), purging=0
    )


def delete(head: Head) -> Head:
    """Mark the collection as deleted, for ever; its controller is fenced and its readers hold nothing."""
    if head.is_deleted:
        return head
    return replace(
        head,
        epoch=head.epoch + 1,
        holder=None,
        holder_expires_us=0,
        since=MAX_U64,
        purged=head.purged,
        readers={},
        is_deleted=True,
    )


def _without(head: Head, names: Iterable[str]) -> dict[str, ReaderHold]:
    gone = set(names)
    return {name: hold for name, hold in head.readers.items() if name not in gone}
