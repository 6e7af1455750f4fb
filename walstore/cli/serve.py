"""walstore serve: own a log, or a store of logs, for other processes."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from walstore import Replication, Wal, WalStore
from walstore.cli.errors import UsageError
from walstore.cli.location import open_collection, to_directory, to_url
from walstore.cli.options import AsJson, TakeOver
from walstore.cli.output import print_result
from walstore.cli.running import run_async, stop_on_signal
from walstore.files.locks import STORE_NAME
from walstore.http import HttpServer, HttpSettings
from walstore.metrics import PrometheusMetrics
from walstore.replication.node import ReplicaNode
from walstore.serve import Server, ServeSettings

SERVE_EXAMPLES = """\b
Examples:
  walstore serve data/orders
  walstore serve data/orders --unix /run/orders.sock --tier s3://bucket/orders
  walstore serve data --store --tcp 127.0.0.1:7420
  walstore serve data --store --http 127.0.0.1:7421
  walstore serve copies --replicate --tcp 127.0.0.1:7430
  walstore serve data/orders --replica tcp://127.0.0.1:7430 --replica tcp://127.0.0.1:7431
  WALSTORE_TOKEN=... walstore serve data/orders --tcp 0.0.0.0:7420 --tls-cert cert.pem --tls-key key.pem
"""

SOCKET_NAME: Final = "serve.sock"
TOKEN_VARIABLE: Final = "WALSTORE_TOKEN"  # noqa: S105 - its name


def serve(
    path: Annotated[
        str, typer.Argument(metavar="DIRECTORY", help="A log directory, or with --store of logs.")
    ],
    *,
    unix: Annotated[
        str | None,
        typer.Option(
            "--unix",
            metavar="PATH",
            help=f"The socket; DIRECTORY/{SOCKET_NAME} unless --tcp is given.",
        ),
    ] = None,
    tcp: Annotated[
        str | None,
        typer.Option("--tcp", metavar="HOST:PORT", help="Listen there; loopback unless with TLS."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve a page, Durable Streams, /health and /metrics there; see docs/http.md.",
        ),
    ] = None,
    allow_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="With --http: pages of this origin may use it; repeatable; * for all.",
        ),
    ] = None,
    collections: Annotated[
        list[str] | None,
        typer.Option(
            "--collection",
            metavar="URL",
            help="With --http: show this versioned collection on the page, too; repeatable.",
        ),
    ] = None,
    store: Annotated[
        bool,
        typer.Option("--store", help="DIRECTORY holds many logs, which clients name."),
    ] = False,
    tier: Annotated[
        str | None,
        typer.Option(
            "--tier", metavar="URL", help="Ship the log, or each log of the store, to a store."
        ),
    ] = None,
    take_over: TakeOver = False,
    replicate: Annotated[
        bool,
        typer.Option(
            "--replicate",
            help="DIRECTORY holds copies of other machines' logs, for their primaries.",
        ),
    ] = False,
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            "--replica",
            metavar="ADDRESS",
            help="Be the log's primary, with a copy at this node; repeatable.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            "--drain-seconds",
            metavar="N",
            min=0,
            max=86_400,
            help="How long requests in progress have when the server stops.",
        ),
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Own a log and serve it to other processes, until SIGINT or SIGTERM.

    Creates the log if there is none. Programs use it through walstore.connect(ADDRESS), as they use a log of
    their own; the addresses are written to stdout once they can. A signal stops it: requests in progress are
    finished, the log is closed, and the exit code is 0. Clients wait for the next server at the same address.
    A token that clients must give is taken from the environment, WALSTORE_TOKEN.
    """
    directory = to_directory(path, "serve")
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together")
    if tls_cert is not None and tcp is None and http is None:
        raise UsageError("--tls-cert and --tls-key need --tcp HOST:PORT or --http HOST:PORT")
    if allow_origins and http is None:
        raise UsageError("--allow-origin needs --http HOST:PORT")
    if collections and http is None:
        raise UsageError("--collection needs --http HOST:PORT")
    if take_over and tier is None:
        raise UsageError("--take-over needs --tier URL")
    if replicate and (replicas or store or tier or http):
        raise UsageError("--replicate goes without --replica, --store, --tier and --http")
    if replicas and (store or tier):
        raise UsageError("--replica goes without --store and --tier")
    shared: dict[str, Any] = {
        "tls": _context(tls_cert, tls_key),
        "token": os.environ.get(TOKEN_VARIABLE) or None,
    }
    places: dict[str, Any] = {
        **shared,
        "unix": str(directory / SOCKET_NAME) if unix is None and tcp is None else unix,
        "tcp": tcp,
        "settings": ServeSettings(drain_seconds=drain_seconds),
    }
    web: dict[str, Any] | None = None
    if http is not None:
        web = {
            **shared,
            "listen": http,
            "allow_origins": allow_origins or (),
            "settings": HttpSettings(drain_seconds=drain_seconds),
        }
    if replicate:
        run_async(_serve_copies(directory, places, as_json=as_json))
        return
    is_store = store or (directory / STORE_NAME).exists()
    url = None if tier is None else to_url(tier, "--tier")
    run_async(
        _serve(
            directory,
            places,
            web,
            url,
            [to_url(one, "--collection") for one in collections or ()],
            replication=_replication(replicas, shared) if replicas else None,
            is_store=is_store,
            take_over=take_over,
            as_json=as_json,
        )
    )


async def _serve(
    directory: Path,
    places: dict[str, Any],
    web: dict[str, Any] | None,
    tier: str | None,
    collections: Sequence[str],
    *,
    replication: Replication | None,
    is_store: bool,
    take_over: bool,
    as_json: bool,
) -> None:
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        logs: Wal | WalStore
        registry, metrics = _registry() if web is not None else (None, None)
        if is_store:
            make = (
                None
                if tier is None
                else lambda name: _tier(f"{tier}/{name}", metrics, take_over=take_over)
            )
            logs = await stack.enter_async_context(
                WalStore.open(directory, tier=make, metrics=metrics)
            )
        else:
            shipping = None if tier is None else _tier(tier, metrics, take_over=take_over)
            logs = await stack.enter_async_context(
                Wal.open(directory, tier=shipping, metrics=metrics, replication=replication)
            )
        server = await stack.enter_async_context(Server.open(logs, **places))
        addresses = [str(address) for address in server.addresses]
        if web is not None:
            shown = await _open_collections(stack, collections)
            opened = HttpServer.open(logs, registry=registry, collections=shown, **web)
            served = await stack.enter_async_context(opened)
            addresses += served.addresses
            if metrics is not None:
                metrics.watch(server, directory.name)
                metrics.watch(served, directory.name)
        done = {"serving": str(directory), "store": is_store, "addresses": addresses}
        fields = [("serving", str(directory)), *(("at", address) for address in addresses)]
        print_result(done, fields, as_json=as_json)
        await stop.wait()


async def _serve_copies(directory: Path, places: dict[str, Any], *, as_json: bool) -> None:
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        node = await stack.enter_async_context(ReplicaNode.open(directory))
        server = await stack.enter_async_context(Server.open(None, replicas=node, **places))
        addresses = [str(address) for address in server.addresses]
        done = {"copies": str(directory), "addresses": addresses}
        fields = [("copies", str(directory)), *(("at", address) for address in addresses)]
        print_result(done, fields, as_json=as_json)
        await stop.wait()


def _replication(addresses: Sequence[str], shared: dict[str, Any]) -> Replication:
    token = shared["token"]
    trust = None if shared["tls"] is None else ssl.create_default_context()
    return Replication(nodes=addresses, token=token, tls=trust)


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


def _registry() -> tuple[Any, Any]:
    """Return what ``/metrics`` shows and what fills it; nothing without the extra ``metrics``."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return None, None
    registry = CollectorRegistry()
    return registry, PrometheusMetrics(registry)


def _context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use {certificate} with {key}: {error}") from None
    return context
