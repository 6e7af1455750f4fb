"""Spans of appends, work and commits, through OpenTelemetry's own SDK: one trace, wherever the log is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN, SpanKind, StatusCode, use_span

import walstore
from uploader import CloudWriter
from walstore import RecordTooLargeError, Wal
from walstore.metrics import Tracing
from walstore.serve import Server


class Traced:
    """A tracer, and the spans that have ended."""

    def __init__(self) -> None:
        provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.tracing = Tracing("orders", tracer=self.tracer)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Traced:
    return Traced()


async def test_append_work_and_commit_are_one_trace(tmp_path: Path, traced: Traced) -> None:
    async with Wal.open(tmp_path) as wal, Server.open(wal, unix=tmp_path / "log.sock"):
        async with await walstore.connect(f"unix://{tmp_path}/log.sock") as client:
            with traced.tracer.start_as_current_span("request") as request:
                offset = await traced.tracing.append(client, b"beer", headers={"kind": b"order"})
        async with wal.consumer("billing", auto_commit_seconds=None) as consumer:
            async for record in consumer:
                with traced.tracing.processing(record), traced.tracing.settling():
                    await consumer.commit()
                break
    assert record.headers["kind"] == b"order"
    append, process, commit = (
        traced.spans[f"{verb} orders"] for verb in ("append", "process", "commit")
    )
    assert {span.context.trace_id for span in (append, process, commit)} == {
        request.get_span_context().trace_id
    }
    assert append.parent is not None
    assert process.parent is not None
    assert commit.parent is not None
    assert append.parent.span_id == request.get_span_context().span_id
    assert process.parent.span_id == append.context.span_id
    assert commit.parent.span_id == process.context.span_id
    assert (append.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(append.attributes or {}) == {
        "messaging.system": "walstore",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "append",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 4,
        "walstore.offset": offset,
    }


async def test_a_record_of_a_store_and_a_job(tmp_path: Path, traced: Traced) -> None:
    async with CloudWriter.open(f"file://{tmp_path}/stored") as writer:
        await traced.tracing.append(writer, b"a")
    async with Wal.open(tmp_path / "log") as wal:
        with traced.tracer.start_as_current_span("batch"):
            await wal.append_many([b"b"], headers=traced.tracing.headers())
        async with wal.group("workers") as group:
            job = await anext(aiter(group))
            with traced.tracing.processing(job):
                await job.ack()
    async with walstore.open(f"file://{tmp_path}/stored") as log, log.reader() as reader:
        (record,) = [record async for record in reader]
    assert b"-" in record.headers["traceparent"]
    parent = traced.spans["process orders"].parent
    assert parent is not None
    assert parent.span_id == traced.spans["batch"].context.span_id


async def test_the_work_is_linked_to_what_is_around_it(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("append elsewhere"):
        passed_on = walstore.Record(1, b"", headers=traced.tracing.headers())
    worker = traced.tracer.start_span("worker")
    with use_span(worker), traced.tracing.processing(passed_on):
        again = traced.tracing.headers(passed_on.headers)
    process = traced.spans["process orders"]
    assert [link.context.span_id for link in process.links] == [worker.get_span_context().span_id]
    assert again["traceparent"] != passed_on.headers["traceparent"]


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"00-0-0-00", b"x" * 10_000])
async def test_a_header_that_is_none_begins_a_new_trace(traced: Traced, text: bytes) -> None:
    with traced.tracing.processing(walstore.Record(7, b"", headers={"traceparent": text})):
        pass
    assert traced.spans["process orders"].parent is None


async def test_what_fails_is_noted(tmp_path: Path, traced: Traced) -> None:
    async with Wal.open(tmp_path) as wal:
        with pytest.raises(RecordTooLargeError):
            await traced.tracing.append(wal, bytes(1 << 27))
    append = traced.spans["append orders"]
    assert append.status.status_code is StatusCode.ERROR
    assert (append.attributes or {})["error.type"] == "RecordTooLargeError"


async def test_a_cancelled_append_says_so(tmp_path: Path, traced: Traced) -> None:
    async with Wal.open(tmp_path) as wal:
        task = asyncio.create_task(traced.tracing.append(wal, b"a"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (traced.spans["append orders"].attributes or {})["error.type"] == "CancelledError"


async def test_without_an_sdk_a_record_is_as_it_was(tmp_path: Path) -> None:
    tracing = Tracing("orders")
    async with Wal.open(tmp_path) as wal:
        with use_span(INVALID_SPAN):
            await tracing.append(wal, b"a")
            await tracing.append(wal, b"b", headers={"kind": b"order"})
        async with wal.reader(follow=False) as reader:
            found = [record.headers async for record in reader]
    assert found == [{}, {"kind": b"order"}]
