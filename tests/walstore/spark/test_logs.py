"""Which logs a read has: by names, by a pattern, by partitions; in buckets and in directories."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.walstore.spark.many import write, write_directory, write_partitioned
from tests.walstore.spark.reading import planned, read_rows
from uploader import open_store
from uploader.format.layout import MANIFEST
from uploader.partitioned import PARTITIONS
from uploader.stores.memory import MemoryStore
from uploader.stores.metering import MeteredStore
from uploader.testing import ShuffledStore
from walstore.errors import CorruptionError, InvalidSettingsError, LogNotFoundError
from walstore.spark.log_catalog import DirectoryCatalog, StoreCatalog, list_names
from walstore.spark.logs import find_logs, open_log
from walstore.spark.options import Selection, parse_location


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That bucket, made once: tests have copies."""
    path = tmp_path_factory.mktemp("made") / "bucket"
    url = path.as_uri()
    write(f"{url}/bills", [b"b1", b"b2"])
    write(f"{url}/eu/clicks", [b"c1"])
    write_partitioned(f"{url}/orders", 3, {0: [b"o1", b"o2"], 2: [b"o3"]})
    return path


@pytest.fixture
def bucket(made: Path, tmp_path: Path) -> str:
    """A bucket with two logs, one in a folder, and a partitioned log of which one part is empty."""
    return f"file://{shutil.copytree(made, tmp_path / 'bucket')}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    logs = {"bills": [b"b1"], "orders/0": [b"o1"], "orders/2": [b"o2", b"o3"], "o.ü": [b"x"]}
    write_directory(path, logs)
    return path


def found(location: str | Path, **selection) -> list[tuple[str, int]]:
    logs = find_logs(parse_location(str(location), {}), Selection(**selection))
    assert all(log.location.topic == log.topic for log in logs)
    return [(log.topic, log.partition) for log in logs]


def values(location: str | Path, **options) -> dict[tuple[str, int], list[bytes]]:
    rows: dict[tuple[str, int], list[bytes]] = {}
    for row in read_rows(location, **options):
        rows.setdefault((row["topic"], row["partition"]), []).append(row["value"])
    return rows


ORDERS = {("orders", 0): [b"o1", b"o2"], ("orders", 2): [b"o3"]}


def test_a_partitioned_log_is_read_as_one(bucket):
    assert found(f"{bucket}/orders") == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert values(f"{bucket}/orders") == ORDERS


@pytest.mark.parametrize(
    ("names", "logs"),
    [
        ("bills", {("bills", 0): [b"b1", b"b2"]}),
        ("bills, eu/clicks", {("bills", 0): [b"b1", b"b2"], ("eu/clicks", 0): [b"c1"]}),
        ("orders", ORDERS),
        ("orders/2,bills", {("bills", 0): [b"b1", b"b2"], ("orders", 2): [b"o3"]}),
        ("orders/2,orders,orders/2", ORDERS),
        ("orders/1", {}),
    ],
)
def test_subscribing_to_names_in_a_bucket(bucket, names, logs):
    assert values(bucket, subscribe=names) == logs


@pytest.mark.parametrize(
    ("names", "logs"),
    [
        ("bills", {("bills", 0): [b"b1"]}),
        ("orders", {("orders", 0): [b"o1"], ("orders", 2): [b"o2", b"o3"]}),
        ("orders/2,o.ü", {("o.ü", 0): [b"x"], ("orders", 2): [b"o2", b"o3"]}),
    ],
)
def test_subscribing_to_names_in_a_directory(directory, names, logs):
    assert values(directory, subscribe=names) == logs


def test_patterns_match_whole_names(bucket, directory):
    assert found(bucket, pattern=".*") == [
        ("bills", 0),
        ("eu/clicks", 0),
        ("orders", 0),
        ("orders", 1),
        ("orders", 2),
    ]
    assert found(bucket, pattern="[a-z]{5}") == [("bills", 0)]
    assert found(bucket, pattern="eu/.*") == [("eu/clicks", 0)]
    assert found(directory, pattern="o.*") == [("o.ü", 0), ("orders", 0), ("orders", 2)]
    for place in (bucket, directory):
        with pytest.raises(LogNotFoundError, match=r'matches .*"bills"'):
            found(place, pattern="order")


def test_assigned_partitions(bucket, directory):
    assert values(bucket, assign='{"orders":[2,0],"bills":[0]}') == {
        **ORDERS,
        ("bills", 0): [b"b1", b"b2"],
    }
    assert found(directory, assigned=(("orders", (2,)),)) == [("orders", 2)]
    with pytest.raises(InvalidSettingsError, match="no partition 3; it has 0, 1, 2"):
        values(bucket, assign='{"orders":[0,3]}')
    with pytest.raises(InvalidSettingsError, match="'bills' has no partition 1; it has 0"):
        values(bucket, assign='{"bills":[1]}')
    with pytest.raises(InvalidSettingsError, match="no partition 1; it has 0, 2"):
        values(directory, assign='{"orders":[1]}')


def test_partitions_that_there_are_not(bucket, directory):
    for place in (bucket, directory):
        with pytest.raises(InvalidSettingsError, match="'orders' has no partition 7"):
            found(place, names=("orders/7",))


def test_a_log_that_is_not_there_is_named(bucket, directory):
    with pytest.raises(LogNotFoundError, match=r"there is no log at .*/bucket/order"):
        values(bucket, subscribe="bills,order")
    with pytest.raises(LogNotFoundError, match=r"no log 'order' at .*\"bills\", .*\"orders\""):
        values(directory, subscribe="order")


def test_a_place_that_holds_several_logs_says_so(bucket, directory):
    for place in (bucket, directory):
        with pytest.raises(LogNotFoundError) as caught:
            planned(place)
        notes = "".join(caught.value.__notes__)
        assert "subscribe" in notes
        assert '"bills"' in notes


def test_a_number_below_a_log_by_itself_is_a_name(tmp_path):
    write_directory(tmp_path / "data", {"orders": [b"whole"], "orders/0": [b"part"]})
    url = f"file://{tmp_path}/bucket"
    write(f"{url}/orders", [b"whole"])
    write(f"{url}/orders/0", [b"part"])
    for place in (tmp_path / "data", url):
        expected = {("orders", 0): [b"whole"], ("orders/0", 0): [b"part"]}
        assert values(place, subscribe="orders,orders/0") == expected
        assert values(place, subscribePattern="orders.*") == expected


@pytest.mark.parametrize("name", ["../secret", "/etc", "a//b", ".", "a/../../b"])
def test_names_do_not_lead_elsewhere(bucket, directory, name):
    with pytest.raises((InvalidSettingsError, LogNotFoundError)):
        found(directory, names=(name,))
    with pytest.raises(InvalidSettingsError, match="parts between slashes"):
        found(bucket, names=(name,))


def test_names_of_any_letters(tmp_path):
    name = "ü b?c#d%2F+e/f&g"
    write(f"file://{tmp_path}/bucket/{quote(name)}", [b"x"])
    write_directory(tmp_path / "data", {name: [b"x"]})
    for place in (f"file://{tmp_path}/bucket", tmp_path / "data"):
        assert values(place, subscribe=name) == {(name, 0): [b"x"]}
        assert values(place, subscribePattern="ü.*g") == {(name, 0): [b"x"]}


def test_other_directories_are_no_logs(directory):
    (directory / "notes").mkdir()
    assert ("notes", 0) not in found(directory, pattern=".*")
    with pytest.raises(LogNotFoundError, match="notes"):
        planned(directory, subscribe="notes")


def test_a_damaged_count_of_partitions_is_found(bucket, tmp_path):
    (tmp_path / "bucket" / "orders" / PARTITIONS).write_bytes(b"{}")
    for options in ({"subscribe": "orders"}, {"subscribePattern": ".*"}):
        with pytest.raises(CorruptionError, match="PARTITIONS"):
            planned(bucket, **options)


def test_an_empty_partition_has_no_offsets(bucket):
    logs = find_logs(parse_location(f"{bucket}/orders", {}), Selection())
    log = open_log(logs[1], use_tier=True)
    assert (log.head, log.limit, log.offset_at(0)) == (1, 1, None)
    assert not log.is_trimmed(0)
    assert log.partitions(1, 1, 1) == []
    log.close()


def test_a_partition_whose_manifest_was_lost_is_not_empty(bucket, tmp_path):
    (tmp_path / "bucket" / "orders" / "2" / MANIFEST).unlink()
    with pytest.raises(CorruptionError, match="partition 2 of 'orders' has fragments"):
        planned(f"{bucket}/orders")


def test_a_partition_that_is_made_while_it_is_looked_for(bucket, monkeypatch):
    """Its manifest comes after it was asked for, and its first fragment before the listing."""
    has_fragments = StoreCatalog.has_fragments

    def late(self: StoreCatalog) -> bool:
        write(f"{bucket}/orders/1", [b"late"])
        return has_fragments(self)

    monkeypatch.setattr(StoreCatalog, "has_fragments", late)
    assert values(f"{bucket}/orders") == {**ORDERS, ("orders", 1): [b"late"]}


def test_places_without_logs(tmp_path):
    location = parse_location(str(tmp_path / "nothing"), {})
    assert DirectoryCatalog(location).names() == []
    catalog = StoreCatalog(parse_location(f"file://{tmp_path}/nothing", {}))
    assert catalog.names() == []
    catalog.close()


# -- listing ---------------------------------------------------------------------------------------


async def test_a_listing_leaps_over_long_folders():
    store = MemoryStore("spark-listing")
    for log in ("a", "b/c"):
        for at in range(2500):
            await store.put_if_absent(f"{log}/log/Bucket=0/FragmentSeqNo={at:016x}.parquet", b"x")
        await store.put_if_absent(f"{log}/manifest/MANIFEST", b"x")
    for at in range(1200):
        await store.put_if_absent(f"chain/manifest/MANIFEST.{at:016x}", b"x")
    await store.put_if_absent("chain/shard0001/x", b"x")
    await store.put_if_absent("last/manifest/MANIFEST", b"x")
    await store.put_if_absent("orders/partitioned/PARTITIONS", b"x")
    metered = MeteredStore(store)
    assert await list_names(metered) == ({"a", "b/c", "chain", "last"}, {"orders"})
    # 6200 objects would be seven pages; the leaps make four listings of a page and a bit.
    assert metered.usage().requests <= 8
    logs, partitioned = await list_names(store, most_objects=10)
    assert not logs
    assert not partitioned


def _by_parts(found) -> None:
    """The first part, with the long folder, proves an order; the second one has keys before and behind it."""
    found.sort(key=lambda listed: (listed.key[0] in "ac", listed.key))


@pytest.mark.parametrize(
    "shuffle", [list.reverse, random.Random(4).shuffle, random.Random(5).shuffle, _by_parts]
)
async def test_a_listing_without_an_order_is_read_to_its_end(shuffle):
    store = MemoryStore()
    for at in range(2500):
        await store.put_if_absent(f"b/log/Bucket=0/FragmentSeqNo={at:016x}", b"x")
    for log in ("a", "b", "c"):
        await store.put_if_absent(f"{log}/manifest/MANIFEST", b"x")
    for name in ("a/parts", "z"):
        await store.put_if_absent(f"{name}/partitioned/PARTITIONS", b"x")
    assert await list_names(ShuffledStore(store, shuffle)) == ({"a", "b", "c"}, {"a/parts", "z"})


async def test_only_manifests_make_logs():
    store = MemoryStore("spark-names")
    for key in ("x/log/notes", "manifest/MANIFEST", "y/manifest/MANIFEST.old", "z/manifest/M"):
        await store.put_if_absent(key, b"x")
    assert await list_names(store) == (set(), set())


def test_one_request_for_each_name(bucket, monkeypatch):
    store = MeteredStore(open_store(bucket))
    monkeypatch.setattr("walstore.spark.blocking.open_store", lambda _: store)
    assert found(bucket, names=("bills", "eu/clicks", "orders/2")) == [
        ("bills", 0),
        ("eu/clicks", 0),
        ("orders", 2),
    ]
    usage = store.usage()
    assert usage.of("get").requests == 4
    assert usage.requests == 4
    asyncio.run(store.aclose())
