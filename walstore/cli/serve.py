"""walstore serve: own a log, or a store of logs, for other processes."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from walstore import Replication, Wal, WalStore
from walstore.cli.cluster import open_keys
from walstore.cli.errors import UsageError
from walstore.cli.location import TOKEN_VARIABLE, open_collection, to_directory, to_url
from walstore.cli.options import AsJson, TakeOver
from walstore.cli.output import print_result
from walstore.cli.running import run_async, stop_on_signal
from walstore.cluster.member import ClusterMember
from walstore.errors import FencedError
from walstore.files.locks import STORE_NAME
from walstore.http import HttpServer, HttpSettings
from walstore.metrics import PrometheusMetrics
from walstore.replication.node import ReplicaNode
from walstore.serve import Server, ServeSettings
from walstore.topology.session import LEASE_SECONDS

SERVE_EXAMPLES = """\b
Examples:
  walstore serve data/orders
  walstore serve data/orders --unix /run/orders.sock --tier s3://bucket/orders
  walstore serve data --store --tcp 127.0.0.1:7420
  walstore serve data --store --http 127.0.0.1:7421
  walstore serve copies --replicate --tcp 127.0.0.1:7430
  walstore serve copies --cluster etcd://127.0.0.1:2379 --tcp 127.0.0.1:7430
  walstore serve data/orders --replica tcp://127.0.0.1:7430 --replica tcp://127.0.0.1:7431
  WALSTORE_TOKEN=... walstore serve data/orders --tcp 0.0.0.0:7420 --tls-cert cert.pem --tls-key key.pem
"""

SOCKET_NAME: Final = "serve.sock"


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
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ETCD",
            help="Be a machine of the cluster that shares this etcd; see docs/cluster.md.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="ADDRESS",
            help="With --cluster: where the others reach this machine; else where it listens.",
        ),
    ] = None,
    zone: Annotated[
        str,
        typer.Option(
            "--zone", metavar="NAME", help="With --cluster: what fails together with this machine."
        ),
    ] = "",
    lease_seconds: Annotated[
        int,
        typer.Option(
            "--lease-seconds",
            metavar="N",
            min=1,
            max=3600,
            help="With --cluster: how long the others wait for it once it is silent.",
        ),
    ] = LEASE_SECONDS,
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
    _check_options(
        has_certificate=tls_cert is not None,
        is_complete=(tls_cert is None) is (tls_key is None),
        listens=tcp is not None or http is not None,
        given={
            name: bool(value)
            for name, value in {
                "--cluster": cluster,
                "--replicate": replicate,
                "--replica": replicas,
                "--store": store,
                "--tier": tier,
                "--http": http,
                "--allow-origin": allow_origins,
                "--collection": collections,
                "--take-over": take_over,
                "--advertise": advertise,
                "--zone": zone,
            }.items()
        },
    )
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
    if cluster is not None:
        options = {"zone": zone, "lease_seconds": lease_seconds, "token": shared["token"]}
        options["tls"] = None if shared["tls"] is None else ssl.create_default_context()
        run_async(_serve_cluster(directory, cluster, places, options, advertise, as_json=as_json))
        return
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


_NEEDED: Final = {
    "--allow-origin": "--http HOST:PORT",
    "--collection": "--http HOST:PORT",
    "--take-over": "--tier URL",
    "--advertise": "--cluster ETCD",
    "--zone": "--cluster ETCD",
}
_EXCLUDED: Final = {
    "--cluster": ("--replicate", "--replica", "--store", "--tier", "--http"),
    "--replicate": ("--replica", "--store", "--tier", "--http"),
    "--replica": ("--store",),
}


def _check_options(
    *, has_certificate: bool, is_complete: bool, listens: bool, given: dict[str, bool]
) -> None:
    """Raise UsageError for options that need others, or go without them."""
    if not is_complete:
        raise UsageError("--tls-cert and --tls-key belong together")
    if has_certificate and not listens:
        raise UsageError("--tls-cert and --tls-key need --tcp HOST:PORT or --http HOST:PORT")
    for option, needed in _NEEDED.items():
        if given[option] and not given[needed.partition(" ")[0]]:
            raise UsageError(f"{option} needs {needed}")
    for option, others in _EXCLUDED.items():
        if given[option] and any(given[other] for other in others):
            names = f"{', '.join(others[:-1])} and {others[-1]}"
            raise UsageError(f"{option} goes without {names}")


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
        await _until_stopped(stop, logs)


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


async def _serve_cluster(
    directory: Path,
    cluster: str,
    places: dict[str, Any],
    options: dict[str, Any],
    advertise: str | None,
    *,
    as_json: bool,
) -> None:
    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        keys = await stack.enter_async_context(open_keys(cluster))
        member = await stack.enter_async_context(ClusterMember.open(directory, keys, **options))
        server = await stack.enter_async_context(Server.open(None, cluster=member, **places))
        addresses = [str(address) for address in server.addresses]
        place = addresses[-1] if advertise is None else advertise
        await member.join(place)
        done = {"member": str(directory), "addresses": addresses, "advertised": place}
        fields = [("member", str(directory)), *(("at", address) for address in addresses)]
        print_result(done, fields, as_json=as_json)
        await _first_of(stop.wait(), member.wait_closing())
        await member.leave()
        if member.is_replaced:
            raise FencedError(f"another program serves a cluster at {place}; this one has left it")


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
