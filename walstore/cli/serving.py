"""What walstore serve runs: a log, a store, copies, or a machine of a cluster, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from walstore import Replication, Wal, WalStore
from walstore.cli.cluster import open_keys
from walstore.cli.location import open_collection
from walstore.cli.output import print_result
from walstore.cli.running import stop_on_signal
from walstore.cluster.member import ClusterMember
from walstore.errors import FencedError
from walstore.http import HttpServer
from walstore.metrics import PrometheusMetrics
from walstore.replication.node import ReplicaNode
from walstore.serve import Server
from walstore.wire.address import is_loopback, parse_address


class Serving(NamedTuple):
    """What all ways to serve have in common."""

    directory: Path
    places: dict[str, Any]
    """Arguments of :meth:`walstore.serve.Server.open`."""
    web: dict[str, Any] | None
    """Arguments of :meth:`walstore.http.HttpServer.open`; None for no server over HTTP."""
    collections: Sequence[str]
    """URLs of the collections that the page shows."""
    as_json: bool

    async def open(
        self,
        stack: AsyncExitStack,
        metrics: PrometheusMetrics | None,
        registry: Any,
        logs: Wal | WalStore | None,
        **served: Any,
    ) -> tuple[list[str], str]:
        """Serve; return all addresses, and the one of HTTP or an empty text."""
        server = await stack.enter_async_context(Server.open(logs, **served, **self.places))
        addresses = [str(address) for address in server.addresses]
        if self.web is None:
            return addresses, ""
        shown = await _open_collections(stack, self.collections)
        options = {"registry": registry, "collections": shown, "beside": server}
        opened = HttpServer.open(logs, **options, **served, **self.web)
        web = await stack.enter_async_context(opened)
        # At the same time: the requests in progress of both have --drain-seconds, not one after the other.
        stack.push_async_callback(_stop, web, server)
        if metrics is not None:
            metrics.watch(server, self.directory.name)
            metrics.watch(web, self.directory.name)
        return [*addresses, *web.addresses], web.addresses[0]

    def print(self, what: str, addresses: Sequence[str], **more: Any) -> None:
        """Say where it can be reached, now that it can."""
        done = {what: str(self.directory), **more, "addresses": list(addresses)}
        fields = [(what, str(self.directory)), *(("at", address) for address in addresses)]
        print_result(done, fields, as_json=self.as_json)


async def serve_logs(
    serving: Serving,
    tier: str | None,
    *,
    replication: Replication | None,
    is_store: bool,
    take_over: bool,
) -> None:
    """Serve a log, or with ``is_store`` a store, until a signal."""
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        logs: Wal | WalStore
        registry, metrics = _registry() if serving.web is not None else (None, None)
        if is_store:
            make = (
                None
                if tier is None
                else lambda name: _tier(f"{tier}/{name}", metrics, take_over=take_over)
            )
            logs = await stack.enter_async_context(
                WalStore.open(serving.directory, tier=make, metrics=metrics)
            )
        else:
            shipping = None if tier is None else _tier(tier, metrics, take_over=take_over)
            logs = await stack.enter_async_context(
                Wal.open(serving.directory, tier=shipping, metrics=metrics, replication=replication)
            )
        addresses, _ = await serving.open(stack, metrics, registry, logs)
        serving.print("serving", addresses, store=is_store)
        await _until_stopped(stop, logs)


async def serve_copies(serving: Serving) -> None:
    """Serve copies of other machines' logs until a signal."""
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        node = await stack.enter_async_context(ReplicaNode.open(serving.directory))
        addresses, _ = await serving.open(stack, None, None, None, replicas=node)
        serving.print("copies", addresses)
        await stop.wait()


async def serve_cluster(
    serving: Serving, cluster: str, advertise: str | None, options: dict[str, Any]
) -> None:
    """Be a machine of a cluster until a signal, or until another program has its address: FencedError."""
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        # On the event loop, when the first log needs it, it would take as long as a short lease.
        asyncio.get_running_loop().run_in_executor(None, _import_uploader)
        registry, metrics = _registry() if serving.web is not None else (None, None)
        keys = await stack.enter_async_context(open_keys(cluster))
        opened = ClusterMember.open(
            serving.directory,
            keys,
            metrics=metrics,
            tier=lambda _, url: _tier(url, metrics, take_over=False),
            stored=_stored,
            **options,
        )
        member = await stack.enter_async_context(opened)
        addresses, web = await serving.open(stack, metrics, registry, None, cluster=member)
        place = advertise
        if place is None:
            place = [one for one in addresses if not one.startswith("http")][-1]
        await _first_of(stop.wait(), member.join(place, web=advertised_web(web, place)))
        if member.is_joined:
            serving.print("member", addresses, advertised=place)
            await _first_of(stop.wait(), member.wait_closing())
        await member.leave()
        if member.is_replaced:
            raise FencedError(member.replaced_by)


def advertised_web(web: str, place: str) -> str:
    """Return where others reach an HTTP server of a machine that they reach at a place; empty if nowhere."""
    found = urlsplit(web)
    if not web or is_loopback(found.hostname or ""):
        return web if parse_address(place).is_local else ""
    machine = parse_address(place)
    if machine.is_local:
        return ""
    host = f"[{machine.host}]" if ":" in machine.host else machine.host
    return f"{found.scheme}://{host}:{found.port}"


def replication_to(
    addresses: Sequence[str], *, token: str | None, tls: ssl.SSLContext | None
) -> Replication:
    """Return how a log is replicated to nodes that ask for the same token."""
    trust = None if tls is None else ssl.create_default_context()
    return Replication(nodes=addresses, token=token, tls=trust)


async def _stop(web: HttpServer, server: Server) -> None:
    await asyncio.gather(web.aclose(), server.aclose())


async def _until_stopped(stop: asyncio.Event, logs: Wal | WalStore) -> None:
    """Return on a signal, or when the log has closed itself: another program shall serve it then."""
    if isinstance(logs, Wal):
        await _first_of(stop.wait(), logs.wait_closing())
    else:
        await stop.wait()


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when the first of some waits does; the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wait) for wait in waits]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


async def _open_collections(stack: AsyncExitStack, urls: Sequence[str]) -> dict[str, Any]:
    """Return the collections by the last part of their URLs; the whole URL where that is taken."""
    shown: dict[str, Any] = {}
    for url in urls:
        last = url.partition("?")[0].rstrip("/").rpartition("/")[2]
        shown[url if last in shown else last] = await stack.enter_async_context(
            open_collection(url)
        )
    return shown


def _tier(url: str, metrics: PrometheusMetrics | None, *, take_over: bool) -> Any:
    from uploader import CloudTier
    from uploader.stores import MeteredStore, open_store

    if metrics is None:
        return CloudTier(url, take_over=take_over)
    store = MeteredStore(open_store(url))
    metrics.watch(store, url.partition("?")[0].rstrip("/").rpartition("/")[2])
    return CloudTier(url, store=store, take_over=take_over)


async def _stored(url: str) -> Any:
    from uploader import CloudLog

    return await CloudLog.open(url)


def _import_uploader() -> None:
    """Blocking. Without the extra ``cloud`` the first log with a tier says so."""
    with contextlib.suppress(ImportError):
        import_module("uploader")


def _registry() -> tuple[Any, Any]:
    """Return what ``/metrics`` shows and what fills it; nothing without the extra ``metrics``."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return None, None
    registry = CollectorRegistry()
    return registry, PrometheusMetrics(registry)
