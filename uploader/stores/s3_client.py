"""The S3 client of this project: opened off the event loop, and sends each request once.

Owns all knowledge of how aioboto3, aiobotocore and aiohttp fit together, and of their errors. Imported at the
first request of an S3 store, on a thread, because the import alone takes half a second.

:func:`translate` decides after a put whether it may have happened. Only an answer that says so
(``answers.py``), or a connection that was never made, means "not written". No message repeats what a
credential provider or the server wrote about credentials.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session
from botocore import exceptions as boto
from botocore.httpsession import create_urllib3_context, get_cert_path
from botocore.parsers import ResponseParserError

from uploader.stores.answers import FORBIDDEN, PAST_END, refusal
from uploader.stores.port import check_length
from walstore.errors import InvalidSettingsError, Outcome, StorageUnavailableError, WalError

FAULTS = (
    boto.BotoCoreError,
    boto.ClientError,
    ResponseParserError,
    aiohttp.ClientError,
    OSError,
    ValueError,
)
"""What a call of the client may raise; OSError includes TimeoutError."""

_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.ProfileNotFound,
    boto.ConfigParseError,
    boto.SSOError,
)
_BAD_SETTINGS = (
    boto.ParamValidationError,
    boto.ValidationError,
    boto.BaseEndpointResolverError,
    boto.InvalidS3AddressingStyleError,
    boto.UnsupportedS3ConfigurationError,
    ValueError,
)


def translate(error: BaseException, *, url: str, key: str, is_put: bool) -> WalError:
    """Return our error for a fault of one request; the caller chains it.

    Args:
        error: One of :data:`FAULTS`.
        url: The store, for the message.
        key: The object asked for, relative to the store; "" for listings.
        is_put: Whether the request would have changed something.
    """
    if isinstance(error, boto.ClientError):
        return refusal(_codes(error.response), url=url, key=key, is_put=is_put)
    if isinstance(error, _NO_CREDENTIALS):
        return StorageUnavailableError(
            f"no usable credentials for {url} ({type(error).__name__}); set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give this machine a role",
            retriable=False,
        )
    if isinstance(error, _BAD_SETTINGS):
        return InvalidSettingsError(
            f"the client refuses {url}: {error}; check the bucket's name, region and endpoint_url"
        )
    return _translate_connection(error, url=url, is_put=is_put)


def is_secret(error: BaseException) -> bool:
    """Return whether the text of a fault may reveal credentials."""
    if isinstance(error, boto.ClientError):
        return not FORBIDDEN.isdisjoint(_codes(error.response))
    return isinstance(error, _NO_CREDENTIALS)


def is_past_end(error: BaseException) -> bool:
    """Return whether the requested range begins at or after the end of the object."""
    return isinstance(error, boto.ClientError) and not PAST_END.isdisjoint(_codes(error.response))


def _codes(response: Any) -> set[str]:
    """Return the code in the body and the HTTP status, which is all a HEAD has."""
    code = str(response.get("Error", {}).get("Code", ""))
    return {code, str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))}


def _translate_connection(error: BaseException, *, url: str, is_put: bool) -> WalError:
    # aiobotocore wraps a reset in mid-request in the same class as a refused connection.
    inner = getattr(error, "kwargs", {}).get("error", error)
    if isinstance(inner, ssl.SSLCertVerificationError | aiohttp.ClientConnectorCertificateError):
        return StorageUnavailableError(
            f"the certificate of {url} cannot be verified; set AWS_CA_BUNDLE", retriable=False
        )
    was_connected = not isinstance(
        inner, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError
    )
    outcome: Outcome = "unknown" if is_put and was_connected else "not_written"
    what = "no whole answer came from" if was_connected else "no connection to"
    return StorageUnavailableError(f"{what} {url} ({type(inner).__name__})", outcome=outcome)


_SERVICE = "s3"
_MOST_CONNECTIONS: Final = 256
"""Connections that all stores on one server may have together; each has a bound of its own."""


class SendOnceSession(AIOHTTPSession):  # type: ignore[misc]  # untyped base
    """HTTP that never sends a request a second time by itself.

    aiohttp repeats a PUT when a kept connection turns out to be closed. The first one may have happened
    by then, so the answer to the second (a 412, or no connection) would be about the wrong
    request. ``test_s3_faults.py`` shows that each put is sent once.
    """

    _trust: ssl.SSLContext | None = None

    async def _get_session(self, proxy_url: str | None) -> Any:
        if self._verify and proxy_url is None and proxy_url not in self._sessions:
            self._trust = await asyncio.to_thread(_load_trust, get_cert_path(self._verify))
        session = await super()._get_session(proxy_url)
        session._retry_connection = False  # noqa: SLF001 - there is no public switch
        return session

    def _create_connector(self, proxy_url: str | None) -> Any:
        """Use the certificates that were read on a thread; the parent reads them on the event loop."""
        if self._trust is None or proxy_url is not None:
            return super()._create_connector(proxy_url)
        return aiohttp.TCPConnector(
            limit=self._max_pool_connections, ssl=self._trust, **self._connector_args
        )


@cache
def _load_trust(path: str) -> ssl.SSLContext:
    context: ssl.SSLContext = create_urllib3_context()
    context.load_verify_locations(path)
    return context


@dataclass(frozen=True, slots=True)
class _Place:
    """Settings that stores must have in common to share a client."""

    endpoint_url: str | None
    region: str | None
    connect_timeout_seconds: float
    read_timeout_seconds: float

    def options(self) -> dict[str, Any]:
        """Return the options of the client."""
        return {
            "region_name": self.region,
            "endpoint_url": self.endpoint_url,
            "config": AioConfig(
                http_session_cls=SendOnceSession,
                connect_timeout=self.connect_timeout_seconds,
                read_timeout=self.read_timeout_seconds,
                max_pool_connections=_MOST_CONNECTIONS,
                # We decide what is repeated: not a conditional put that may have happened.
                retries={"total_max_attempts": 1, "mode": "standard"},
                # Servers other than Amazon's refuse the checksums that are sent by default.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={
                    "addressing_style": "path" if self.endpoint_url else "auto",
                    "payload_signing_enabled": False,
                },
            ),
        }


class _SharedClient:
    """A client of the stores on one server. The first store opens it and the last one closes it."""

    def __init__(self) -> None:
        self.client: Any = None
        self.turns = asyncio.Semaphore(_MOST_CONNECTIONS)
        self.users = 0
        self.changing = asyncio.Lock()
        self.stack = AsyncExitStack()


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[_Place, bytes], _SharedClient]] = (
    WeakKeyDictionary()
)


@asynccontextmanager
async def _join(place: _Place) -> AsyncIterator[_SharedClient]:
    """Share this event loop's client for a server, with the credentials that the environment names now."""
    clients = _shared.setdefault(asyncio.get_running_loop(), {})
    key = place, _environment()
    shared = clients.setdefault(key, _SharedClient())
    shared.users += 1
    try:
        async with shared.changing:
            if shared.client is None:
                shared.client = await _open_client(place, shared.stack)
        yield shared
    finally:
        shared.users -= 1
        if not shared.users:
            # Later stores make a new client.
            if clients.get(key) is shared:
                del clients[key]
            await shared.stack.aclose()


async def _open_client(place: _Place, stack: AsyncExitStack) -> Any:
    session, inner = await asyncio.to_thread(_new_session)
    # Boto reads files for this, and may ask services, so it gets a thread and a loop of its own.
    if await asyncio.to_thread(asyncio.run, inner.get_credentials()) is None:
        raise boto.NoCredentialsError
    client = await stack.enter_async_context(session.client(_SERVICE, **place.options()))
    client.meta.events.register(f"before-sign.{_SERVICE}", _send_at_once)
    return client


def _environment() -> bytes:
    """Return a digest of what boto takes from the environment: other credentials need another client."""
    named = sorted(item for item in os.environ.items() if item[0].startswith(("AWS_", "BOTO")))
    return hashlib.sha256(repr(named).encode()).digest()


class Connection:
    """One store's share of a client that others use too, and the translation of errors."""

    def __init__(
        self,
        url: str,
        *,
        endpoint_url: str | None,
        region: str | None,
        connect_timeout_seconds: float,
        read_timeout_seconds: float,
        request_timeout_seconds: float,
        max_connections: int,
    ) -> None:
        """Note the options; nothing is loaded yet."""
        self._url = url
        self._request_timeout_seconds = request_timeout_seconds
        # As many as there are connections. Without it the wait for one would count as the server's silence,
        # and a put that was never sent would end with an unknown outcome.
        self._turns = asyncio.Semaphore(max_connections)
        self._place = _Place(endpoint_url, region, connect_timeout_seconds, read_timeout_seconds)
        self._shared: _SharedClient | None = None

    async def open(self, stack: AsyncExitStack) -> None:
        """Join the server's client, or make it; ``stack`` will leave it. Asks nothing of the bucket."""
        try:
            self._shared = await stack.enter_async_context(_join(self._place))
        except FAULTS as error:
            raise self._translated(error, "", is_put=False) from _shown(error)

    async def request(
        self, name: str, key: str, *, most_bytes: int | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Send one request, once, and return the answer with its body read.

        Waits for a free connection first, its own and the client's, which no timeout limits. A range that
        begins past the end of the object has an empty body, as for a file. CorruptionError if the body has
        more than ``most_bytes``; None for any length.
        """
        assert self._shared is not None, "open it first"
        async with self._turns, self._shared.turns:
            return await self._send(name, key, most_bytes, **parameters)

    async def _send(
        self, name: str, key: str, most_bytes: int | None, **parameters: Any
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._request_timeout_seconds):
                assert self._shared is not None
                answer: dict[str, Any] = await getattr(self._shared.client, name)(**parameters)
                if "Body" in answer:
                    async with answer["Body"] as body:
                        answer["Body"] = await _content(
                            body, key, answer.get("ContentLength"), most_bytes
                        )
        except FAULTS as error:
            if is_past_end(error):
                return {"Body": b"", "ETag": "-"}
            is_put = name in {"put_object", "delete_object"}
            raise self._translated(error, key, is_put=is_put) from _shown(error)
        return answer

    def _translated(self, error: Exception, key: str, *, is_put: bool) -> WalError:
        return translate(error, url=self._url, key=key, is_put=is_put)


async def _content(body: Any, key: str, told: int | None, most_bytes: int | None) -> bytes:
    """Read a body of at most ``most_bytes``; nothing of it if its header states a greater length."""
    if most_bytes is None or told is not None:
        check_length(key, told or 0, most_bytes)
        whole: bytes = await body.read()
        return whole
    pieces: list[bytes] = []
    size_bytes = 0
    async for piece in body.content.iter_any():
        pieces.append(piece)
        size_bytes += len(piece)
        check_length(key, size_bytes, most_bytes)
    return b"".join(pieces)


def _send_at_once(request: Any, **_: Any) -> None:
    """Drop ``Expect: 100-continue``: it costs each put a round trip, and waits without a time limit."""
    del request.headers["Expect"]


def _shown(error: Exception) -> Exception | None:
    return None if is_secret(error) else error


@cache
def _models() -> Any:
    """Return botocore's loader, shared by all sessions because it caches what it has read and compiled."""
    return get_session().get_component("data_loader")


def _new_session() -> tuple[Any, Any]:
    """Return a session, and its botocore session, that has not looked for credentials yet.

    A throw-away client with made-up keys fills its caches (0.2 s the first time, 12 ms later), so that the
    real one needs less than ten milliseconds on the event loop. Making it awaits nothing, so it needs no
    loop.
    """
    inner = get_session()
    inner.register_component("data_loader", _models())
    session = aioboto3.Session(botocore_session=inner)
    creating = session.client(
        _SERVICE,
        region_name="us-east-1",
        endpoint_url="http://localhost",
        aws_access_key_id="none",
        aws_secret_access_key="none",  # noqa: S106 - not a secret
    ).__aenter__()
    try:
        creating.send(None)
    except StopIteration:
        return session, inner
    creating.close()
    return session, inner
