"""EtcdKeyValues: the key-value store of an etcd cluster, over the JSON gateway of its nodes."""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Final, Self, TypeVar

from walstore.core.ports import Clock
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.extras import needs_extra
from walstore.core.runtime.resource import Opening
from walstore.core.runtime.time_limit import within
from walstore.core.validation.arguments import as_seconds, as_text
from walstore.errors import (
    InvalidSettingsError,
    LimitExceededError,
    OutcomeUnknownError,
    WalError,
)
from walstore.topology import etcd_messages as messages
from walstore.topology.etcd_address import (
    EtcdAddress,
    check_endpoints,
    parse_etcd,
)
from walstore.topology.etcd_gateway import EtcdGateway
from walstore.topology.etcd_messages import (
    Body,
    EtcdEndpointError,
    EtcdRefusalError,
)
from walstore.topology.etcd_watch import EtcdWatch
from walstore.topology.key_values import (
    Events,
    KeySnapshot,
    KeyValue,
    LeaseLostError,
    Swap,
    check_after,
    check_key,
    check_lease,
    check_prefix,
    check_swap,
    check_ttl,
)

__all__ = ["EtcdKeyValues", "parse_etcd"]

_T = TypeVar("_T")
_MOST_CHANGES: Final = 32
"""So many changes of a key are looked at to find out whether a swap was one of them."""


class EtcdKeyValues:
    """A :class:`walstore.topology.key_values.KeyValues` in etcd, 3.4 or newer. Made by :meth:`open`.

    Reads, grants, renewals and revocations are tried at one node after the other, each for
    ``request_seconds``, until that has passed once for every node. A swap is sent again only if the one
    before was certainly not executed. If it was sent and no answer came, the key is read, with its last
    changes, for as long again; often that shows what happened. If not, OutcomeUnknownError: a
    node that stood still, or a network, may still deliver it.

    A watch leaves a node that is lost at once, and one that says nothing and does not answer reads after
    twice ``request_seconds``.
    """

    @classmethod
    def open(
        cls,
        endpoints: Sequence[str] | str,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        request_seconds: float = 2.0,
        clock: Clock | None = None,
    ) -> Opening[EtcdKeyValues]:
        """Return a client of a cluster; the first call connects.

        ``endpoints`` is a text such as ``etcd://host:2379,host2:2379`` (see :func:`parse_etcd`), or a
        sequence such as ``["http://host:2379"]``. ``user`` and ``password`` replace those in the text.
        ``tls`` says whom to trust, for https; by default what the system trusts. ``request_seconds``, more
        than 0 and at most 60, is how long a node may take to answer.

        TypeError or InvalidSettingsError for an argument, MissingExtraError if aiohttp is not installed.
        """
        address = _address(endpoints, user, password)
        if tls is not None and not address.is_encrypted:
            raise InvalidSettingsError("tls= is for endpoints of https://, or etcds://")
        seconds = as_seconds(request_seconds, "request_seconds")
        if not 0 < seconds <= 60:
            raise InvalidSettingsError(
                f"request_seconds must be above 0 and at most 60, not {seconds}"
            )

        async def open_it() -> EtcdKeyValues:
            # Importing aiohttp reads files.
            await asyncio.get_running_loop().run_in_executor(None, _import)
            return cls(_gateway(address, tls, seconds, clock or SystemClock()))

        return Opening(open_it)

    def __init__(self, gateway: EtcdGateway) -> None:
        """Not for callers; see :meth:`open`."""
        self._gateway = gateway

    @property
    def endpoints(self) -> Sequence[str]:
        """Where the nodes are, without credentials."""
        return self._gateway.endpoints

    def __repr__(self) -> str:
        return f"<EtcdKeyValues at {', '.join(self.endpoints)}>"

    async def get(self, key: str) -> KeyValue | None:
        """Return what is there now."""
        body = messages.range_body(check_key(key))
        found, _ = await self._ask("/v3/kv/range", body, messages.found_of)
        return found

    async def list(self, prefix: str) -> KeySnapshot:
        """Return the keys with a prefix; LimitExceededError if they are more than 16 MiB as JSON."""
        body = messages.prefix_body(check_prefix(prefix))
        return await self._ask("/v3/kv/range", body, messages.snapshot_of)

    async def swap(self, key: str, value: bytes | None, *, expected: int, lease: int = 0) -> Swap:
        """Write a key if it has the expected revision."""
        key, value = check_swap(key, value, expected, lease)
        body = messages.swap_body(key, value, expected, lease)
        decode = partial(messages.swap_of, key, value, lease)
        try:
            return await self._gateway.ask("/v3/kv/txn", body, decode, repeat=False)
        except EtcdRefusalError as refusal:
            raise refusal.as_error(lease) from None
        except (EtcdEndpointError, LimitExceededError) as error:
            lost = error
        why = f"the swap of {key!r} may have happened or may still happen: {lost}"
        try:
            seconds, finding = self._gateway.patience_seconds, self._find_out(key, value, expected)
            swap = await within(seconds, finding, sleep=self._gateway.sleep)
        except (WalError, EtcdRefusalError, TimeoutError) as error:
            what = str(error) or "no answer in time"
            raise OutcomeUnknownError(f"{why}; and it cannot be read: {what}") from lost
        if swap is None:
            raise OutcomeUnknownError(why) from lost
        return swap

    async def grant(self, ttl_seconds: int) -> int:
        """Make a lease."""
        body = {"TTL": str(check_ttl(ttl_seconds))}
        return await self._ask("/v3/lease/grant", body, messages.lease_of)

    async def keep_alive(self, lease: int) -> float:
        """Give a lease its whole time again."""
        body = {"ID": str(check_lease(lease))}
        seconds = await self._ask("/v3/lease/keepalive", body, messages.seconds_of, lease)
        if not seconds:
            raise LeaseLostError(f"there is no lease {lease}: it ended", lease=lease)
        return seconds

    async def revoke(self, lease: int) -> None:
        """End a lease."""
        body = {"ID": str(check_lease(lease))}
        try:
            await self._ask("/v3/lease/revoke", body, messages.revision_of, lease)
        except LeaseLostError:
            return

    def watch(self, prefix: str, *, after: int) -> AsyncGenerator[Events, None]:
        """Yield the changes of keys with a prefix."""
        return EtcdWatch(self._gateway, check_prefix(prefix), check_after(after)).run()

    async def aclose(self) -> None:
        """End all requests and connections."""
        await self._gateway.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _ask(self, path: str, body: Body, decode: Callable[[Body], _T], lease: int = 0) -> _T:
        """Return the answer to a request that may be repeated."""
        try:
            return await self._gateway.ask(path, body, decode)
        except EtcdRefusalError as refusal:
            raise refusal.as_error(lease) from None

    async def _find_out(self, key: str, value: bytes | None, expected: int) -> Swap | None:
        """Return what became of a swap that got no answer; None if that is open.

        It was executed if its value is there, or was. It was not, and never will be, if another change was
        the first one after the revision that it expected. The revision of a key that is not there says
        nothing: it may be written and deleted again.
        """
        body = messages.range_body(key)
        found, revision = await self._gateway.ask("/v3/kv/range", body, messages.found_of)
        change = found
        for _ in range(_MOST_CHANGES):
            if change is None or change.revision <= expected:
                break
            if change.value == value:
                return Swap(happened=True, found=change, revision=revision)
            body = messages.range_body(key, revision=change.revision - 1)
            change, _ = await self._gateway.ask("/v3/kv/range", body, messages.found_of)
        if change is None or change.revision > expected:
            return None
        if change is found and change.revision == expected:
            return None
        return Swap(happened=False, found=found, revision=revision)


def _address(endpoints: Sequence[str] | str, user: str | None, password: str | None) -> EtcdAddress:
    """Return the checked address of a cluster, with the credentials that count."""
    address = check_endpoints(endpoints)
    if (user is None) != (password is None):
        raise InvalidSettingsError("etcd needs both user= and password=, or none of them")
    if user is None or password is None:
        return address
    user, password = as_text(user, "user"), as_text(password, "password")
    if not user or not password:
        raise InvalidSettingsError("user= and password= are never empty")
    return replace(address, user=user, password=password)


def _gateway(
    address: EtcdAddress, tls: ssl.SSLContext | None, request_seconds: float, clock: Clock
) -> EtcdGateway:
    """Return the gateway over a session of aiohttp, which only this module knows."""
    import aiohttp

    async def mark(_session: object, context: SimpleNamespace, _params: object) -> None:
        context.trace_request_ctx.is_sent = True

    trace = aiohttp.TraceConfig()
    # Called before the first byte is written.
    trace.on_request_headers_sent.append(mark)
    # Watches hold connections, so that any limit is one of watches.
    connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        trace_configs=[trace],
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity", "Content-Type": "application/json"},
    )
    return EtcdGateway(
        session,
        address,
        faults=(aiohttp.ClientError, OSError, TimeoutError),
        request_seconds=request_seconds,
        clock=clock,
    )


def _import() -> None:
    """Import what asks over HTTP; MissingExtraError. Blocking."""
    with needs_extra("serve", "EtcdKeyValues"):
        importlib.import_module("aiohttp")
