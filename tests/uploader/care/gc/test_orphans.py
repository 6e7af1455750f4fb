"""Fragments behind the end of a log that can never be part of it, and a collector that comes by."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from tests.cloud import FAST, put_fragment
from tests.uploader.care.gc.collecting import collect
from tests.uploader.logs import replace
from tests.uploader.places import INTERVAL_SECONDS, Place
from uploader import CloudWriter
from uploader.care.admin.seal import seal
from uploader.format import layout
from uploader.root.orphan_recovery import VOID
from uploader.root.ownership import writer_name
from uploader.testing.faults import call


@pytest.fixture
async def place() -> Place:
    return await Place.make()


async def test_what_can_never_follow_is_voided(place: Place, caplog) -> None:
    """Also if none of our writers ever opens the log again. Nothing there is deleted."""
    end = place.tree.manifest
    seq_no, offset = end.next_seq_no, end.next_offset
    await put_fragment(place.inner, seq_no, offset + 1, [b"begins too late"])
    await put_fragment(place.inner, seq_no + 3, offset + 2, [b"too few records before it"])
    await put_fragment(place.inner, seq_no + 4, offset - 1, [b"begins before the end"])
    await place.inner.put_if_absent(layout.fragment_path(seq_no + 5), b"no fragment")
    misfits = [layout.fragment_path(seq_no + at) for at in (0, 3, 4)]
    with caplog.at_level(logging.WARNING, logger="walstore"):
        assert (await collect(place)).deleted == ()
    assert [(await place.inner.get(key)).data for key in misfits] == [VOID] * 3
    assert len(caplog.records) == 3
    assert (await place.inner.get(layout.fragment_path(seq_no + 5))).data == b"no fragment"
    before = await place.keys()
    assert (await collect(place)).deleted == ()
    assert await place.keys() == before


async def test_what_may_still_fit_is_left_however_old_it_is(place: Place) -> None:
    """Its writer may have been suspended; it believes that this is put, and publishes it when it wakes."""
    end = place.tree.manifest
    await put_fragment(place.inner, end.next_seq_no + 1, end.next_offset + 1, [b"x"])
    await put_fragment(place.inner, end.next_seq_no + 2, end.next_offset + 9, [b"y"])
    before = await place.inner.get(layout.fragment_path(end.next_seq_no + 1))
    place.clock.seconds += 1000 * INTERVAL_SECONDS
    await collect(place)
    assert await place.inner.get(layout.fragment_path(end.next_seq_no + 1)) == before
    await put_fragment(place.inner, end.next_seq_no, end.next_offset, [b"before it"])
    last = end.fragments[-1]  # its times are read
    await place.inner.delete([last.path])
    await put_fragment(place.inner, last.seq_no, last.start, [b"z"] * (last.limit - last.start))
    async with CloudWriter.open("memory://x", store=place.inner, retry=FAST) as log:
        assert await log.append(b"goes on") == end.next_offset + 2


async def test_what_took_its_place_meanwhile_stays(place: Place) -> None:
    end = place.tree.manifest
    await put_fragment(place.inner, end.next_seq_no, 90, [b"x"])
    key = layout.fragment_path(end.next_seq_no)
    place.store.on(
        "put_if_match", call(lambda: replace(place.inner, key, b"other")), key_prefix=key
    )
    await collect(place)
    assert (await place.inner.get(key)).data == b"other"


async def test_it_may_be_gone_or_published_meanwhile(place: Place) -> None:
    end = place.tree.manifest
    await put_fragment(place.inner, end.next_seq_no, end.next_offset, [b"fits"])
    await put_fragment(place.inner, end.next_seq_no + 1, 90, [b"x"])
    gone = layout.fragment_path(end.next_seq_no + 1)
    place.store.on("get", call(lambda: place.inner.delete([gone])), key_prefix=gone)
    await collect(place)
    assert gone not in await place.keys()
    assert (await place.inner.get(layout.fragment_path(end.next_seq_no))).data != VOID


async def test_a_directory_that_ships_there_judges_itself(place: Place) -> None:
    """It stops at what another writer put, and says so; a collector does not take that from it."""
    end = place.tree.manifest
    await place.set_manifest(dataclasses.replace(end, writer=writer_name(bytes(16))))
    await put_fragment(place.inner, end.next_seq_no, 90, [b"x"])
    await collect(place)
    assert (await place.inner.get(layout.fragment_path(end.next_seq_no))).data != VOID


async def test_a_sealed_log_has_nothing_to_fear(place: Place) -> None:
    await seal("memory://x", store=place.inner)
    await put_fragment(place.inner, place.tree.manifest.next_seq_no + 1, 90, [b"x"])
    before = place.store.requests
    async with place.collector() as collector:
        await collector.sweep()
    assert place.store.requests <= before + 2
