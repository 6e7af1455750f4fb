"""A chain that others write, change and collect at the same time."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.uploader.answers import refusal
from tests.uploader.chain.chain_logs import head_of
from tests.uploader.chain.chains import run
from uploader.format.layout import manifest_key
from uploader.format.link import Link
from uploader.format.manifest import Manifest
from uploader.testing import FaultyStore
from uploader.testing.faults import fail
from walstore.errors import (
    ContentionError,
    CorruptionError,
    LogSealedError,
    WalError,
)


def collect_one(manifest: Manifest) -> Manifest | None:
    first = manifest.fragments[0]
    if first.seq_no > 1:
        return None
    return dataclasses.replace(
        manifest,
        collected=manifest.collected + first.setsum,
        fragments=manifest.fragments[1:],
        initial_offset=first.limit,
        initial_seq_no=first.seq_no + 1,
    )


async def test_a_collector_may_drop_old_fragments_meanwhile(store, opened) -> None:
    """Its manifest took the slot: the writer's are put again behind it, all of them."""
    log, collector = opened(), opened()
    await log.load_or_create("w")
    await log.publish(run(3, 4), "w")
    await collector.load()
    assert await collector.change(collect_one)
    assert not await collector.change(collect_one)
    runs = [run(5, seq_no=3 + at, start=8 + 5 * at) for at in range(8)]
    await asyncio.gather(*(log.publish(item, "w") for item in runs))
    head = await head_of(store)
    assert (head.manifest.oldest_offset, head.manifest.next_offset) == (4, 48)
    assert head.manifest.collected == run(3)[0].setsum


async def test_changes_and_publishing_by_one_program(store, opened) -> None:
    log = opened(alpha=3)
    await log.load_or_create("w")
    await log.publish(run(3, 4), "w")
    runs = [run(5, seq_no=3 + at, start=8 + 5 * at) for at in range(8)]
    results = await asyncio.gather(
        *(log.publish(item, "w") for item in runs[:4]),
        log.change(collect_one),
        log.change(collect_one),
        *(log.publish(item, "w") for item in runs[4:]),
    )
    assert results[4:6] == [True, False]
    head = await head_of(store)
    assert (head.manifest.oldest_offset, head.manifest.next_offset) == (4, 48)


async def test_an_unsound_change_is_refused(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3, 4), "w")
    with pytest.raises(CorruptionError):
        await log.change(lambda manifest: dataclasses.replace(manifest, fragments=()))
    assert (await head_of(store)).slot == 1


async def test_a_sealed_log_takes_nothing(store, opened) -> None:
    log, other = opened(), opened()
    await log.load_or_create("w")
    await other.load()
    assert await other.change(Manifest.seal)
    with pytest.raises(LogSealedError):
        await log.publish(run(3), "w")


async def test_another_writer_was_first(store, opened) -> None:
    """One of two wins; the other is told and changes nothing."""
    first, second = opened(), opened()
    await first.load_or_create("w")
    await second.load()
    await first.publish(run(3, 4), "w")
    before = await head_of(store)
    for other in (run(5, salt="b"), run(9, salt="b"), run(3, 9, salt="b"), run(3, 4, salt="b")):
        with pytest.raises(ContentionError, match="another writer published fragment 1"):
            await second.publish(other, "w")
    assert await head_of(store) == before
    await second.publish(run(3, 4), "w")
    assert await head_of(store) == before


async def test_many_writers_race(store, opened) -> None:
    logs = [opened(alpha=1 + at) for at in range(8)]
    for log in logs:
        await log.load_or_create("w")
    results = await asyncio.gather(
        *(log.publish(run(10 + at, salt=str(at)), f"w{at}") for at, log in enumerate(logs)),
        return_exceptions=True,
    )
    assert [type(result) for result in results].count(type(None)) == 1
    assert all(isinstance(result, ContentionError | None) for result in results)
    winner = results.index(None)
    assert (await head_of(store)).manifest.next_offset == 11 + winner


async def test_two_writers_take_turns(store, opened) -> None:
    """Each goes on where the other left off, without opening anew, whatever the other had under way."""
    logs = [opened(alpha=3), opened(alpha=5)]
    await logs[0].load_or_create("w")
    await logs[1].load()
    expected = run(*[2] * 40)
    for turn in range(10):
        items = expected[4 * turn : 4 * turn + 4]
        await logs[turn % 2].load()
        await asyncio.gather(*(logs[turn % 2].publish([item], "w") for item in items))
    assert (await head_of(store)).manifest.fragments == tuple(expected)


async def test_a_manifest_that_belongs_to_no_chain_is_named(store, opened) -> None:
    """Only a program that breaks the rules can have put it."""
    log = opened()
    await log.load_or_create("w")
    foreign = Link.root(Manifest.initial("x"), author="x", alpha=1, slot=1)
    foreign = dataclasses.replace(foreign, base=0)
    await store.inner.put_if_absent(foreign.key, foreign.serialise())
    with pytest.raises(CorruptionError):
        await log.publish(run(3), "w")


async def put_behind(store: FaultyStore, link: Link, *salts: str) -> Link:
    """Put a link behind another one, whose log has a fragment of each salt, and is sound in itself."""
    entries = [
        run(3, seq_no=number, start=3 * number - 2, salt=salt)[0]
        for number, salt in enumerate(salts, 1)
    ]
    manifest = Manifest.initial("x").apply_fragments(entries, "x")
    made = link.successor(manifest, author=link.author, alpha=link.alpha, base=0, now_us=0)
    await store.inner.put_if_absent(made.key, made.serialise())
    return made


async def test_each_manifest_goes_on_from_the_one_before(store, opened) -> None:
    """Also one in the middle: what follows it may name the right records again."""
    writer, reader = opened(), opened()
    await writer.load_or_create("w")
    await writer.publish(run(3), "w")
    await reader.load()
    assert reader.head is not None
    forged = await put_behind(store, reader.head, "other", "")
    for _ in range(2):
        for log in (reader, opened()):
            with pytest.raises(CorruptionError, match="not those that were there") as told:
                await log.load()
            assert told.value.path == forged.key
        if await store.inner.head(manifest_key(forged.next)) is None:
            await put_behind(store, forged, "", "", "")
    assert reader.manifest == writer.manifest


async def test_the_manifests_are_deleted_under_us(store, opened) -> None:
    log = opened()
    await log.load_or_create("w")
    await log.publish(run(3), "w")
    store.on("put_if_absent", fail(refusal()))
    await store.inner.delete([manifest_key(0), manifest_key(1)])
    with pytest.raises(WalError):
        other = opened(alpha=1)
        await other.load_or_create("x")
        await log.load()
