"""walstore serve: own a log, or a store of logs, for other processes."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Annotated, Any, Final

from walstore.cli.configuration import Configuration, configure
from walstore.cli.errors import UsageError
from walstore.cli.location import TOKEN_VARIABLE, to_directory, to_url
from walstore.cli.logs import LogFormat, LogLevel, send_logs_to_stderr
from walstore.cli.options import AsJson, TakeOver, argument, option
from walstore.cli.output import print_json, writing
from walstore.cli.running import run_async
from walstore.cli.samples import find_logs, is_log_directory
from walstore.cli.serving import (
    Serving,
    replication_to,
    serve_cluster,
    serve_copies,
    serve_logs,
)
from walstore.cluster.joining import check_host
from walstore.core.files.locks import COPIES_NAME, STORE_NAME
from walstore.core.runtime.memory import collect_rarely, return_large_blocks
from walstore.errors import AccessDeniedError
from walstore.http.access import check_hosts
from walstore.net.wire.access_scope import ADMIN
from walstore.net.wire.address import check_socket_path, is_loopback, parse_address, parse_listen
from walstore.serve import AccessTokens
from walstore.serve.server_certificate import ServerCertificate
from walstore.topology.session import LEASE_SECONDS

SERVE_EXAMPLES = """\
  walstore serve data/orders
  walstore serve data/orders --unix /run/orders.sock --tier s3://bucket/orders
  walstore serve data --store --tcp 127.0.0.1:7420
  walstore serve data --store --http 127.0.0.1:7421
  walstore serve copies --replicate --tcp 127.0.0.1:7430
  walstore serve copies --cluster etcd://127.0.0.1:2379 --tcp 127.0.0.1:7430 --http 127.0.0.1:7421
  walstore serve data/orders --replica tcp://127.0.0.1:7430 --replica tcp://127.0.0.1:7431
  WALSTORE_TOKEN=... walstore serve data/orders --tcp 0.0.0.0:7420 --tls-cert cert.pem --tls-key key.pem
"""

SOCKET_NAME: Final = "serve.sock"


def serve(
    path: Annotated[
        str, argument("DIRECTORY", "A log directory, or with --store a directory of logs.")
    ],
    *,
    unix: Annotated[
        str | None,
        option("--unix PATH", f"The socket; DIRECTORY/{SOCKET_NAME} unless --tcp is given."),
    ] = None,
    tcp: Annotated[
        str | None, option("--tcp HOST:PORT", "Listen there; loopback unless with TLS.")
    ] = None,
    http: Annotated[
        str | None,
        option(
            "--http HOST:PORT",
            "Serve a page, Durable Streams, /health and /metrics there; see docs/http.md.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        option(
            "--metrics HOST:PORT",
            "Serve /metrics, /health and /ready there, without token and TLS.",
        ),
    ] = None,
    allow_hosts: Annotated[
        list[str] | None,
        option(
            "--allow-host NAME",
            "With --http and no token: also answer requests for this host, of a proxy here; repeatable.",
        ),
    ] = None,
    allow_origins: Annotated[
        list[str] | None,
        option(
            "--allow-origin ORIGIN",
            "With --http: pages of this origin may use it; repeatable; * for all.",
        ),
    ] = None,
    collections: Annotated[
        list[str] | None,
        option(
            "--collection URL",
            "With --http: also show this versioned collection on the page; repeatable.",
        ),
    ] = None,
    store: Annotated[
        bool, option("--store", "DIRECTORY holds many logs, which clients name.")
    ] = False,
    tier: Annotated[
        str | None, option("--tier URL", "Ship the log, or each log of the store, to a store.")
    ] = None,
    take_over: TakeOver = False,
    replicate: Annotated[
        bool,
        option(
            "--replicate", "DIRECTORY holds copies of other machines' logs, for their primaries."
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        option(
            "--cluster ETCD",
            "Be a machine of the cluster that shares this etcd; see docs/cluster.md.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        option(
            "--advertise ADDRESS",
            "With --cluster: where others reach this machine; default: where it listens.",
        ),
    ] = None,
    zone: Annotated[
        str, option("--zone NAME", "With --cluster: the failure domain of this machine.")
    ] = "",
    lease_seconds: Annotated[
        int,
        option(
            "--lease-seconds N",
            "With --cluster: how long others wait for this machine once it is silent.",
            min=1,
            max=3600,
        ),
    ] = LEASE_SECONDS,
    replicas: Annotated[
        list[str] | None,
        option("--replica ADDRESS", "Be the log's primary, with a copy at this node; repeatable."),
    ] = None,
    tls_cert: Annotated[Path | None, option("--tls-cert FILE", "Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, option("--tls-key FILE", "Its private key, PEM.")] = None,
    token_file: Annotated[
        Path | None,
        option(
            "--token-file FILE",
            "Tokens with scopes and logs, TOML, in place of WALSTORE_TOKEN; see docs/serving.md.",
        ),
    ] = None,
    behind_proxy: Annotated[
        bool,
        option(
            "--behind-proxy",
            "Other machines may reach the places without TLS, with a token: a proxy ends TLS.",
        ),
    ] = False,
    drain_seconds: Annotated[
        float | None,
        option(
            "--drain-seconds N",
            "Time for requests in progress when the server stops; default 30.",
            min=0,
            max=86_400,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "--set NAME=VALUE",
            "A setting, such as log.retention_bytes=10GiB; repeatable. Counts before all others.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "--config FILE",
            "Settings in TOML; a variable such as WALSTORE_LOG_RETENTION_BYTES counts before them.",
        ),
    ] = None,
    show_config: Annotated[
        bool,
        option("--show-config", "Print all settings, and where each comes from; serve nothing."),
    ] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    as_json: AsJson = False,
) -> None:
    """Open a log and serve it to other processes, until SIGINT or SIGTERM.

    Creates a missing log. Programs use it through walstore.connect(ADDRESS), like a log of
    their own; the server writes its addresses to stdout when it is ready. A signal stops it: requests in
    progress finish, the log is closed, and the exit code is 0. Clients wait for the next server at the same
    address. The environment variable WALSTORE_TOKEN sets a token that clients must present; --token-file
    names several. SIGHUP reads that file and the certificate again.
    """
    directory = to_directory(path, "serve")
    send_logs_to_stderr(log_level, log_format)
    return_large_blocks()
    collect_rarely()
    values = {
        "--cluster": cluster,
        "--replicate": replicate,
        "--replica": replicas,
        "--store": store,
        "--tier": tier,
        "--http": http,
        "--allow-origin": allow_origins,
        "--allow-host": allow_hosts,
        "--collection": collections,
        "--take-over": take_over,
        "--advertise": advertise,
        "--zone": zone,
    }
    given = {name: bool(value) for name, value in values.items()}
    _check_options(
        has_certificate=tls_cert is not None,
        is_complete=(tls_cert is None) is (tls_key is None),
        is_hidden=behind_proxy,
        listens=tcp is not None or http is not None,
        given=given,
    )
    holds = next((one for one in _HOLDERS if given[one]), None)
    is_store = _serves_store(directory, holds, has_replicas=bool(replicas))
    unused = _unused_sections(given, is_store=is_store)
    chosen = configure(config, settings or (), drain_seconds)
    chosen.check_used(unused)
    if show_config:
        _show(chosen, unused, as_json=as_json)
        return
    token = os.environ.get(TOKEN_VARIABLE) or None
    tokens = _tokens(token_file, token, is_member=cluster is not None, has_replicas=bool(replicas))
    if tokens is not None and allow_hosts:
        raise UsageError("--allow-host is for servers without a token: with one, any host will do")
    certificate = None if tls_cert is None else ServerCertificate(tls_cert, tls_key)
    tls = None if certificate is None else certificate.context
    _check_listens(
        {"--tcp": tcp, "--http": http},
        has_token=tokens is not None,
        is_hidden=tls is not None or behind_proxy,
    )
    shared: dict[str, Any] = {"tls": tls, "tokens": tokens, "behind_proxy": behind_proxy}
    check_hosts(allow_hosts or ())
    if metrics is not None:
        parse_listen(metrics)
    if advertise is not None:
        check_host(parse_address(advertise).host)
    elif cluster is not None and tcp is not None:
        check_host(parse_listen(tcp)[0])
    places: dict[str, Any] = {
        **shared,
        "unix": str(directory / SOCKET_NAME) if unix is None and tcp is None else unix,
        "tcp": tcp,
        "settings": chosen.serve,
    }
    if places["unix"] is not None:
        check_socket_path(places["unix"])
    web: dict[str, Any] | None = None
    if http is not None:
        web = {
            **shared,
            "listen": http,
            "allow_hosts": allow_hosts or (),
            "allow_origins": allow_origins or (),
            "settings": chosen.http,
        }
    shown = [to_url(one, "--collection") for one in collections or ()]
    serving = Serving(
        directory,
        places,
        web,
        None if metrics is None else {"listen": metrics},
        shown,
        chosen,
        as_json,
        tokens if token_file is not None else None,
        certificate,
    )
    if cluster is not None:
        options = {"zone": zone, "lease_seconds": lease_seconds, "token": token}
        options["tls"] = None if tls is None else ssl.create_default_context()
        run_async(serve_cluster(serving, cluster, advertise, options))
    elif replicate:
        run_async(serve_copies(serving))
    else:
        run_async(
            serve_logs(
                serving,
                None if tier is None else to_url(tier, "--tier"),
                replication=replication_to(replicas, token, tls),
                is_store=is_store,
                take_over=take_over,
            )
        )


def _unused_sections(given: dict[str, bool], *, is_store: bool) -> dict[str, str]:
    """Return the sections of settings that have no part in what is served, with what each needs."""
    found = {
        "store": not is_store and "--store",
        "upload": not (given["--tier"] or given["--cluster"]) and "--tier URL",
        "http": not given["--http"] and "--http HOST:PORT",
        "log": given["--replicate"]
        and "a log: the copies of --replicate have those of their primaries",
    }
    return {section: needed for section, needed in found.items() if needed}


def _show(chosen: Configuration, unused: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json(chosen.as_json())
    else:
        with writing() as stdout:
            stdout.write(chosen.as_toml(unused))


_NEEDED: Final = {
    "--allow-origin": "--http HOST:PORT",
    "--allow-host": "--http HOST:PORT",
    "--collection": "--http HOST:PORT",
    "--take-over": "--tier URL",
    "--advertise": "--cluster ETCD",
    "--zone": "--cluster ETCD",
}
_EXCLUDED: Final = {
    "--cluster": ("--replicate", "--replica", "--store", "--tier"),
    "--replicate": ("--replica", "--store", "--tier", "--http"),
    "--replica": ("--store",),
}


def _check_options(
    *,
    has_certificate: bool,
    is_complete: bool,
    is_hidden: bool,
    listens: bool,
    given: dict[str, bool],
) -> None:
    """Raise UsageError for options that need others, or go without them."""
    if not is_complete:
        raise UsageError("--tls-cert and --tls-key belong together")
    for name, is_given in (
        ("--tls-cert and --tls-key", has_certificate),
        ("--behind-proxy", is_hidden),
    ):
        if is_given and not listens:
            raise UsageError(f"{name} can do nothing without --tcp HOST:PORT or --http HOST:PORT")
    for name, needed in _NEEDED.items():
        if given[name] and not given[needed.partition(" ")[0]]:
            raise UsageError(f"{name} needs {needed}")
    for name, others in _EXCLUDED.items():
        if given[name] and any(given[other] for other in others):
            names = f"{', '.join(others[:-1])} and {others[-1]}"
            raise UsageError(f"{name} goes without {names}")


_HOLDERS: Final = ("--store", "--replicate", "--cluster")
"""Options that say that the directory holds logs, and is none itself."""


def _serves_store(directory: Path, holds: str | None, *, has_replicas: bool) -> bool:
    """Return whether a directory is served as a store; ``holds`` is the option that says that it holds logs.

    UsageError for a log that is said to hold logs, and for logs that are said to be one. Blocking.
    """
    if directory.is_dir() and is_log_directory(directory):
        if holds is not None:
            raise UsageError(
                f"{directory} is a log itself and holds no others; "
                f"'walstore serve {directory}', without {holds}, serves it"
            )
        return False
    if holds is not None:
        return holds == "--store"
    is_store = (directory / STORE_NAME).exists()
    if (directory / COPIES_NAME).exists():
        raise UsageError(f"{directory} holds copies of logs; --replicate or --cluster serves them")
    if not is_store and find_logs(directory):
        raise UsageError(
            f"{directory} holds logs and is none itself; 'walstore serve {directory} --store' serves them"
        )
    if is_store and has_replicas:
        raise UsageError(f"{directory} is a store of logs; --replica is for a single one")
    return is_store


def _check_listens(given: dict[str, str | None], *, has_token: bool, is_hidden: bool) -> None:
    """Raise InvalidSettingsError for what is no place, UsageError for one that other machines reach."""
    for name, listen in given.items():
        if listen is None or is_loopback(parse_listen(listen)[0]) or (has_token and is_hidden):
            continue
        needed = [] if has_token else [f"a token in {TOKEN_VARIABLE} or --token-file"]
        needed += (
            [] if is_hidden else ["--tls-cert and --tls-key, or --behind-proxy where one ends TLS"]
        )
        raise UsageError(
            f"{name} {listen} can be reached from other machines: that needs {', and '.join(needed)}; "
            "or listen at 127.0.0.1"
        )


def _tokens(
    path: Path | None, token: str | None, *, is_member: bool, has_replicas: bool
) -> AccessTokens | None:
    """Return the tokens of a file, or the one of the environment; None without any. Blocking.

    UsageError for both, unless the one of the environment is that of this machine at others.
    """
    if path is None:
        return None if token is None else AccessTokens.single(token, name=TOKEN_VARIABLE)
    if token is not None and not (is_member or has_replicas):
        raise UsageError(
            f"--token-file and {TOKEN_VARIABLE} exclude each other: put that token into {path}, or unset it"
        )
    tokens = AccessTokens.read(path)
    if is_member:
        try:
            tokens.admit(token).check_all_logs(ADMIN)
        except AccessDeniedError:
            raise UsageError(
                f"--cluster with --token-file needs the token of this machine in {TOKEN_VARIABLE}: "
                f"one of {path} with the scope admin, for all logs"
            ) from None
    return tokens
