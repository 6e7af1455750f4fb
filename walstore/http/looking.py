"""Looking: what the page of a server shows, as JSON."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from walstore.core.ports import Clock
from walstore.errors import StorageUnavailableError
from walstore.http.protocol import RefusedError
from walstore.log.wal import Wal
from walstore.records import Record, to_timestamp_us
from walstore.store.log_catalog import LogCatalog

if TYPE_CHECKING:
    from collections.abc import Mapping as Query

PAGES: Final = {
    "/": ("index.html", "text/html"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/page.css": ("page.css", "text/css"),
}
"""Paths of the page's files, their names and types. They hold no data, and need no token."""
_MOST_RECORDS: Final = 200
_MOST_SCANNED: Final = 50_000
_SHOWN_BYTES: Final = 2048
"""Of a value in a list; one record alone is shown up to :data:`_WHOLE_BYTES`."""
_WHOLE_BYTES: Final = 1 << 20
_STATUS_SECONDS: Final = 5.0
"""A look at a collection costs requests, so that all viewers share one for this time."""
_MOST_NAMES: Final = 1000


class WatchedCollection(Protocol):
    """A versioned collection, as far as the page needs one: ``uploader.Collection`` is."""

    @property
    def status(self) -> Callable[[], Awaitable[Any]]:
        """Looks at it; see ``uploader.Collection.status``."""


class Looking:
    """Answers what there is in logs and collections. Belongs to the event loop of the logs."""

    def __init__(
        self,
        logs: LogCatalog,
        collections: Mapping[str, WatchedCollection],
        clock: Clock,
    ) -> None:
        self._logs = logs
        self._collections = dict(collections)
        self._clock = clock
        self._statuses: dict[str, tuple[float, dict[str, Any]]] = {}
        self._turn = asyncio.Lock()

    # -- logs --------------------------------------------------------------------------------

    async def logs(self, may_read: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
        """Return the logs and collections that may be read, with the limits of those that are open."""
        opened, names = self._logs.opened(), [*filter(may_read, await self._logs.logs())]
        cluster = self._logs.cluster
        if cluster is not None:
            cluster["logs"] = [one for one in cluster["logs"] if may_read(one["name"])]
        found = [_brief(name, opened.get(name)) for name in names[:_MOST_NAMES]]
        return {
            "logs": found,
            "count": len(names),
            "collections": sorted(filter(may_read, self._collections)),
            "cluster": cluster,
        }

    async def log(self, name: str) -> dict[str, Any]:
        """Return one log as it is now; RefusedError with 404 if there is none of that name."""
        wal = await self._find(name)
        trouble: str | None = None
        try:
            listed = await wal.cursors()
        except StorageUnavailableError as error:  # too few copies: the page says which are missing
            listed, trouble = [], str(error)
        statistics, extents = wal.statistics(), wal.extents()
        cursors = [
            {
                "name": one.name,
                "position": None if one.problem else one.position,
                "pins": not one.is_expired,
                "problem": str(one.problem) if one.problem else None,
            }
            for one in listed
        ]
        are_known = trouble is None and all(one["problem"] is None for one in cursors)
        pins = [one["position"] for one in cursors if one["pins"] and one["position"] is not None]
        is_tiered = statistics.upload is not None
        bounds = [statistics.durable_limit, *pins]
        if is_tiered:
            bounds.append(statistics.uploaded_limit)
        return {
            "name": name,
            "at": self._clock.monotonic(),
            "statistics": dataclasses.asdict(statistics),
            "is_tiered": is_tiered,
            "cursors": cursors,
            "cursors_trouble": trouble,
            "segments": [one._asdict() for one in extents.segments],
            "stored": [one._asdict() for one in extents.stored],
            "retention": list(extents.retention),
            "deletable_limit": min(bounds) if are_known else 0,
        }

    async def _find(self, name: str) -> Wal:
        wal = await self._logs.find(name)
        if wal is None:
            raise RefusedError(404, "no such log")
        return wal

    # -- records -----------------------------------------------------------------------------

    async def records(self, name: str, query: Query[str, str]) -> dict[str, Any]:
        """Return some records: ``from`` a place, ``count`` of them, of a ``stream``, with a ``key``."""
        wal = await self._find(name)
        count = _number(query.get("count", "50"), 1, _MOST_RECORDS)
        stream, key = query.get("stream") or None, query.get("key") or None
        start = await _place(wal, query.get("from", ""), count)
        found: list[dict[str, Any]] = []
        position, scanned = start, 0
        shown = _WHOLE_BYTES if count == 1 else _SHOWN_BYTES
        async with wal.reader(start, stream=stream, follow=False) as reader:
            while len(found) < count and scanned < _MOST_SCANNED:
                batch = await reader.fetch(
                    max_records=500 if key else count - len(found), max_wait_seconds=0
                )
                if not len(batch):
                    position = max(position, wal.visible_limit)
                    break
                for record in batch.records():
                    scanned += 1
                    position = record.offset + 1
                    if key is None or record.key == key.encode():
                        found.append(_shown(record, shown))
                        if len(found) == count:
                            break
        return {
            "records": found,
            "start": start,
            "next": position,
            "scanned": scanned,
            "head": wal.head,
            "limit": wal.visible_limit,
        }

    # -- collections -------------------------------------------------------------------------

    async def collection(self, name: str) -> dict[str, Any]:
        """Return layers and readers of a collection, at most five seconds old."""
        found = self._collections.get(name)
        if found is None:
            raise RefusedError(404, "no such collection")
        async with self._turn:
            now = self._clock.monotonic()
            at, status = self._statuses.get(name, (now - 2 * _STATUS_SECONDS, {}))
            if now - at > _STATUS_SECONDS:
                status = _collection(name, await found.status(), self._clock.now_us())
                self._statuses[name] = now, status
        return status


def _brief(name: str, wal: Wal | None) -> dict[str, Any]:
    if wal is None:
        return {"name": name, "open": False}
    lags = wal.statistics()
    return {
        "name": name,
        "open": True,
        "head": wal.head,
        "limit": wal.visible_limit,
        "failed": lags.failure is not None,
    }


def _number(text: str, low: int, high: int) -> int:
    # Few digits, as Python refuses to convert thousands.
    found = int(text) if re.fullmatch("[0-9]{1,19}", text) else -1
    if not low <= found <= high:
        raise RefusedError(400, f"count is a number from {low} to {high}")
    return found


async def _place(wal: Wal, text: str, count: int) -> int:
    """Return the offset that a viewer means: an offset, ``-N`` from the end, a time, or the newest."""
    head, limit = wal.head, wal.visible_limit
    word = text.strip()
    if not word or word == "latest":
        return max(head, limit - count)
    if word == "earliest":
        return head
    digits = word.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 20:
        at = limit - int(digits) if word.startswith("-") else int(digits)
        return min(max(at, head), limit)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise RefusedError(
            400, "from is an offset, -N, earliest, latest, or a time such as 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return await wal.offset_at(max(to_timestamp_us(moment), 0))


def _shown(record: Record, most_bytes: int) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp_us": record.timestamp_us,
        "key": None if record.key is None else _text(record.key, _SHOWN_BYTES),
        "stream": record.stream,
        "headers": {name: _text(value, _SHOWN_BYTES) for name, value in record.headers.items()},
        "value": _text(record.value, most_bytes),
        "value_bytes": len(record.value),
    }


def _text(value: bytes, most_bytes: int) -> dict[str, str]:
    """Return the first bytes as text, if they are some, or in base64."""
    shown = value[:most_bytes]
    # A cut may have gone through a character, of at most four bytes.
    for length in range(len(shown), len(shown) - (1 if shown == value else 4), -1):
        try:
            return {"text": shown[:length].decode()}
        except UnicodeDecodeError:
            continue
    return {"base64": base64.b64encode(shown).decode()}


def _collection(name: str, status: Any, now_us: int) -> dict[str, Any]:
    layers: dict[int, dict[str, int]] = {}
    for batch in status.batches:
        layer = layers.setdefault(batch.layer, {"batches": 0, "rows": 0, "bytes": 0})
        layer["batches"] += 1
        layer["rows"] += batch.rows
        layer["bytes"] += batch.size_bytes
    furthest = min((hold.frontier for hold in status.readers.values()), default=None)
    return {
        "name": name,
        "version": status.version,
        "upper": status.upper,
        "merged_upper": status.merged_upper,
        "since": status.since,
        "controller": status.holder,
        "pending": {
            "batches": status.pending_batches,
            "rows": status.pending_rows,
            "bytes": status.pending_bytes,
        },
        "layers": [{"layer": layer, **layers[layer]} for layer in sorted(layers, reverse=True)],
        "readers": [
            {
                "name": reader,
                "frontier": hold.frontier,
                "version": hold.version,
                "lease_seconds": (
                    None
                    if hold.expires_us is None
                    else round(max(hold.expires_us - now_us, 0) / 1e6, 1)
                ),
                "holds": hold.frontier == furthest,
            }
            for reader, hold in sorted(status.readers.items())
        ],
    }
