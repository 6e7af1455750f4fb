"""Tracing: spans of OpenTelemetry around appends, the work on records, and commits. Needs ``walstore[otel]``.

The context of a trace travels in headers of the record, as the propagator of the program writes it: by
default ``traceparent`` and ``tracestate`` of W3C Trace Context (https://www.w3.org/TR/trace-context/). Names
and attributes follow OpenTelemetry's conventions for messaging systems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from walstore.core.runtime.extras import needs_extra
from walstore.records import NO_HEADERS

if TYPE_CHECKING:
    from opentelemetry import trace as api
    from opentelemetry.propagators.textmap import TextMapPropagator

    from walstore import Job, Record

_OFFSET: Final = "walstore.offset"


class Tracing:
    """Spans for one log: who appended, who worked on a record, who committed, as parts of one trace.

    Make one for each log; any number of tasks may use it. Without an SDK, which the program installs, there
    are no spans, and records get no headers.
    """

    def __init__(
        self,
        name: str,
        *,
        tracer: api.Tracer | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        """``name`` is the log's in spans.

        ``tracer`` and ``propagator`` are by default those that the program has installed. Raises
        MissingExtraError if the package is not installed.
        """
        with needs_extra("otel", "Tracing"):
            from opentelemetry import propagate, trace
        self._name = name
        self._api = trace
        self._tracer = trace.get_tracer("walstore") if tracer is None else tracer
        self._propagator = propagate.get_global_textmap() if propagator is None else propagator

    async def append(
        self,
        log: Any,
        value: bytes,
        *,
        headers: Mapping[str, bytes] | None = None,
        **options: Any,
    ) -> int:
        """Append a record to ``log`` in a span "append NAME", whose context the record has in its headers.

        ``log`` is a log, wherever it is, or a producer. In a transaction, use :meth:`headers`.

        Arguments, errors and what a cancellation means are those of the log's own ``append``. The span ends
        when the record is as safe as its durability says.
        """
        with self._span("append", "send", self._api.SpanKind.PRODUCER) as span:
            span.set_attribute("messaging.message.body.size", len(value))
            offset: int = await log.append(value, headers=self.headers(headers), **options)
            span.set_attribute(_OFFSET, offset)
            return offset

    def headers(self, headers: Mapping[str, bytes] | None = None) -> Mapping[str, bytes]:
        """Return headers with the context of the current span, for appends of any other kind.

        A context that was there, such as of a record that is passed on, is replaced.
        """
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        if not carrier:
            return NO_HEADERS if headers is None else headers
        return {
            **(headers or NO_HEADERS),
            **{name: text.encode() for name, text in carrier.items()},
        }

    @contextmanager
    def processing(self, record: Record | Job) -> Iterator[api.Span]:
        """Work on a record in a span "process NAME", within the trace of who appended it.

        It links to the span around the block, if there is one, and notes an exception that leaves the block.
        """
        current = self._api.get_current_span().get_span_context()
        links = [self._api.Link(current)] if current.is_valid else []
        context = self._propagator.extract(_carrier(record))
        kind = self._api.SpanKind.CONSUMER
        with self._span("process", "process", kind, context=context, links=links) as span:
            span.set_attribute("messaging.message.body.size", len(record.value))
            span.set_attribute(_OFFSET, record.offset)
            yield span

    def settling(self) -> AbstractContextManager[api.Span]:
        """Return a block in a span "commit NAME": ``with tracing.settling(): await consumer.commit()``.

        It is for acknowledgements of jobs, too.
        """
        return self._span("commit", "settle", self._api.SpanKind.CLIENT)

    @contextmanager
    def _span(
        self, name: str, kind_of_operation: str, kind: api.SpanKind, **options: Any
    ) -> Iterator[api.Span]:
        attributes = {
            "messaging.system": "walstore",
            "messaging.destination.name": self._name,
            "messaging.operation.name": name,
            "messaging.operation.type": kind_of_operation,
        }
        with self._tracer.start_as_current_span(
            f"{name} {self._name}", kind=kind, attributes=attributes, **options
        ) as span:
            try:
                yield span
            except BaseException as error:  # a cancellation, too: the outcome is then unknown
                span.set_attribute("error.type", type(error).__qualname__)
                raise


def _carrier(record: Record | Job) -> dict[str, str]:
    return {name: value.decode(errors="replace") for name, value in record.headers.items()}
