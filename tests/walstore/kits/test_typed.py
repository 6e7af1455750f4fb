"""Logs of values of a type: what is appended comes back, on every face; what does not fit is one error."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.cloud import FAST
from tests.walstore.serve.served import serving
from uploader import CloudLog, CloudWriter, WriterSettings
from uploader.stores import MemoryStore
from walstore import Record, Wal
from walstore.kits.typed import Schema, SchemaError, TypedLog, TypedView


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Order:
    number: int
    lines: list[Line]


class Payment(BaseModel):
    order: int
    amount: float


class Point(TypedDict):
    x: int


ORDER = Order(7, [Line("tea", 2), Line("cup")])


@pytest.fixture
async def wal(tmp_path: Path) -> AsyncIterator[Wal]:
    async with Wal.open(tmp_path / "log") as wal:
        yield wal


async def test_values_come_back_as_they_were(wal: Wal) -> None:
    orders = TypedLog(wal, Schema(Order))
    assert await orders.append(ORDER, key=b"k", stream="eu", headers={"trace": b"1"}) == 1
    assert await orders.append_many([Order(8, []), ORDER], durability="disk") == range(2, 4)
    found = [record async for record in orders.reader()]
    assert [record.value for record in found] == [ORDER, Order(8, []), ORDER]
    first = found[0]
    assert (first.offset, first.key, first.stream) == (1, b"k", "eu")
    assert first.headers == {"trace": b"1", "walstore.schema": b"Order/1"}
    assert first.timestamp.timestamp() == pytest.approx(first.timestamp_us / 1e6)
    assert [record.offset async for record in orders.reader(2, stop=3)] == [2]
    assert [record.offset async for record in orders.reader(stream="eu")] == [1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict, {"a": [1, None]}),
        (list, [1, "é"]),
        (str, "text"),
        (int, 5),
        (float, 1.5),
        (float, 2),
        (bool, True),
        (Payment, Payment(order=1, amount=2.5)),
        (dict[str, int], {"a": 1}),
        (Point, {"x": 1}),
    ],
)
def test_an_encoding_for_each_type(kind: type[object], value: object) -> None:
    schema = Schema(kind)
    record = Record(1, schema.encode(value), headers=schema.headers)
    assert json.loads(record.value) is not None
    assert schema.decode(record) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict, [1]),
        (int, True),
        (str, b"x"),
        (Order, {"number": 1}),
        (Payment, ORDER),
        (Point, {"x": "y"}),
    ],
)
async def test_a_value_of_another_type_is_refused(
    wal: Wal, kind: type[object], value: object
) -> None:
    log = TypedLog(wal, Schema(kind))
    with pytest.raises(TypeError, match=f"expected {kind.__name__}, got {type(value).__name__}"):
        await log.append(value)
    with pytest.raises(TypeError):
        await log.append_many([value])
    assert wal.tail == 1


async def test_an_encoding_of_its_own(wal: Wal) -> None:
    schema = Schema(
        complex, dumps=lambda value: str(value).encode(), loads=lambda data: complex(data.decode())
    )
    log = TypedLog(wal, schema)
    await log.append(1 + 2j)
    assert (await anext(log.reader())).value == 1 + 2j


async def test_a_job_and_a_consumer_are_decoded_by_the_schema(wal: Wal) -> None:
    schema = Schema(Order)
    await TypedLog(wal, schema).append(ORDER)
    async with wal.group("workers") as group:
        job = (await group.fetch())[0]
        assert schema.decode(job) == ORDER
        await job.ack()
    async with wal.consumer("billing") as consumer:
        assert schema.decode(await anext(consumer)) == ORDER


async def test_followers_wait_and_lose_nothing_when_cancelled(wal: Wal) -> None:
    log = TypedLog(wal, Schema(int))
    reader = log.follow()
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await log.append(1)
    assert (await anext(reader)).value == 1


# -- other faces ------------------------------------------------------------------------------


async def test_a_served_log(tmp_path: Path) -> None:
    async with serving(tmp_path / "log") as served, served.connect() as remote:
        orders = TypedLog(remote, Schema(Order))
        await orders.append(ORDER)
        assert (await anext(orders.follow())).value == ORDER


async def test_a_log_of_another_process(wal: Wal) -> None:
    await TypedLog(wal, Schema(Order)).append(ORDER)
    async with Wal.open_readonly(wal.path) as readonly:
        assert (await anext(TypedView(readonly, Schema(Order)).follow())).value == ORDER


async def test_a_stored_log() -> None:
    store, schema = MemoryStore(), Schema(Order)
    settings = WriterSettings(interval_seconds=0)
    async with CloudWriter.open("memory://x", store=store, retry=FAST, settings=settings) as writer:
        await writer.append(schema.encode(ORDER), headers=schema.headers)
    async with CloudLog.open("memory://x", store=store, retry=FAST) as log:
        assert [one.value async for one in TypedView(log, schema).reader()] == [ORDER]


# -- what does not fit ------------------------------------------------------------------------


async def test_what_cannot_be_decoded_is_an_error_with_its_offset(wal: Wal) -> None:
    schema = Schema(Order)
    log = TypedLog(wal, schema)
    await log.append(ORDER)
    await wal.append(b'{"number": "x"}', headers=schema.headers)
    await log.append(ORDER)
    reader = log.reader()
    await anext(reader)
    for _ in range(2):  # nothing is passed over by itself
        with pytest.raises(
            SchemaError, match=r"the record at offset 2 cannot be decoded as Order/1: "
        ) as caught:
            await anext(reader)
        assert "\n" not in str(caught.value)
        assert (caught.value.offset, reader.position) == (2, 2)
        assert caught.value.record.value == b'{"number": "x"}'
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.offset, again.record) == (str(caught.value), 2, caught.value.record)
    reader.seek(caught.value.offset + 1)
    assert [record.offset async for record in reader] == [3]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (
            None,
            "the record at offset 1 has no header walstore.schema; give the schema upgrade= to read it",
        ),
        (b"Order/1", "has version 1 of Order; give the schema upgrade="),
        (b"Order/3", "has version 3 of Order, this program knows 2: update it"),
        (b"Payment/2", "is of schema b'Payment/2', not Order"),
        (b"Order", "is of schema b'Order', not Order"),
        (b"Order/-1", "is of schema"),
        (b"\xff/2", "is of schema"),
    ],
)
async def test_other_schemas_and_versions(wal: Wal, header: bytes | None, text: str) -> None:
    log = TypedLog(wal, Schema(Order, version=2))
    await wal.append(b"{}", headers=None if header is None else {"walstore.schema": header})
    with pytest.raises(SchemaError) as caught:
        await anext(log.reader())
    assert text in str(caught.value)


async def test_older_versions_are_upgraded(wal: Wal) -> None:
    def upgrade(record: Record, version: int) -> Payment:
        if version == 0:
            return Payment(order=int(record.value), amount=0)
        return Payment(order=json.loads(record.value)["order"], amount=-1)

    await wal.append(b"5")
    await TypedLog(wal, Schema(dict, name="Payment")).append({"order": 6})
    log = TypedLog(wal, Schema(Payment, version=2, upgrade=upgrade))
    await log.append(Payment(order=7, amount=3))
    assert [record.value.order async for record in log.reader()] == [5, 6, 7]
    await wal.append(b"no number")
    with pytest.raises(
        SchemaError, match="offset 4 cannot be decoded as Payment/0: invalid literal"
    ):
        await anext(log.reader(4))


async def test_records_that_do_not_fit_are_skipped_where_that_is_wanted(wal: Wal) -> None:
    log = TypedLog(wal, Schema(int), on_error="skip")
    await wal.append_many([b"?"] * 3)
    await log.append(1)
    await wal.append(b"?")
    assert [record.value async for record in log.reader()] == [1]


async def test_records_that_do_not_fit_are_handed_over(wal: Wal) -> None:
    raw: list[bytes] = []

    async def keep(error: SchemaError) -> None:
        if len(raw) == 1 and error.offset == 2:
            raw.append(b"refused")
            raise RuntimeError
        raw.append(error.record.value)

    log = TypedLog(wal, Schema(int), on_error=keep)
    await wal.append_many([b"a", b"b"])
    await log.append(1)
    reader = log.reader()
    with pytest.raises(RuntimeError):
        await anext(reader)
    assert reader.position == 2  # the handler failed: it gets the record again
    assert [record.value async for record in reader] == [1]
    assert raw == [b"a", b"refused", b"b"]


# -- arguments --------------------------------------------------------------------------------


async def test_bad_arguments(wal: Wal) -> None:
    with pytest.raises(ValueError, match="go together"):
        Schema(int, dumps=lambda _: b"")
    with pytest.raises(ValueError, match="version must be 1 to"):
        Schema(int, version=0)
    with pytest.raises(TypeError, match="give dumps= and loads="):
        Schema(Wal)
    with pytest.raises(ValueError, match="on_error must be"):
        TypedLog(wal, Schema(int), on_error="ignore").reader()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave it out"):
        await TypedLog(wal, Schema(int)).append(1, headers={"walstore.schema": b"x/1"})
    with pytest.raises(TypeError, match="several values"):
        await TypedLog(wal, Schema(str)).append_many("abc")
    assert repr(Schema(int, version=3)) == "<Schema int/3>"


def test_without_pydantic_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["pydantic"] = None
from dataclasses import dataclass
from walstore.kits.typed import Schema
Schema(dict).encode({})
@dataclass
class Order: pass
Schema(Order)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert "the schema Order needs the extra 'typed' (pydantic cannot be imported" in last
    assert last.endswith('pip install "walstore[typed]"')
