"""Objects in S3, Google Cloud Storage or Azure Blob Storage through obstore, Rust's object_store.

A fraction of the processor time of aioboto3, which stays the default for ``s3://``: signing, hashing and
HTTP run on threads of Rust, without the interpreter's lock. As in ``s3.py``, a conditional put is sent
exactly once per call, reads, listings and deletes are repeated after transient faults, and an error's
``outcome`` states whether a put may have happened. Credentials come from the environment as object_store
finds them: ``AWS_…``, ``GOOGLE_…`` or ``AZURE_…`` variables, or the machine's role; no profiles.

What names the content of an object in a swap is its ETag; at Google it is the number of its generation,
which is all that its servers compare.

A process that was forked off one that used obstore cannot use it, and is told so.

object_store matches whole segments of keys, and asks for pages of a thousand. So a listing with a prefix
that ends within a segment begins just before it, and leaves out the rest of the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode

from uploader.runtime.task_groups import task_group
from uploader.stores.obstore_errors import PastEndError, is_about_credentials, translated
from uploader.stores.port import (
    ListedObject,
    ListingOrder,
    ObjectInfo,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoredObject,
    check_key,
    check_keys,
    check_length,
    check_range,
)
from uploader.stores.probe import Proof, proof_of
from uploader.stores.retry import RetryingStore, RetryPolicy
from walstore.core.runtime.extras import needs_extra
from walstore.errors import (
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    UnsupportedStoreError,
    WalClosedError,
    WalError,
)

_T = TypeVar("_T")

Scheme = Literal["s3", "gs", "az"]

_DELETES_AT_ONCE: Final = 16
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ENDPOINT: Final = {"s3": "endpoint", "gs": "base_url", "az": "endpoint"}
"""How obstore calls the option."""


class ObstoreStore(RetryingStore):
    """The port over one bucket or container and a prefix in it. Bound to the event loop of its first call."""

    def __init__(
        self,
        scheme: Scheme,
        bucket: str,
        *,
        prefix: str = "",
        endpoint_url: str | None = None,
        region: str | None = None,
        connect_timeout_seconds: float = 5.0,
        request_timeout_seconds: float = 60.0,
        max_connections: int = 32,
        retry: RetryPolicy | None = None,
    ) -> None:
        """Name the place; nothing is loaded or sent before the first call.

        Args:
            scheme: Whose store it is: ``"s3"`` of Amazon and others, ``"gs"`` Google's, ``"az"`` Azure's.
            bucket: The bucket or container, which must exist.
            prefix: Where in the bucket the keys begin; without slashes at its ends.
            endpoint_url: The server, if it is not the vendor's own.
            region: Region of an S3 bucket; None for that of the environment, else us-east-1.
            connect_timeout_seconds: Longest wait for a connection.
            request_timeout_seconds: Longest time for one request, its body and answer included.
            max_connections: Requests in flight at the same time; further ones wait.
            retry: How reads, listings and deletes are repeated. Default: 5 attempts in all.
        """
        if scheme not in _CREDENTIALS:
            raise InvalidSettingsError(f"scheme must be 's3', 'gs' or 'az', not {scheme!r}")
        if max_connections < 1:
            raise InvalidSettingsError(f"max_connections must be at least 1, not {max_connections}")
        requests = _Requests(
            scheme,
            bucket,
            f"{prefix}/" if prefix else "",
            endpoint_url,
            region,
            (connect_timeout_seconds, request_timeout_seconds),
            max_connections,
        )
        super().__init__(requests, retry)

    def __repr__(self) -> str:
        return f"<ObstoreStore {self.url}>"


class _Requests:
    """The port, each call one request."""

    def __init__(
        self,
        scheme: Scheme,
        bucket: str,
        prefix: str,
        endpoint_url: str | None,
        region: str | None,
        timeouts_seconds: tuple[float, float],
        max_connections: int,
    ) -> None:
        self._scheme: Scheme = scheme
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint_url = endpoint_url
        self._region = region
        self._connect_timeout_seconds, self._request_timeout_seconds = timeouts_seconds
        self._turns = asyncio.Semaphore(max_connections)
        self._opening = asyncio.Lock()
        self._api: Any = None
        self._inner: Any = None
        self._is_closed = False

    @property
    def url(self) -> str:
        """``s3://bucket/prefix?endpoint_url=…&region=…``, with the options that were given."""
        options = {"endpoint_url": self._endpoint_url, "region": self._region}
        query = urlencode({name: value for name, value in options.items() if value}, safe=":/")
        place = f"{self._scheme}://" + quote(f"{self._bucket}/{self._prefix}".rstrip("/"))
        return f"{place}?{query}" if query else place

    async def get(self, key: str, *, max_bytes: int | None = None) -> StoredObject:
        """Return a whole object, of at most ``max_bytes``; the body of a longer one is not read."""

        async def request(api: Any, inner: Any) -> StoredObject:
            found = await api.get_async(inner, self._full(key))
            meta = found.meta
            if max_bytes is not None and meta["size"] > max_bytes:
                del found  # which ends the answer; the error would keep it
            check_length(key, meta["size"], max_bytes)
            return StoredObject(bytes(await found.bytes_async()), self._etag(meta))

        return await self._ask(key, request)

    async def get_range(self, key: str, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)``, cut at the end of the object."""
        check_range(start, limit)

        async def request(api: Any, inner: Any) -> bytes:
            found = await api.get_range_async(inner, self._full(key), start=start, end=limit)
            return bytes(found)

        try:
            return await self._ask(key, request)
        except PastEndError:
            return b""

    async def head(self, key: str) -> ObjectInfo | None:
        """Return size and ETag; None also if the bucket is missing, which a HEAD does not report."""

        async def request(api: Any, inner: Any) -> ObjectInfo:
            found = await api.head_async(inner, self._full(key))
            return ObjectInfo(key, found["size"], self._etag(found))

        try:
            return await self._ask(key, request)
        except ObjectNotFoundError:
            return None

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[ListedObject]:
        """Yield the objects in the server's order, a request for each thousand of the folder."""
        full = self._prefix + prefix
        least = None if after is None else self._prefix + after
        begin = max(filter(None, (least, full[:-1])), key=str.encode, default=None)
        order = ListingOrder()
        pages = await self._ask("", _listing(full.rpartition("/")[0], begin))
        while (page := await self._ask("", _next_of(pages))) is not None:
            for meta in page:
                path: str = meta["path"]
                order.note(path)
                if not path.startswith(full):
                    if order.is_proven and path.encode() > full.encode():
                        return  # all that begin with the prefix came before
                elif least is None or path.encode() > least.encode():
                    yield ListedObject(path[len(self._prefix) :], meta["size"])

    async def put_if_absent(self, key: str, data: bytes) -> str:
        """Create an object if there is none; one request, never repeated."""
        try:
            return await self._put(key, data, "create")
        except ObjectNotFoundError as error:
            raise LogNotFoundError(
                f"nothing takes objects at {self.url}; check the bucket and endpoint_url",
                location=self.url,
            ) from error

    async def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object that still is the one named; one request, never repeated."""
        quoted = f'"{etag}"' if self._scheme == "az" else etag
        version = {"version" if self._scheme == "gs" else "e_tag": quoted}
        try:
            return await self._put(key, data, version)
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
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") if self._scheme == "az" else None
        return proof_of(self._scheme, self._endpoint_url or account, self._bucket)

    async def aclose(self) -> None:
        """Let go of the connections; idempotent."""
        self._is_closed = True
        self._inner = None

    # -- requests ----------------------------------------------------------------------------

    async def _put(self, key: str, data: bytes, mode: Any) -> str:
        full = self._full(key)

        async def request(api: Any, inner: Any) -> str:
            return self._etag(await api.put_async(inner, full, data, mode=mode))

        return await self._ask(key, request, is_put=True)

    async def _delete(self, key: str, full_key: str) -> None:
        async def request(api: Any, inner: Any) -> None:
            await api.delete_async(inner, full_key)

        with contextlib.suppress(ObjectNotFoundError):
            await self._ask(key, request, is_put=True)

    async def _ask(
        self, key: str, request: Callable[[Any, Any], Awaitable[_T]], *, is_put: bool = False
    ) -> _T:
        """Send one request, once; its faults become our errors."""
        async with self._turns:
            inner = await self._open()
            try:
                return await request(self._api, inner)
            except (self._api.exceptions.BaseError, FileNotFoundError, PermissionError) as error:
                raise self._translated(str(error), key, is_put=is_put) from None

    async def _open(self) -> Any:
        async with self._opening:
            if self._is_closed:
                raise WalClosedError(f"the store is closed: {self.url}")
            _check_not_forked()
            if self._inner is None:
                self._inner = await asyncio.to_thread(self._prepare)
            return self._inner

    def _prepare(self) -> Any:
        with needs_extra("obstore", f"a store at {self._scheme}:// by obstore"):
            import obstore
            import obstore.exceptions
            from obstore import store
        kinds = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}
        self._api = obstore
        config: dict[str, Any] = {
            _ENDPOINT[self._scheme]: self._endpoint_url,
            "region": self._region,
        }
        if self._scheme == "s3":
            config |= {"conditional_put": "etag", "disable_bulk_delete": True}
        endpoint = self._endpoint_url or ""
        try:
            return kinds[self._scheme](
                self._bucket,
                config={name: value for name, value in config.items() if value},
                client_options={
                    "allow_http": endpoint.startswith("http:"),
                    "connect_timeout": timedelta(seconds=self._connect_timeout_seconds),
                    "timeout": timedelta(seconds=self._request_timeout_seconds),
                },
                # We decide what is repeated: not a conditional put that may have happened.
                retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
            )
        except (obstore.exceptions.BaseError, ValueError):
            raise InvalidSettingsError(
                f"the client refuses {self.url}; check its name, endpoint_url and region, and what the "
                f"environment says: {_CREDENTIALS[self._scheme]}"
            ) from None

    def _translated(self, said: str, key: str, *, is_put: bool) -> WalError:
        """Return our error for what obstore says of a request."""
        if is_about_credentials(said, self._bucket):
            self._inner = None  # the environment may name some by the next call
            return StorageUnavailableError(
                f"no usable credentials for {self.url}; set {_CREDENTIALS[self._scheme]}, or give this "
                "machine a role",
                retriable=False,
            )
        return translated(said, url=self.url, key=key, is_put=is_put)

    def _full(self, key: str) -> str:
        if self._scheme == "az" and "\\" in key:
            raise InvalidSettingsError(f"Azure takes a backslash for a slash: {key[:80]!r}")
        return self._prefix + check_key(key)

    def _etag(self, meta: Any) -> str:
        etag = str(meta["version" if self._scheme == "gs" else "e_tag"] or "").strip('"')
        if not etag:
            raise UnsupportedStoreError(f"{self.url} gives its objects no ETag; use another store")
        return etag


_used_by: int | None = None
"""The process whose threads of Rust do the work."""


def _check_not_forked() -> None:
    """Raise in a child of a process that used obstore: it has no threads, and would wait for ever."""
    global _used_by  # noqa: PLW0603 - so is the runtime of obstore
    if _used_by is None:
        _used_by = os.getpid()
    if _used_by != os.getpid():
        raise StorageUnavailableError(
            "obstore was used before this process was forked, and does not work here: start processes with "
            "'spawn', or use client=aioboto3",
            retriable=False,
        )


def _listing(folder: str, begin: str | None) -> Callable[[Any, Any], Awaitable[Any]]:
    async def request(api: Any, inner: Any) -> Any:
        return api.list(inner, folder or None, offset=begin, chunk_size=1000)

    return request


def _next_of(pages: Any) -> Callable[[Any, Any], Awaitable[Any]]:
    """Return the request for the next page, which is None at the end."""

    async def request(_api: Any, _inner: Any) -> Any:
        return await anext(pages, None)

    return request
