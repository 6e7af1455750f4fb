"""An announced collection that no collector planned: whoever may write to the bucket can put it there."""

from __future__ import annotations

import dataclasses

import pytest

from tests.uploader.care.gc.collecting import announce, collect, garbage_below
from tests.uploader.places import Place
from uploader.format import layout
from walstore.errors import CollectionRefusedError, CorruptionError


async def test_garbage_of_more_fragments_than_there_can_be_records_is_refused() -> None:
    place = await Place.make()
    before = await place.keys()
    garbage = dataclasses.replace(garbage_below(place, 5), start_seq_no=0, limit_seq_no=2**62)
    await announce(place, garbage)
    with pytest.raises(CorruptionError, match=f"cannot all be below.*{layout.GARBAGE}"):
        await collect(place)
    assert before <= await place.keys()


async def test_garbage_that_the_manifest_still_names_is_not_listed_first() -> None:
    """As many keys as numbers up to 2**62 would take all memory, if the look came afterwards."""
    place = await Place.make()
    garbage = garbage_below(place, 5)
    forged = dataclasses.replace(garbage, limit_seq_no=2**62, first_to_keep=2**62)
    await announce(place, forged)
    async with place.collector() as collector:
        plan = dataclasses.replace(await collector.plan(), garbage=forged)
        with pytest.raises(CollectionRefusedError):
            await collector._execution._finish(plan, None, None)
