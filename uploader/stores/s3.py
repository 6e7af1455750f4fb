"""Objects in an S3 bucket: Amazon's, Ceph RGW, MinIO and others that enforce conditional puts.

Reads, listings and deletes are repeated after transient faults. A conditional put is sent exactly once
per call, by us and by every layer below. An error's ``outcome`` states whether the put may have happened,
and ``uploader.root.cas`` resolves it. Credentials come from the environment as boto finds them; nothing here
holds, prints or logs them.

ETags travel without quotes: Amazon takes them either way, Ceph RGW and DigitalOcean compare the header
with the bare value and refuse a quoted one. Each put carries its MD5, which every server checks, and
leaves the body out of the signature, so that no megabytes are hashed on the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from uploader.runtime.task_groups import task_group
from uploader.stores.port import (
    FIRST_PAGE,
    NEXT_PAGE,
    ListedObject,
    ObjectInfo,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoredObject,
    check_key,
    check_keys,
    check_range,
)
from uploader.stores.probe import Proof, proof_of
from uploader.stores.retry import RetryPolicy
from walstore.core.runtime.extras import needs_extra
from walstore.errors import (
    InvalidSettingsError,
    LogNotFoundError,
    UnsupportedStoreError,
    WalClosedError,
)

_DELETES_AT_ONCE = 16
_LARGE_BYTES = 128 * 1024


class S3Store:
    """The port over one bucket and a prefix in it. Bound to the event loop of its first call."""

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint_url: str | None = None,
        region: str | None = None,
        connect_timeout_seconds: float = 5.0,
        read_timeout_seconds: float = 15.0,
        request_timeout_seconds: float = 60.0,
        max_connections: int = 32,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Name the place; nothing is loaded or sent before the first call.

        Args:
            bucket: The bucket, which must exist.
            prefix: Where in the bucket the keys begin; without slashes at its ends.
            endpoint_url: The server, if it is not Amazon's; then the bucket goes into the path.
            region: Region of the bucket; None for that of the environment.
            connect_timeout_seconds: Longest wait for a connection.
            read_timeout_seconds: Longest silence of the server within a request.
            request_timeout_seconds: Longest time for one request, its body and answer included.
            max_connections: Connections kept, and so requests in flight at the same time; further ones
                wait. At least as many as a log has fragments in flight, and some more for its readers.
            retry: How reads, listings and deletes are repeated. Default: 5 attempts in all.
        """
        if max_connections < 1:
            raise InvalidSettingsError(f"max_connections must be at least 1, not {max_connections}")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint_url = endpoint_url
        self._region = region
        self._connect_timeout_seconds = connect_timeout_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._request_timeout_seconds = request_timeout_seconds
        self._max_connections = max_connections
        self._retry = retry or RetryPolicy()
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._connection: Any = None
        self._is_closed = False

    @property
    def url(self) -> str:
        """``s3://bucket/prefix?endpoint_url=…&region=…``, with the options that were given."""
        options = {"endpoint_url": self._endpoint_url, "region": self._region}
        query = urlencode({name: value for name, value in options.items() if value}, safe=":/")
        place = quote(f"{self._bucket}/{self._prefix}".rstrip("/"))
        return f"s3://{place}?{query}" if query else f"s3://{place}"

    def __repr__(self) -> str:
        return f"<S3Store {self.url}>"

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        """Return a whole object, of at most ``max_bytes``; the body of a longer one is not read."""
        return await self._retry.call(lambda: self._get(key, most_bytes=max_bytes))

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)``, cut at the end of the object."""
        check_range(start, limit)
        wanted = f"bytes={start}-{limit - 1}"
        found = await self._retry.call(
            lambda: self._get(key, most_bytes=limit - start, Range=wanted)
        )
        return found.data

    async def head(self, key: str) -> ObjectInfo | None:
        """Return size and ETag; None also if the bucket is missing, which a HEAD does not report."""

        async def request() -> ObjectInfo | None:
            try:
                answer = await self._request("head_object", key, Key=self._full(key))
            except ObjectNotFoundError:
                return None
            return ObjectInfo(key, int(answer["ContentLength"]), self._etag(answer))

        return await self._retry.call(request)

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the objects in the server's order, one request for the first hundred, then for each thousand.

        Few callers need more than the first, and get no long page.
        """
        where: dict[str, Any] = {"Prefix": self._prefix + prefix, "MaxKeys": FIRST_PAGE}
        if after is not None:
            where["StartAfter"] = self._prefix + after
        while True:
            page = await self._retry.call(partial(self._request, "list_objects_v2", "", **where))
            for item in page.get("Contents", ()):
                yield ListedObject(item["Key"][len(self._prefix) :], int(item["Size"]))
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token or token == where.get("ContinuationToken"):
                # Without a token, the next page would be this one again, for ever.
                raise UnsupportedStoreError(
                    f"{self.url} says that its listing continues, but not from where; use another store"
                )
            where = {**where, "ContinuationToken": token, "MaxKeys": NEXT_PAGE}

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create an object with ``If-None-Match: *``; one request, never repeated."""
        try:
            return await self._put(key, data, IfNoneMatch="*")
        except ObjectNotFoundError as error:
            raise LogNotFoundError(
                f"nothing takes objects at {self.url}; check the bucket and endpoint_url",
                location=self.url,
            ) from error

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object with ``If-Match``; one request, never repeated."""
        try:
            return await self._put(key, data, IfMatch=etag)
        except ObjectNotFoundError as error:
            raise PreconditionFailedError(f"the object is gone from {self.url}", key=key) from error

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, a request each: servers differ in what they require of bulk deletes."""
        full = [(key, self._full(key)) for key in check_keys(keys)]
        for start in range(0, len(full), _DELETES_AT_ONCE):
            async with task_group() as group:
                for key, full_key in full[start : start + _DELETES_AT_ONCE]:
                    group.create_task(self._delete(key, full_key))

    async def proof(self) -> Proof:
        """Return what the bucket has proven."""
        return proof_of("s3", self._endpoint_url, self._bucket)

    async def aclose(self) -> None:
        """Close the connections; idempotent."""
        self._is_closed = True
        async with self._opening:
            await self._stack.aclose()

    async def _get(
        self, key: str, *, most_bytes: int | None = None, **condition: Any
    ) -> StoredObject:
        answer = await self._request(
            "get_object", key, most_bytes=most_bytes, Key=self._full(key), **condition
        )
        return StoredObject(answer["Body"], self._etag(answer))

    async def _delete(self, key: str, full_key: str) -> None:
        await self._retry.call(lambda: self._request("delete_object", key, Key=full_key))

    async def _put(self, key: str, data: bytes, **condition: Any) -> str:
        is_large = len(data) > _LARGE_BYTES
        digest = await asyncio.to_thread(_md5, data) if is_large else _md5(data)
        answer = await self._request(
            "put_object",
            key,
            Key=self._full(key),
            # A stream is sent in pieces, so that other tasks run in between.
            Body=io.BytesIO(data) if is_large else data,
            ContentMD5=digest,
            **condition,
        )
        return self._etag(answer)

    async def _request(
        self, name: str, key: str, *, most_bytes: int | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Send one request, once, and return the answer with its body read, of at most ``most_bytes``."""
        connection = await self._open()
        answer: dict[str, Any] = await connection.request(
            name, key, most_bytes=most_bytes, Bucket=self._bucket, **parameters
        )
        return answer

    async def _open(self) -> Any:
        async with self._opening:
            if self._is_closed:
                raise WalClosedError(f"the store is closed: {self.url}")
            if self._connection is None:
                connection = await asyncio.to_thread(self._prepare)
                await connection.open(self._stack)
                self._connection = connection
            return self._connection

    def _prepare(self) -> Any:
        with needs_extra("cloud", "an s3:// store"):
            from uploader.stores.s3_client import Connection
        return Connection(
            self.url,
            endpoint_url=self._endpoint_url,
            region=self._region,
            connect_timeout_seconds=self._connect_timeout_seconds,
            read_timeout_seconds=self._read_timeout_seconds,
            request_timeout_seconds=self._request_timeout_seconds,
            max_connections=self._max_connections,
        )

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _etag(self, answer: dict[str, Any]) -> str:
        etag = str(answer.get("ETag", "")).strip('"')
        if not etag:
            raise UnsupportedStoreError(f"{self.url} gives its objects no ETag; use another store")
        return etag


def _md5(data: bytes) -> str:
    return b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
