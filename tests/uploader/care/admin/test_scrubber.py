"""Scrubbing: everything that is wrong is told, nothing that is right is, whoever is at work meanwhile."""

from __future__ import annotations

import asyncio
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud import FAST, URL, put_fragment, snapshot
from tests.uploader.logs import TINY, begin, collect, extend, replace, roll_up
from tests.uploader.parquet import copy_as_wal3
from uploader.care.admin.destroy import destroy
from uploader.care.admin.fork import fork
from uploader.care.admin.scrubber import Scrubber, ScrubReport, ScrubTally
from uploader.care.admin.seal import seal
from uploader.format import layout
from uploader.format.cloud_cursor import CloudCursor
from uploader.format.findings import Finding, Severity
from uploader.format.garbage import Garbage
from uploader.format.setsum import Setsum
from uploader.fragments.bloom import StreamSet
from uploader.fragments.fragment import inspect_fragment
from uploader.fragments.fragment_file import FILE_SCHEMA, STREAMS_KEY
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.orphan_recovery import VOID
from uploader.stores import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, timeout
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import InvalidSettingsError, LogNotFoundError
from walstore.core.runtime.threads import Worker

MANIFEST = layout.MANIFEST
SECOND = layout.fragment_path(2)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def worker():
    found = Worker("test")
    yield found
    found.close()


async def scrub(store: ObjectStore, **options) -> ScrubReport:
    async with Scrubber.open(URL, store=store, retry=FAST) as scrubber:
        return await scrubber.scrub(**options)


def told(report: ScrubReport) -> list[tuple[str, str]]:
    """Return what was found, each with its severity and the key of its object."""
    return [(str(found.severity), found.key) for found in report.findings]


async def edit(store: FaultyStore, key: str, **fields: object) -> None:
    """Change fields of a JSON object behind everybody's back."""
    document = json.loads((await store.inner.get(key)).data)
    await replace(store.inner, key, json.dumps({**document, **fields}).encode())


# -- sound logs ------------------------------------------------------------------------------


@pytest.mark.parametrize("fragments", [0, 1, 9])
async def test_a_sound_log(store, worker, fragments) -> None:
    log = await begin(store, worker, fragments)
    await roll_up(log, store)
    report = await scrub(store)
    assert report.findings == ()
    assert report.is_sound
    assert report.is_complete
    assert (report.fragments, report.records) == (fragments, 2 * fragments)
    assert report.fragment_bytes == log.manifest.acc_bytes
    assert report.setsum == log.manifest.setsum.hexdigest()
    assert report.limit == log.manifest.next_offset
    assert report.snapshots >= len(log.manifest.snapshots)


@pytest.mark.slow
async def test_70_a_hundred_appends_of_ten_records_rolled_up_by_twos(store) -> None:
    """wal3's case: a deep tree made by a writer at work."""
    settings = WriterSettings(interval_seconds=0.0, roll_up=TINY)
    async with CloudWriter.open(URL, store=store.inner, retry=FAST, settings=settings) as log:
        for at in range(100):
            await log.append_many([b"%d %d" % (at, number) for number in range(10)])
    report = await scrub(store)
    assert [found for found in report.findings if found.severity is not Severity.NOTE] == []
    assert (report.fragments, report.records) == (100, 1000)
    assert report.snapshots > 50


async def test_it_writes_nothing(store, worker) -> None:
    await begin(store, worker)
    before = await snapshot(store.inner)
    reading = FaultyStore(store.inner)
    await scrub(reading)
    assert reading.counts.keys() <= {"get", "get_range", "head", "list"}
    assert await snapshot(store.inner) == before


async def test_logs_that_were_collected_sealed_or_forked(store, worker) -> None:
    log = await begin(store, worker, 5)
    await collect(log, store, 2)
    await seal(URL, store=store)
    target = MemoryStore()
    await fork(URL, URL, source_store=store, target_store=target)
    for one in (store, target):
        report = await scrub(one)
        assert report.findings == ()
        assert report.records == 6


async def test_what_lies_behind_the_end_of_a_sealed_log_is_of_no_use(store, worker) -> None:
    """Put too late, or ahead by the seal itself, to stop a writer that never pauses."""
    await begin(store, worker, 2)
    await seal(URL, store=store)
    late = await put_fragment(store, 5, 9, [b"late"])
    (finding,) = (await scrub(store)).findings
    assert (finding.severity, finding.key, finding.advice) == (
        Severity.NOTE,
        late.path,
        "delete it",
    )


async def test_no_log(store) -> None:
    with pytest.raises(LogNotFoundError):
        await Scrubber.open(URL, store=store)


# -- damage ----------------------------------------------------------------------------------


async def test_all_of_it_is_told_not_the_first(store, worker) -> None:
    """wal3's scrub stops at the first fault, or drops it when a limit is reached."""
    await begin(store, worker, 8)
    flipped = bytearray((await store.inner.get(layout.fragment_path(2))).data)
    flipped[60] ^= 1
    await replace(store.inner, layout.fragment_path(2), bytes(flipped))
    await store.inner.delete([layout.fragment_path(4)])
    await replace(store.inner, layout.fragment_path(5), b"")
    report = await scrub(store, max_fragments=6)
    assert report.next_start == 13
    assert {key for _, key in told(report)} == {layout.fragment_path(at) for at in (2, 4, 5)}
    assert all(found.severity is Severity.ERROR for found in report.findings)
    assert all(found.what and found.advice for found in report.findings)
    assert not report.is_sound
    assert report.fragments == 5
    assert report.records == 6


async def test_a_fragment_of_other_records(store, worker) -> None:
    """As long, at the same offsets, readable: only the hash tells."""
    await begin(store, worker)
    other = MemoryStore()
    await put_fragment(other, 2, 3, [b"x", b"y"])
    await replace(store.inner, SECOND, (await other.get(SECOND)).data)
    report = await scrub(store)
    (found,) = report.findings
    assert (found.severity, found.key) == (Severity.ERROR, SECOND)
    assert "setsum" in found.what
    assert found.expected != found.found
    assert report.records == 6


@pytest.mark.parametrize("is_longer", [False, True])
async def test_another_length_alone_is_no_damage(store, worker, is_longer) -> None:
    """wal3 reads such fragments, its copies of logs consist of them, and so do we."""
    log = await begin(store, worker)
    await copy_as_wal3(store.inner, log.manifest, is_longer=is_longer)
    report = await scrub(store)
    assert told(report) == [("warning", entry.path) for entry in log.manifest.fragments]
    assert all("length" in found.what for found in report.findings)
    assert "nothing is lost" in report.findings[0].advice
    assert report.is_sound
    assert report.records == 8


async def test_everything_that_differs_is_told(store, worker) -> None:
    await begin(store, worker)
    other = MemoryStore()
    await put_fragment(other, 2, 30, [b"x" * 500, b"y", b"z"])
    await replace(store.inner, SECOND, (await other.get(SECOND)).data)
    report = await scrub(store)
    titles = [found.what for found in report.findings]
    for title in ("length", "first offset", "limit", "setsum"):
        assert any(title in what for what in titles)
    length = len((await other.get(SECOND)).data)
    assert length in {found.found for found in report.findings}


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"setsum": Setsum().hexdigest()}, "do not add up"),
        ({"acc_bytes": 1}, "bytes are held, but only 1 were ever added"),
        ({"initial_offset": {"offset": 7}}, "initial offset"),
        ({"initial_seq_no": 3}, "before the initial one"),
    ],
)
async def test_a_manifest_that_is_wrong_is_followed_all_the_same(
    store, worker, fields, what
) -> None:
    await begin(store, worker)
    await edit(store, MANIFEST, **fields)
    await store.inner.delete([SECOND])
    report = await scrub(store)
    assert [found.key for found in report.errors] == [MANIFEST, SECOND]
    assert what in report.findings[0].what
    assert report.fragments == 3


async def test_several_faults_of_a_manifest(store, worker) -> None:
    await begin(store, worker)
    entries = json.loads((await store.inner.get(MANIFEST)).data)["fragments"]
    entries[1]["seq_no"] = 9
    entries[2]["limit"] = {"offset": 5}
    await edit(store, MANIFEST, fragments=entries, setsum=Setsum().hexdigest())
    report = await scrub(store)
    titles = " ".join(found.what for found in report.findings if found.key == MANIFEST)
    for what in ("stands where", "has the key", "holds no record", "are missing", "do not add up"):
        assert what in titles


@pytest.mark.parametrize("data", [b"", b"{}", b'{"setsum":"x"}'])
async def test_a_manifest_that_is_none(store, worker, data) -> None:
    await begin(store, worker)
    await replace(store.inner, MANIFEST, data)
    report = await scrub(store)
    assert told(report) == [("error", MANIFEST)]
    assert not report.is_complete


async def test_snapshots(store, worker) -> None:
    """One is missing, one is damaged, one lies: the rest of the log is looked at all the same."""
    log = await begin(store, worker, 13)
    await roll_up(log, store)
    leaves: dict[int, str] = {}
    async for listed in store.inner.list(layout.SNAPSHOT_FOLDER):
        document = json.loads((await store.inner.get(listed.key)).data)
        if document["depth"] == 1:
            leaves[document["fragments"][0]["start"]["offset"]] = listed.key
    missing, damaged, lying = leaves[1], leaves[5], leaves[9]
    await store.inner.delete([missing])
    await replace(store.inner, damaged, b"{")
    children = json.loads((await store.inner.get(lying)).data)["fragments"]
    children[0]["num_bytes"] += 1
    await edit(store, lying, fragments=children)
    report = await scrub(store)
    found = told(report)
    assert ("error", missing) in found
    assert ("error", damaged) in found
    assert ("warning", lying) in found  # the length below it, which nothing else depends on
    assert ("warning", children[0]["path"]) in found
    assert len(found) == 4
    assert report.fragments == 9
    assert report.is_complete


async def test_a_snapshot_with_other_content(store, worker) -> None:
    log = await begin(store, worker, 9)
    await roll_up(log, store)
    pointer = log.manifest.snapshots[0]
    await edit(store, pointer.path_to_snapshot, setsum=Setsum().hexdigest(), path="snapshot/other")
    report = await scrub(store)
    assert {key for _, key in told(report)} == {pointer.path_to_snapshot}
    titles = " ".join(found.what for found in report.findings)
    for what in ("another key", "do not add up", "its setsum is not"):
        assert what in titles
    assert report.fragments == 9


def forge(start: int, times_us: list[int], *, stream: str | None, said: str | None) -> bytes:
    """Return a fragment whose records have these times, and whose footer names another stream."""
    rows = len(times_us)
    table = pa.Table.from_arrays(
        [
            pa.array(range(start, start + rows), pa.uint64()),
            pa.array([7] * rows, pa.uint64()),
            pa.array([b"v"] * rows, pa.binary()),
            pa.array(times_us, pa.uint64()),
            pa.array([stream] * rows, pa.string()),
            pa.array([None] * rows, pa.binary()),
            pa.array([None] * rows, FILE_SCHEMA.field("headers").type),
        ],
        schema=FILE_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, FILE_SCHEMA) as file:
        file.write_table(table)
        if said is not None:
            file.add_key_value_metadata({STREAMS_KEY: StreamSet.of([said]).to_text()})
    return sink.getvalue().to_pybytes()


async def publish(log: SwappedRoot, store: ObjectStore, data: bytes) -> None:
    key = layout.fragment_path(log.manifest.next_seq_no)
    await store.put_if_absent(key, data)
    await log.publish([inspect_fragment(data, key)], "writer")


async def test_a_footer_that_denies_a_stream(store, worker) -> None:
    """Readers of that stream would never fetch the fragment."""
    log = await begin(store, worker, 0)
    await publish(log, store, forge(1, [1, 2], stream="eu", said="eu"))
    await publish(log, store, forge(3, [3, 4], stream="eu", said="us"))
    report = await scrub(store)
    assert told(report) == [("warning", SECOND)]
    assert "stream" in report.findings[0].what
    assert report.records == 4


async def test_times_that_go_back(store, worker) -> None:
    """Searches by time go wrong then; wal3's writers do not care."""
    log = await begin(store, worker, 0)
    for start, times in (1, [50, 60]), (3, [40, 70]), (5, [70, 70]):
        await publish(log, store, forge(start, times, stream=None, said=None))
    (found,) = (await scrub(store)).findings
    assert (found.severity, found.key, found.found) == (Severity.WARNING, SECOND, 40)


# -- what lies beside ------------------------------------------------------------------------


async def test_cursors(store, worker) -> None:
    log = await begin(store, worker, 4)
    await collect(log, store, 2)
    places = {"good": 5, "end": 9, "behind": 4, "ahead": 10}
    for name, offset in places.items():
        data = json.dumps({"position": {"offset": offset}, "epoch_us": 1, "writer": "w"}).encode()
        await store.inner.put_if_absent(layout.cursor_path(name), data)
    await store.inner.put_if_absent("cursor/damaged.json", b"{")
    await store.inner.put_if_absent("cursor/notes.txt", b"{")
    report = await scrub(store)
    assert sorted(told(report)) == [
        ("error", "cursor/damaged.json"),
        ("warning", "cursor/ahead.json"),
        ("warning", "cursor/behind.json"),
        ("warning", "cursor/notes.txt"),
    ]


async def test_a_cursor_that_nobody_has_checked(store, worker) -> None:
    """Its call did not end, so that its reader was promised nothing: no record is missing."""
    log = await begin(store, worker, 4)
    await collect(log, store, 2)
    cursor = CloudCursor(name="late", position=4, epoch_us=1, writer="w", is_unchecked=True)
    await store.inner.put_if_absent(layout.cursor_path("late"), cursor.serialise())
    assert told(await scrub(store)) == [("note", "cursor/late.json")]


async def test_cursors_that_hold_nothing(store, worker) -> None:
    """Pins whose time is over, and what is left of cursors that were removed, may stand anywhere."""
    log = await begin(store, worker, 4)
    await collect(log, store, 2)
    now_us = FAST.clock.now_us()
    for name, offset, expires_us in (
        ("expired", 4, now_us - 1),
        ("far", 10, now_us - 1),
        ("removed", 4, 0),
        ("pin", 4, now_us + 10**9),
    ):
        cursor = CloudCursor(
            name=name, position=offset, epoch_us=1, writer="w", expires_us=expires_us
        )
        await store.inner.put_if_absent(layout.cursor_path(name), cursor.serialise())
    assert told(await scrub(store)) == [("warning", "cursor/pin.json")]


async def test_a_collection_that_is_under_way(store, worker) -> None:
    await begin(store, worker)
    await store.inner.put_if_absent(layout.GARBAGE, Garbage().serialise())
    assert (await scrub(store)).findings == ()
    pending = Garbage(start_seq_no=1, limit_seq_no=2, first_to_keep=3)
    await replace(store.inner, layout.GARBAGE, pending.serialise())
    report = await scrub(store)
    assert told(report) == [("note", layout.GARBAGE)]
    assert "before offset 3" in report.findings[0].what
    await replace(store.inner, layout.GARBAGE, b"{")
    assert told(await scrub(store)) == [("error", layout.GARBAGE)]


async def test_left_overs_and_strangers(store, worker) -> None:
    log = await begin(store, worker, 5)
    await roll_up(log, store)
    path = log.manifest.snapshots[0].path_to_snapshot
    await store.inner.put_if_absent(layout.fragment_path(9), b"put and not published")
    await store.inner.put_if_absent("log/readme.txt", b"")
    await store.inner.put_if_absent("b/log/x", b"")
    await store.inner.put_if_absent("b/manifest/x", b"")
    await store.inner.put_if_absent("top", b"")
    nobodys = layout.snapshot_path(Setsum.of_items([b"nobody's"]))
    await store.inner.put_if_absent(nobodys, (await store.inner.get(path)).data)
    report = await scrub(store)
    assert sorted(told(report)) == [
        ("note", "b/"),
        ("note", layout.fragment_path(9)),
        ("note", "log/readme.txt"),
        ("note", nobodys),
        ("note", "top"),
    ]
    assert report.is_sound
    assert "2 objects" in next(found.what for found in report.findings if found.key == "b/")


async def test_a_place_that_was_voided_is_empty(store, worker) -> None:
    """Nothing waits there to be published, and nobody is asked to do anything about it."""
    await begin(store, worker, 2)
    await store.inner.put_if_absent(layout.fragment_path(5), VOID)
    assert told(await scrub(store)) == []


async def test_what_was_collected_and_not_deleted(store, worker) -> None:
    log = await begin(store, worker, 5)
    kept = (await store.inner.get(SECOND)).data
    await collect(log, store, 3)
    await store.inner.put_if_absent(SECOND, kept)
    report = await scrub(store)
    assert told(report) == [("note", SECOND)]
    assert "collected" in report.findings[0].what


async def test_very_many_strangers_are_counted(store, worker, monkeypatch) -> None:
    monkeypatch.setattr("uploader.care.admin.scrub_objects.MOST_LISTED", 3)
    await begin(store, worker, 1)
    for at in range(5):
        await store.inner.put_if_absent(f"log/stranger{at}", b"")
    report = await scrub(store)
    assert len(report.findings) == 4
    assert "5 objects" in report.findings[-1].what


# -- limits ----------------------------------------------------------------------------------


async def test_in_parts(store, worker) -> None:
    """Together they see what one scrub of the whole sees."""
    log = await begin(store, worker, 7)
    await roll_up(log, store)
    await store.inner.delete([SECOND, layout.fragment_path(6)])
    await store.inner.put_if_absent("top", b"")
    whole = await scrub(store)
    findings: list[Finding] = []
    start: int | None = None
    records = 0
    total = Setsum()
    for _ in range(4):
        part = await scrub(store, start=start, max_fragments=2)
        findings += part.findings
        records += part.records
        total += Setsum.from_hexdigest(part.setsum)
        start = part.next_start
    assert start is None
    assert tuple(findings) == whole.findings
    assert records == whole.records == 10
    assert total.hexdigest() == whole.setsum


async def test_what_progress_raises_is_raised(store, worker) -> None:
    """As it is, not in a group."""
    await begin(store, worker)

    def refuse(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await scrub(store, progress=refuse)


async def test_progress(store, worker) -> None:
    await begin(store, worker)
    seen: list[tuple[int, int, int]] = []

    def note(tally: ScrubTally) -> None:
        seen.append((tally.fragments, tally.position, tally.limit))

    await scrub(store, progress=note)
    assert seen == [(1, 3, 9), (2, 5, 9), (3, 7, 9), (4, 9, 9)]


@pytest.mark.parametrize("options", [{"max_fragments": 0}])
async def test_limits_that_make_no_sense(store, worker, options) -> None:
    await begin(store, worker)
    with pytest.raises(InvalidSettingsError):
        await scrub(store, **options)


@pytest.mark.parametrize("concurrency", [0, 65])
def test_settings_that_make_no_sense(concurrency) -> None:
    with pytest.raises(InvalidSettingsError):
        Scrubber.open(URL, concurrency=concurrency)


async def test_so_many_at_once(store, worker) -> None:
    await begin(store, worker, 12)
    most = now = 0

    async def slow(request):
        nonlocal most, now
        now += 1
        most = max(most, now)
        for _ in range(20):
            await asyncio.sleep(0)
        now -= 1
        return await request()

    store.on("get_range", slow, times=99)
    async with Scrubber.open(URL, store=store, concurrency=3) as scrubber:
        assert (await scrubber.scrub()).findings == ()
    assert most == 3


# -- beside others -----------------------------------------------------------------------------


@pytest.mark.slow
async def test_collected_while_it_reads(store, worker) -> None:
    """At whichever call: what is gone was collected, and that is no fault."""
    for nth in range(1, 60):
        inner = MemoryStore()
        log = await begin(inner, worker, 8)
        scrubbed = FaultyStore(inner)

        async def take_away(log: SwappedRoot = log, inner: ObjectStore = inner) -> None:
            await collect(log, inner, 5)

        scrubbed.on("any", faults.call(take_away), nth=nth)
        report = await scrub(scrubbed)
        assert [found for found in report.findings if found.severity is not Severity.NOTE] == []
        assert report.records >= 6
        if scrubbed._plans:
            assert nth > 10
            return
    pytest.fail("it never got to its end")


@pytest.mark.slow
async def test_rolled_up_and_appended_to_while_it_reads(store, worker) -> None:
    for nth in range(1, 80):
        inner = MemoryStore()
        log = await begin(inner, worker, 9)
        scrubbed = FaultyStore(inner)

        async def change(log: SwappedRoot = log, inner: ObjectStore = inner) -> None:
            await roll_up(log, inner)
            await extend(log, inner, 2)
            await put_fragment(inner, log.manifest.next_seq_no, log.manifest.next_offset, [b"next"])

        scrubbed.on("any", faults.call(change), nth=nth)
        report = await scrub(scrubbed)
        assert [found for found in report.findings if found.severity is not Severity.NOTE] == []
        assert report.records >= 18
        assert report.is_complete
        if scrubbed._plans:
            assert nth > 12
            return
    pytest.fail("it never got to its end")


async def test_a_snapshot_that_was_replaced_is_looked_up_anew(store, worker) -> None:
    """A collector cuts it; what is left of it lies in another one."""
    log = await begin(store, worker, 9)
    before = log.manifest
    await roll_up(log, store)
    rolled = log.manifest

    async def unroll() -> None:
        """Name the fragments themselves, and delete all snapshots."""
        await log.change(lambda _: before)
        async for listed in store.inner.list(layout.SNAPSHOT_FOLDER):
            await store.inner.delete([listed.key])

    scrubbed = FaultyStore(store.inner)
    scrubbed.on("get", faults.call(unroll), key_prefix=layout.SNAPSHOT_FOLDER)
    report = await scrub(scrubbed)
    assert rolled.snapshots
    assert report.findings == ()
    assert report.records == 18


async def test_a_cursor_that_moves_meanwhile(store, worker) -> None:
    """It goes ahead with the log, behind which the manifest that is known lies."""
    log = await begin(store, worker)
    key = layout.cursor_path("reader")
    await store.inner.put_if_absent(key, b'{"position":{"offset":11},"epoch_us":1,"writer":"w"}')

    async def append() -> None:
        await extend(log, store.inner)

    scrubbed = FaultyStore(store.inner)
    scrubbed.on("get", faults.call(append), key_prefix=key)
    assert (await scrub(scrubbed)).findings == ()


async def test_a_log_that_is_destroyed_meanwhile_is_not_called_damaged(store, worker) -> None:
    await begin(store, worker, 5)

    async def end() -> None:
        await destroy(URL, store=store.inner, confirm=True)

    store.on("any", faults.call(end), key_prefix=layout.FRAGMENT_FOLDER, nth=2)
    with pytest.raises(LogNotFoundError):
        await scrub(store)


# -- a store that fails ------------------------------------------------------------------------


async def test_a_fragment_that_the_store_does_not_give(store, worker) -> None:
    """It is told, and the rest is looked at."""
    await begin(store, worker)
    store.on("get_range", fail(timeout()), key_prefix=SECOND)
    report = await scrub(store)
    assert told(report) == [("warning", SECOND)]
    assert report.is_complete
    assert report.fragments == 3


async def test_a_store_that_is_away_ends_it_and_keeps_what_was_found(store, worker) -> None:
    await begin(store, worker, 40)
    await store.inner.delete([SECOND])
    store.on("get_range", fail(timeout()), nth=4, times=10**6)
    report = await scrub(store)
    assert ("error", SECOND) in told(report)
    assert report.next_start is not None
    assert len(report.findings) < 20
    store._plans.clear()
    rest = await scrub(store, start=report.next_start)
    assert rest.findings == ()
    assert rest.is_complete


@pytest.mark.parametrize("kind", ["get", "list"])
async def test_a_store_that_is_away_at_any_time(store, worker, kind) -> None:
    """No finding is lost, and where to go on is told."""
    log = await begin(store, worker, 9)
    await roll_up(log, store)
    await store.inner.delete([SECOND])
    for nth in range(2, 40):
        failing = FaultyStore(store.inner)
        async with Scrubber.open(URL, store=failing) as scrubber:
            failing.on(kind, fail(timeout()), nth=nth, times=10**6)
            report = await scrubber.scrub()
        if failing._plans[0].times == 10**6:
            assert nth > 2
            return
        assert report.next_start is not None
        if report.next_start > 4:
            assert ("error", SECOND) in told(report)
    pytest.fail("it never got to its end")
