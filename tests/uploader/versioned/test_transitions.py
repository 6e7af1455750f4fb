"""The rules of a head: each change alone, and what no sequence of them breaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.uploader.versioned.collections import SCHEMA
from uploader.versioned import transitions
from uploader.versioned.head import MOST_CONSUMED, Consumed, Head
from uploader.versioned.names import merged_key, version_key
from uploader.versioned.schema import CollectionSchema
from uploader.versioned.version import MergedBatch
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

HEAD = Head(collection="c", schema=CollectionSchema.new(SCHEMA, kind="diff", key=("k",)))


def batch(lower: int, upper: int, *, since: int = 0) -> MergedBatch:
    return MergedBatch(
        lower=lower, upper=upper, since=since, rows=1, size_bytes=9, digest=1, schema_id=0,
        keys=(merged_key(1),),
    )  # fmt: skip


def grown(head: Head, upper: int) -> Head:
    """Return the head with one batch more."""
    output = batch(head.upper, upper, since=head.since)
    version = transitions.next_version(head, run=(), output=output, created_us=1)
    return transitions.commit(head, version, version_key(version.n), epoch=head.epoch)


def leased(head: Head, name: str, expires_us: int = 100, *, since: int | None = None) -> Head:
    return transitions.register(head, name, handle=name, expires_us=expires_us, since=since)


def test_a_new_reader_begins_at_since_and_the_newest_version() -> None:
    head = leased(grown(replace(HEAD, since=3), 9), "r")
    assert (head.readers["r"].frontier, head.readers["r"].version) == (3, 1)
    with pytest.raises(SinceViolationError):
        leased(head, "other", since=2)
    assert leased(head, "other", since=7).since == 3


def test_since_is_what_the_last_reader_allows() -> None:
    head = leased(leased(HEAD, "a"), "b")
    for name, frontier, since in (("a", 5, 0), ("b", 3, 3), ("b", 9, 5)):
        head = transitions.renew(
            head, name, handle=name, frontier=frontier, version=0, expires_us=100
        )
        assert head.since == since
    assert transitions.release(head, "a").since == 9
    assert transitions.release(transitions.release(head, "a"), "b").since == 9, (
        "without readers it stays"
    )


def test_what_a_handle_lost_it_cannot_renew() -> None:
    head = leased(HEAD, "r", expires_us=100)
    assert transitions.expire(head, now_us=99) is head
    gone = transitions.expire(head, now_us=100)
    taken = transitions.register(head, "r", handle="other", expires_us=200)
    for now in (gone, taken):
        with pytest.raises(LeaseExpiredError):
            transitions.renew(now, "r", handle="r", frontier=1, version=1, expires_us=300)
        with pytest.raises(LeaseExpiredError):
            transitions.clone(now, "r", "copy", handle="r", new_handle="c", expires_us=300)
        assert transitions.release(now, "r", handle="r") is now


def test_critical_readers_hold_no_version_and_never_expire() -> None:
    head = transitions.register(grown(HEAD, 5), "spark", handle="h", expires_us=None)
    assert head.readers["spark"].version is None
    assert transitions.expire(head, now_us=1 << 62) is head
    moved = transitions.compare_and_downgrade(
        head, "spark", handle="h", expected="", token="t", frontier=4
    )
    assert (moved.since, moved.readers["spark"].token) == (4, "t")
    with pytest.raises(ExpectationError):
        transitions.compare_and_downgrade(
            moved, "spark", handle="h", expected="", token="u", frontier=5
        )
    with pytest.raises(InvalidSettingsError):
        leased(head, "spark")


def test_readers_are_limited() -> None:
    head = HEAD
    for number in range(transitions.MOST_READERS):
        head = leased(head, f"r{number}")
    with pytest.raises(LimitExceededError):
        leased(head, "more")
    with pytest.raises(LimitExceededError):
        transitions.clone(head, "r1", "copy", handle="r1", new_handle="c", expires_us=1)
    assert leased(head, "r1").readers.keys() == head.readers.keys()


def test_one_controller_at_a_time() -> None:
    first = transitions.take(HEAD, "one", now_us=0, expires_us=60, take_over=False)
    with pytest.raises(WalLockedError, match="one"):
        transitions.take(first, "two", now_us=59, expires_us=99, take_over=False)
    for now_us, take_over in ((60, False), (59, True)):
        second = transitions.take(first, "two", now_us=now_us, expires_us=99, take_over=take_over)
        assert second.epoch == first.epoch + 1
        with pytest.raises(FencedError):
            transitions.renew_epoch(second, epoch=first.epoch, expires_us=500)
        assert transitions.resign(second, epoch=first.epoch) is second
        with pytest.raises(FencedError):
            transitions.raise_floors(second, epoch=first.epoch, gc_floor=0, purged=0)
    resigned = transitions.resign(first, epoch=first.epoch)
    assert transitions.take(resigned, "two", now_us=1, expires_us=9, take_over=False).epoch == 2


def test_a_commit_replaces_exactly_what_was_read() -> None:
    head = grown(grown(grown(HEAD, 3), 6), 9)
    one, two, three = head.version.batches
    for run, lower, upper in (
        ((one,), 0, 3),
        ((one, two), 0, 6),
        ((two, three), 3, 9),
        ((three,), 6, 12),
    ):
        version = transitions.next_version(head, run=run, output=batch(lower, upper), created_us=5)
        assert version.batches[0].lower == 0
        assert transitions.commit(head, version, version_key(4), epoch=0).upper == max(upper, 9)
    for run, lower, upper in (
        ((one, three), 0, 9), ((two, one), 0, 6), ((batch(0, 3),), 0, 3), ((one,), 0, 2), ((one,), 0, 6),
        ((two,), 2, 6), ((three,), 6, 8), ((), 8, 12), ((), 10, 12),
    ):  # fmt: skip
        with pytest.raises(ContentionError):
            transitions.next_version(head, run=run, output=batch(lower, upper), created_us=5)
    with pytest.raises(ContentionError, match="hold"):
        transitions.next_version(head, run=(), output=batch(9, 12, since=1), created_us=5)


def test_a_version_follows_the_newest_one() -> None:
    head = grown(HEAD, 3)
    version = transitions.next_version(head, run=(), output=batch(3, 6), created_us=5)
    newer = grown(head, 4)
    with pytest.raises(ContentionError):
        transitions.commit(newer, version, version_key(2), epoch=0)
    with pytest.raises(FencedError):
        transitions.commit(head, version, version_key(2), epoch=1)


def test_so_many_merged_batches_are_remembered() -> None:
    head = HEAD
    for number in range(MOST_CONSUMED + 5):
        item = Consumed(writer="w", lower=number, upper=number + 1, digest=0)
        output = batch(head.upper, head.upper + 1)
        version = transitions.next_version(head, run=(), output=output, created_us=1)
        head = transitions.commit(head, version, version_key(version.n), epoch=0, consumed=[item])
    assert len(head.consumed) == MOST_CONSUMED
    assert head.consumed[-1].lower == MOST_CONSUMED + 4


def test_floors_stay_below_what_is_held() -> None:
    head = leased(grown(grown(HEAD, 3), 6), "r")
    head = grown(head, 9)
    with pytest.raises(CollectionRefusedError):
        transitions.raise_floors(head, epoch=0, gc_floor=2, purged=6)
    announced = transitions.announce_purge(head, epoch=0, purged=6)
    assert transitions.raise_floors(announced, epoch=0, gc_floor=2, purged=6).gc_floor == 2
    assert transitions.keep(announced, [6]) is announced
    with pytest.raises(CollectionRefusedError):
        kept = transitions.keep(announced, [6, 5])
        transitions.raise_floors(kept, epoch=0, gc_floor=2, purged=6)
    for gc_floor, purged in ((3, 6), (2, 10)):
        announced = transitions.announce_purge(head, epoch=0, purged=purged)
        with pytest.raises(CollectionRefusedError):
            transitions.raise_floors(announced, epoch=0, gc_floor=gc_floor, purged=purged)


def test_a_deletion_is_final_and_fences() -> None:
    deleted = transitions.delete(leased(HEAD, "r"))
    assert deleted.is_deleted
    assert deleted.readers == {}
    assert deleted.epoch == 1
    assert transitions.delete(deleted) is deleted


STEPS = some.lists(
    some.tuples(
        some.sampled_from(
            ["register", "renew", "release", "expire", "grow", "floors", "take", "clone"]
        ),
        some.sampled_from("abc"),
        some.integers(0, 30),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_nothing_goes_back_and_no_hold_is_broken(steps: list[tuple[str, str, int]]) -> None:
    head = HEAD
    for act, name, number in steps:
        before = head
        try:
            head = _do(head, act, name, number)
        except (
            LeaseExpiredError,
            SinceViolationError,
            CollectionRefusedError,
            InvalidSettingsError,
        ):
            continue
        for what in ("since", "upper", "gc_floor", "purged", "epoch"):
            assert getattr(head, what) >= getattr(before, what), (act, what)
        assert all(hold.frontier >= head.since for hold in head.readers.values())
        assert head.gc_floor <= head.oldest_held_version
        assert head.version.since <= head.since
        assert head.purged <= head.upper


def _do(head: Head, act: str, name: str, number: int) -> Head:
    match act:
        case "register":
            return leased(head, name, expires_us=number, since=number if number % 3 else None)
        case "renew":
            return transitions.renew(
                head, name, handle=name, frontier=number, version=head.version.n, expires_us=number
            )
        case "release":
            return transitions.release(head, name)
        case "expire":
            return transitions.expire(head, now_us=number)
        case "grow":
            return grown(head, head.upper + number + 1)
        case "floors":
            head = transitions.announce_purge(head, epoch=head.epoch, purged=number)
            return transitions.raise_floors(
                head, epoch=head.epoch, gc_floor=number % 5, purged=number
            )
        case "take":
            return transitions.take(head, name, now_us=0, expires_us=9, take_over=True)
    return transitions.clone(
        head, name, name * 2, handle=name, new_handle=name * 2, expires_us=number
    )


def test_programs_share_a_reader_of_a_version():
    head = transitions.share(replace(grown(HEAD, 10), since=3), now_us=1000, hold_us=100)
    assert head.since == 3
    assert head.readers["shared-1"].expires_us == 1150
    assert transitions.share(head, now_us=1040, hold_us=100) is head, "it lasts long enough"
    longer = transitions.share(head, now_us=1060, hold_us=100)
    assert longer.readers["shared-1"].expires_us == 1210
    assert longer.oldest_held_version == 1


def test_a_shared_reader_holds_no_time():
    head = transitions.share(replace(grown(HEAD, 10), since=3), now_us=0, hold_us=100)
    assert transitions.advance_since(head).since == 3, "without others it stays"
    head = transitions.register(head, "own", handle="h", expires_us=9, since=8)
    assert head.since == 8


def test_a_shared_reader_takes_the_place_of_readers_whose_lease_has_ended():
    head = grown(HEAD, 10)
    for number in range(transitions.MOST_READERS):
        head = transitions.register(head, f"r{number}", handle="h", expires_us=10 + number)
    with pytest.raises(LimitExceededError):
        transitions.share(head, now_us=9, hold_us=100)
    shared = transitions.share(head, now_us=10, hold_us=100)
    assert len(shared.readers) == transitions.MOST_READERS
    assert "r0" not in shared.readers


def test_a_reader_that_has_the_name_of_shared_ones():
    head = transitions.register(grown(HEAD, 10), "shared-1", handle="h", expires_us=9)
    with pytest.raises(InvalidSettingsError, match="only shared readers"):
        transitions.share(head, now_us=0, hold_us=100)
