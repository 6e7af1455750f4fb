"""KeyValues: what every store does, in memory, behind a gateway like etcd's, and in a real cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from tests.cases import case
from tests.waiting import until
from tests.walstore.topology.conftest import World, changes, sockets
from walstore.errors import InvalidSettingsError, LimitExceededError, WalClosedError
from walstore.topology.key_values import (
    MOST_KEY_BYTES,
    MOST_VALUE_BYTES,
    Event,
    HistoryCompactedError,
    KeyValue,
    KeyValues,
    LeaseLostError,
    Swap,
)


async def put(client: KeyValues, key: str, value: bytes, *, lease: int = 0) -> KeyValue:
    """Write a key, whatever is there."""
    found = await client.get(key)
    swap = await client.swap(key, value, expected=found.revision if found else 0, lease=lease)
    assert swap.happened
    assert swap.found is not None
    return swap.found


async def test_swaps(world: World) -> None:
    client, key = await world.client(), world.prefix + "k"
    assert await client.get(key) is None
    made = await client.swap(key, b"one", expected=0)
    assert made.happened
    assert made.found == KeyValue(key, b"one", made.revision)
    assert await client.get(key) == made.found
    for expected in (0, made.revision - 1, made.revision + 1):
        with case(expected):
            refused = await client.swap(key, b"no", expected=expected)
            assert refused == Swap(happened=False, found=made.found, revision=made.revision)
    replaced = await client.swap(key, b"", expected=made.revision)
    assert replaced.happened
    assert replaced.revision > made.revision
    assert await client.get(key) == replaced.found == KeyValue(key, b"", replaced.revision)
    assert not (await client.swap(key, None, expected=made.revision)).happened
    deleted = await client.swap(key, None, expected=replaced.revision)
    assert deleted == Swap(happened=True, found=None, revision=deleted.revision)
    assert deleted.revision > replaced.revision
    assert await client.get(key) is None
    gone = await client.swap(key, None, expected=replaced.revision)
    assert gone == Swap(happened=False, found=None, revision=deleted.revision)
    again = await client.swap(key, b"again", expected=0)
    assert again.happened
    assert again.revision > deleted.revision


async def test_of_two_contenders_one_wins(world: World) -> None:
    clients, key = (await world.client(), await world.client()), world.prefix + "k"
    swaps = await asyncio.gather(
        *(client.swap(key, bytes((number,)), expected=0) for number, client in enumerate(clients))
    )
    (winner,) = (swap for swap in swaps if swap.happened)
    (loser,) = (swap for swap in swaps if not swap.happened)
    assert loser.found == winner.found == await clients[0].get(key)


async def test_counting_together_loses_nothing(world: World) -> None:
    key, rounds = world.prefix + "k", 8

    async def count(name: bytes) -> None:
        client = await world.client()
        for _ in range(rounds):
            happened = False
            while not happened:
                found = await client.get(key)
                number = int(found.value.partition(b" ")[0]) if found else 0
                value = b"%d %s" % (number + 1, name)
                expected = found.revision if found else 0
                happened = (await client.swap(key, value, expected=expected)).happened

    await asyncio.gather(count(b"a"), count(b"b"), count(b"c"))
    found = await (await world.client()).get(key)
    assert found is not None
    assert found.value.startswith(b"%d " % (3 * rounds))


async def test_keys_of_a_lease_go_with_it(world: World) -> None:
    client, prefix = await world.client(), world.prefix
    lease = await client.grant(1)
    assert lease > 0
    first = await put(client, prefix + "a", b"1", lease=lease)
    assert first.lease == lease
    await put(client, prefix + "b", b"2", lease=lease)
    freed = await put(client, prefix + "b", b"3")
    await put(client, prefix + "c", b"4", lease=lease)
    kept = await put(client, prefix + "d", b"5")
    assert (await client.list(prefix)).items[prefix + "a"] == first
    world.pass_time(1)
    events = await changes(client, prefix, after=kept.revision, count=2)
    assert [event.key for event in events] == [prefix + "a", prefix + "c"]
    assert [event.now for event in events] == [None, None]
    assert events[0].revision == events[1].revision > kept.revision
    assert (await client.list(prefix)).items == {prefix + "b": freed, prefix + "d": kept}
    with pytest.raises(LeaseLostError) as caught:
        await client.keep_alive(lease)
    assert caught.value.lease == lease
    with pytest.raises(LeaseLostError):
        await client.swap(prefix + "e", b"6", expected=0, lease=lease)
    assert await client.get(prefix + "e") is None
    await client.revoke(lease)


async def test_a_lease_is_kept_alive_and_revoked(world: World) -> None:
    client, key = await world.client(), world.prefix + "k"
    lease = await client.grant(5)
    made = await put(client, key, b"1", lease=lease)
    for _ in range(3):
        world.pass_time(4)
        assert await client.keep_alive(lease) == 5.0
    assert await client.get(key) == made
    other = await world.client()
    await other.revoke(lease)
    assert await client.get(key) is None
    await other.revoke(lease)
    with pytest.raises(LeaseLostError):
        await client.keep_alive(lease)


async def test_a_watch_tells_everything_once_and_in_order(world: World) -> None:
    client, prefix = await world.client(), world.prefix
    start = await put(client, prefix + "a", b"0")
    written = [await put(client, f"{prefix}{n % 3}", b"%d" % n) for n in range(10)]
    deleted = await client.swap(written[-1].key, None, expected=written[-1].revision)
    await put(client, f"x{prefix}", b"elsewhere")
    expected = [Event(item.key, item, item.revision) for item in written]
    expected.append(Event(written[-1].key, None, deleted.revision))
    everything = [Event(start.key, start, start.revision), *expected]
    for after, events in (
        (start.revision, expected),
        (start.revision - 1, everything),
        (0, everything),
        (written[4].revision, expected[5:]),
    ):
        with case(after):
            assert await changes(client, prefix, after=after, count=len(events)) == events


async def test_a_watch_is_told_what_happens_later(world: World) -> None:
    client, other, prefix = await world.client(), await world.client(), world.prefix
    after = (await client.list(prefix)).revision
    async with asyncio.TaskGroup() as group:
        told = [group.create_task(changes(client, prefix, after=after, count=3)) for _ in range(2)]
        items = [await put(other, prefix + str(n), b"%d" % n) for n in range(3)]
    for task in told:
        assert task.result() == [Event(item.key, item, item.revision) for item in items]


async def test_a_watch_goes_on_after_lost_connections(world: World) -> None:
    client, other, prefix = await world.client(), await world.client(), world.prefix
    first = await put(other, prefix + "k", b"0")
    watch = client.watch(prefix, after=first.revision - 1)
    async with asyncio.timeout(60):
        assert await anext(watch) == [Event(first.key, first, first.revision)]
        for number in range(1, 4):
            await world.lose()
            item = await put(other, prefix + "k", b"%d" % number)
            assert await anext(watch) == [Event(item.key, item, item.revision)]
    await watch.aclose()


async def test_forgotten_changes(world: World) -> None:
    client, prefix = await world.client(), world.prefix
    items = [await put(client, prefix + "k", b"%d" % n) for n in range(5)]
    await world.compact(items[3].revision)
    for after in (0, items[0].revision, items[3].revision - 1):
        with case(after), pytest.raises(HistoryCompactedError) as caught:
            await changes(client, prefix, after=after, count=1)
        assert caught.value.after == after
        assert caught.value.compacted == items[3].revision
    last = Event(items[4].key, items[4], items[4].revision)
    assert await changes(client, prefix, after=items[3].revision, count=1) == [last]
    listed = await client.list(prefix)
    assert listed.items == {prefix + "k": items[4]}
    more = await put(client, prefix + "k", b"more")
    assert await changes(client, prefix, after=listed.revision, count=1) == [
        Event(more.key, more, more.revision)
    ]


async def test_a_forgotten_deletion_is_not_passed_over(world: World) -> None:
    """A real node begins at the revision it is compacted to, without an error and without its deletion."""
    client, key = await world.client(), world.prefix + "k"
    item = await put(client, key, b"1")
    deleted = await client.swap(key, None, expected=item.revision)
    await world.compact(deleted.revision)
    with pytest.raises(HistoryCompactedError):
        await changes(client, world.prefix, after=item.revision, count=1)


async def test_a_list_and_a_watch_after_it_miss_nothing(world: World) -> None:
    client, other, prefix = await world.client(), await world.client(), world.prefix
    count = 30
    async with asyncio.TaskGroup() as group:

        async def write() -> None:
            for number in range(count):
                await other.swap(f"{prefix}{number:02}", b"x", expected=0)

        group.create_task(write())
        for _ in range(3):
            listed = await client.list(prefix)
            left = count - len(listed.items)
            later = await changes(client, prefix, after=listed.revision, count=left)
            keys = [*listed.items, *(event.key for event in later)]
            assert keys == [f"{prefix}{number:02}" for number in range(count)]


async def test_prefixes(world: World) -> None:
    client, top = await world.client(), world.prefix
    names = ["a", "a/", "a/1", "a0", "a\x7f", "a\xff", "a\xff1", "a\U0010ffff", "a\U0010ffffz", "b"]
    items = {}
    for name in names:
        items[top + name] = await put(client, top + name, name.encode())
    assert (await client.list("")).items.items() >= items.items()
    begin = min(item.revision for item in items.values()) - 1
    for prefix in ["", *names, "A", "c", "a\U0010fffe"]:
        with case(prefix):
            wanted = {key: item for key, item in items.items() if key.startswith(top + prefix)}
            found = await client.list(top + prefix)
            assert found.items == wanted
            assert list(found.items) == sorted(wanted, key=str.encode)
            if wanted:
                events = await changes(client, top + prefix, after=begin, count=len(wanted))
                assert [event.now for event in events] == sorted(
                    wanted.values(), key=lambda item: item.revision
                )


async def test_unicode_keys_and_binary_values(world: World) -> None:
    client, top = await world.client(), world.prefix
    names = ["ключ", "鍵/🔑", "\0", "\0\x01", " ", '"\\\n', "k" * (MOST_KEY_BYTES - len(top))]
    values = [b"", b"\0", bytes(range(256)), b"\xff" * 3, "ü".encode(), b"\n", b"{}"]
    for name, value in zip(names, values, strict=True):
        with case(name[:10], value):
            item = await put(client, top + name, value)
            assert item == await client.get(top + name)
            assert item.value == value
            assert (await client.list(top + name)).items[top + name] == item
            assert await changes(client, top + name, after=item.revision - 1, count=1) == [
                Event(top + name, item, item.revision)
            ]
            assert (await client.swap(top + name, None, expected=item.revision)).happened


async def test_large_values(world: World) -> None:
    client, key = await world.client(), world.prefix + "k"
    value = bytes(range(256)) * (MOST_VALUE_BYTES // 256)
    items = [
        await put(client, f"{key}{number}", value[: len(value) >> 2 * number])
        for number in range(3)
    ]
    assert await client.get(key + "0") == items[0]
    assert list((await client.list(key)).items.values()) == items
    events = await changes(client, key, after=items[0].revision - 1, count=3)
    assert [event.now for event in events] == items
    with pytest.raises(LimitExceededError):
        await client.swap(key, value + b"1", expected=0)


async def test_wrong_arguments(world: World) -> None:
    client, key = await world.client(), world.prefix + "k"
    wrong: list[tuple[type[Exception], Callable[[], Awaitable[object]]]] = [
        (ValueError, lambda: client.get("")),
        (ValueError, lambda: client.get("\ud800")),
        (TypeError, lambda: client.get(b"k")),
        (LimitExceededError, lambda: client.get("k" * (MOST_KEY_BYTES + 1))),
        (TypeError, lambda: client.list(None)),
        (ValueError, lambda: client.swap(key, None, expected=0)),
        (ValueError, lambda: client.swap(key, None, expected=1, lease=1)),
        (InvalidSettingsError, lambda: client.swap(key, b"", expected=-1)),
        (InvalidSettingsError, lambda: client.swap(key, b"", expected=0, lease=-1)),
        (TypeError, lambda: client.swap(key, "", expected=0)),
        (InvalidSettingsError, lambda: client.grant(0)),
        (TypeError, lambda: client.grant(1.5)),
        (InvalidSettingsError, lambda: client.keep_alive(0)),
        (InvalidSettingsError, lambda: client.revoke(0)),
        (InvalidSettingsError, lambda: anext(client.watch(key, after=-1))),
    ]
    for number, (error, call) in enumerate(wrong):
        with case(number), pytest.raises(error):
            await call()
    assert await client.get(key) is None


async def test_closing(world: World) -> None:
    client, prefix = await world.client(), world.prefix
    revision = (await client.list(prefix)).revision
    watch = client.watch(prefix, after=revision)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_refused(lambda: anext(watch)))
        await client.get(prefix)
        await client.aclose()
        await client.aclose()
    assert waiting.done()
    for call in _calls(client, prefix, revision, 1):
        await _refused(call)


async def test_a_cancelled_call_leaves_nothing_behind(world: World) -> None:
    setup, prefix = await world.client(), world.prefix
    revision = (await setup.list(prefix)).revision
    lease = await setup.grant(60)
    before = sockets()
    client = await world.client()
    for call in range(7):
        for turns in itertools.chain(range(8), (20, 40)):
            task = asyncio.get_running_loop().create_task(
                _calls(client, prefix, revision, lease)[call]()
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
    await client.aclose()
    await until(lambda: sockets() <= before)
    await setup.get(prefix)


def _calls(
    client: KeyValues, prefix: str, revision: int, lease: int
) -> list[Callable[[], Awaitable[object]]]:
    """Every call that waits."""
    return [
        lambda: client.get(prefix),
        lambda: client.list(prefix),
        lambda: client.swap(prefix, b"x", expected=0),
        lambda: client.grant(1),
        lambda: client.keep_alive(lease),
        lambda: client.revoke(lease + 1),
        lambda: changes(client, prefix + "none", after=revision, count=1),
    ]


async def _refused(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(WalClosedError):
        await call()
