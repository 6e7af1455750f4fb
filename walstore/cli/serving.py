"""What walstore serve runs: a log, a store, copies, or a machine of a cluster, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from walstore import Replication, Wal, WalStore
from walstore.cli.cluster import open_keys
from walstore.cli.configuration import Configuration
from walstore.cli.location import open_collection
from walstore.cli.notify import notify
from walstore.cli.reloading import reloading
from walstore.cli.report import Report
from walstore.cli.running import stop_on_signal
from walstore.cluster.member import ClusterMember
from walstore.cluster.replication.node import ReplicaNode
from walstore.errors import FencedError, StorageUnavailableError
from walstore.http import HttpServer
from walstore.http.http_server import import_server
from walstore.http.member_logs import MemberLogs
from walstore.http.metrics_server import serve_metrics
from walstore.metrics import PrometheusMetrics
from walstore.net.wire.address import is_loopback, parse_address, parse_listen
from walstore.serve import AccessTokens, Server
from walstore.serve.listening import Listening
from walstore.serve.server_certificate import ServerCertificate
from walstore.store.log_catalog import LogCatalog, catalog_of

logger = logging.getLogger("walstore.serve")


class Serving(NamedTuple):
    """What all ways to serve have in common."""

    directory: Path
    places: dict[str, Any]
    """Arguments of :meth:`walstore.serve.Server.open`."""
    web: dict[str, Any] | None
    """Arguments of :meth:`walstore.http.HttpServer.open`; None for no server over HTTP."""
    metrics: dict[str, Any] | None
    """Arguments of :func:`serve_metrics`; None where figures have no place of their own."""
    collections: Sequence[str]
    """URLs of the collections that the page shows."""
    chosen: Configuration
    as_json: bool
    tokens: AccessTokens | None = None
    """Those that were read from a file, which SIGHUP reads again."""
    certificate: ServerCertificate | None = None

    async def prepare(self, stack: AsyncExitStack) -> Serving:
        """Open all that needs no log, so that what cannot be served makes none; return what to serve.

        In a directory that is there the log comes before the sockets: if it is locked, its owner is named.
        """
        await stack.enter_async_context(reloading(self.tokens, self.certificate))
        web = self.web
        if self.has_figures:
            await asyncio.to_thread(import_server)
        if web is not None:
            web = {**web, "collections": await _open_collections(stack, self.collections)}
        prepared = self._replace(
            places={**self.places, "listening": Listening()},
            web=web and {**web, "listening": Listening()},
            metrics=self.metrics and {**self.metrics, "listening": Listening()},
        )
        if not await asyncio.to_thread(self.directory.exists):
            await _listen_first(stack, prepared)
        return prepared

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
        if metrics is not None:
            metrics.watch(server, self.directory.name)
        if self.metrics is not None:
            catalog = _catalog(logs, served.get("cluster"))
            options = {"registry": registry, "is_stopping": lambda: server.is_stopping}
            opened = serve_metrics(catalog, **options, **self.metrics)
            addresses.append(f"{await stack.enter_async_context(opened)}/metrics")
        if self.web is None:
            return addresses, ""
        options = {"registry": registry, "beside": server}
        web = await stack.enter_async_context(
            HttpServer.open(logs, **options, **served, **self.web)
        )
        # At the same time: the requests in progress of both have --drain-seconds, not one after the other.
        stack.push_async_callback(_stop, web, server)
        if metrics is not None:
            metrics.watch(web, self.directory.name)
        return [*addresses, *web.addresses], web.addresses[0]

    @property
    def has_figures(self) -> bool:
        """Whether figures are served anywhere."""
        return self.web is not None or self.metrics is not None

    def print(self, what: str, addresses: Sequence[str], **more: Any) -> None:
        """Say where it can be reached, now that it can; also to systemd."""
        notify("READY=1")
        logger.info("%s %s: listening at %s", what, self.directory, ", ".join(addresses))
        done = {what: str(self.directory), **more, "addresses": list(addresses)}
        fields = [(what, str(self.directory)), *(("at", address) for address in addresses)]
        Report(done, fields).print(as_json=self.as_json)


async def serve_logs(
    serving: Serving,
    tier: str | None,
    *,
    replication: Replication | None,
    is_store: bool,
    take_over: bool,
) -> None:
    """Serve a log, or with ``is_store`` a store, until a signal, or until the log has closed itself."""
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        serving = await serving.prepare(stack)
        ends: list[Callable[[], Coroutine[Any, Any, object]]] = [stop.wait]
        registry, metrics = (
            await asyncio.to_thread(_registry) if serving.has_figures else (None, None)
        )
        chosen = serving.chosen
        tiers = partial(_tier, metrics=metrics, settings=chosen, take_over=take_over)
        options: dict[str, Any] = {"settings": chosen.log, "metrics": metrics}
        if tier is not None and not (chosen.log.retention_bytes or chosen.log.retention_seconds):
            logger.warning(
                "records are shipped to %s and stay on this disk, too: without log.retention_bytes or "
                "log.retention_seconds it fills",
                tier,
            )
        if is_store:
            make = None if tier is None else lambda name: tiers(f"{tier}/{name}")
            logs: Wal | WalStore = await stack.enter_async_context(
                WalStore.open(serving.directory, store_settings=chosen.store, tier=make, **options)
            )
        else:
            shipping = None if tier is None else tiers(tier)
            logs = wal = await stack.enter_async_context(
                Wal.open(serving.directory, tier=shipping, replication=replication, **options)
            )
            ends.append(wal.wait_closing)  # another program shall serve it then
        addresses, _ = await serving.open(stack, metrics, registry, logs)
        serving.print("serving", addresses, store=is_store)
        await _first_of(*(end() for end in ends))
        _say_stopping()


async def serve_copies(serving: Serving) -> None:
    """Serve copies of other machines' logs until a signal."""
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        serving = await serving.prepare(stack)
        node = await stack.enter_async_context(ReplicaNode.open(serving.directory))
        registry, metrics = (
            await asyncio.to_thread(_registry) if serving.has_figures else (None, None)
        )
        addresses, _ = await serving.open(stack, metrics, registry, None, replicas=node)
        serving.print("copies", addresses)
        await stop.wait()
        _say_stopping()


async def serve_cluster(
    serving: Serving, cluster: str, advertise: str | None, options: dict[str, Any]
) -> None:
    """Be a machine of a cluster until a signal, or until another program has its address: FencedError."""
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        serving = await serving.prepare(stack)
        # On the event loop, when the first log needs it, it would take as long as a short lease.
        asyncio.get_running_loop().run_in_executor(None, _import_uploader)
        registry, metrics = (
            await asyncio.to_thread(_registry) if serving.has_figures else (None, None)
        )
        keys = await stack.enter_async_context(open_keys(cluster))
        opened = ClusterMember.open(
            serving.directory,
            keys,
            metrics=metrics,
            settings=serving.chosen.log,
            tier=lambda _, url: _tier(url, metrics, serving.chosen, take_over=False),
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
        _say_stopping()
        await member.leave()
        if member.is_replaced:
            raise FencedError(member.replaced_by)


def _say_stopping() -> None:
    notify("STOPPING=1")
    logger.info("stopping: requests in progress end, then the logs are closed")


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
    addresses: Sequence[str] | None, token: str | None, tls: ssl.SSLContext | None
) -> Replication | None:
    """Return how a log is replicated to nodes that ask for the same token; None without nodes."""
    if not addresses:
        return None
    trust = None if tls is None else ssl.create_default_context()
    return Replication(nodes=addresses, token=token, tls=trust)


async def _listen_first(stack: AsyncExitStack, serving: Serving) -> None:
    """Listen before a log is made, but not at a socket whose directory is made with the log."""
    others = [one for one in (serving.web, serving.metrics) if one is not None]
    unix, tcp, listening = (serving.places[name] for name in ("unix", "tcp", "listening"))
    if unix is not None and await asyncio.to_thread(_is_made_with, serving.directory, unix):
        unix = None
    try:
        stack.push_async_callback(listening.aclose)
        await listening.listen(unix, tcp and parse_listen(tcp))
        for other in others:
            stack.push_async_callback(other["listening"].aclose)
            await other["listening"].listen(None, parse_listen(other["listen"]))
    except StorageUnavailableError:
        if not await asyncio.to_thread(serving.directory.exists):  # else the log's owner is named
            raise


def _is_made_with(directory: Path, socket: str) -> bool:
    """Return whether the directory of a socket is missing, and is made with another one. Blocking."""
    parent = Path(socket).absolute().parent
    return not parent.exists() and directory.absolute().is_relative_to(parent)


def _catalog(logs: Wal | WalStore | None, cluster: ClusterMember | None) -> LogCatalog | None:
    if cluster is not None:
        return MemberLogs(cluster)
    return None if logs is None else catalog_of(logs)


async def _stop(web: HttpServer, server: Server) -> None:
    await asyncio.gather(web.aclose(), server.aclose())


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


def _tier(
    url: str, metrics: PrometheusMetrics | None, settings: Configuration, *, take_over: bool
) -> Any:
    from uploader import CloudTier
    from uploader.stores import MeteredStore, open_store

    if metrics is None:
        return CloudTier(url, settings=settings.upload, take_over=take_over)
    store = MeteredStore(open_store(url))
    metrics.watch(store, url.partition("?")[0].rstrip("/").rpartition("/")[2])
    return CloudTier(url, store=store, settings=settings.upload, take_over=take_over)


async def _stored(url: str) -> Any:
    from uploader import CloudLog

    return await CloudLog.open(url)


def _import_uploader() -> None:
    """Blocking. Without the extra ``cloud`` the first log with a tier says so."""
    with contextlib.suppress(ImportError):
        import_module("uploader")


def _registry() -> tuple[Any, Any]:
    """Return what ``/metrics`` shows and what fills it; nothing without the extra ``metrics``. Blocking."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return None, None
    registry = CollectorRegistry()
    return registry, PrometheusMetrics(registry)
