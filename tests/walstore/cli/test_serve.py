"""walstore serve, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cases import case
from tests.local import contents
from tests.programs import COMMANDS, WALSTORE, Program, start
from tests.walstore.cli.conftest import Cli, Held
from tests.walstore.serve.certificates import make_certificate
from tests.walstore.topology import fake_etcd
from uploader import CloudLog, CloudTier
from walstore import (
    AccessDeniedError,
    RecordTooLargeError,
    StorageUnavailableError,
    Wal,
    WalError,
    WalStore,
    connect,
    connect_readonly,
)
from walstore.topology.documents import LogSpec
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)


@contextmanager
def serving(
    *arguments: object, stderr: int | None = None, **environment: str
) -> Iterator[tuple[Program, dict[str, Any]]]:
    """Run the verb until the block ends; yield what it says of itself."""
    options: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": stderr,
        "environment": environment,
    }
    with start(WALSTORE, "serve", *arguments, "--json", imports=COMMANDS, **options) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


async def test_serves_until_it_is_told_to_stop(tmp_path: Path, cli: Cli) -> None:
    log = tmp_path / "orders"
    with serving(log) as (process, said):
        assert said == {
            "serving": str(log), "store": False, "addresses": [f"unix://{log}/serve.sock"],
        }  # fmt: skip
        remote = await connect(said["addresses"][0], reconnect_seconds=0)
        assert await remote.append(b"v") == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        await remote.aclose()
    assert not (log / "serve.sock").exists()
    assert [record.value for record in await contents(log)] == [b"v"]


async def test_serves_http_until_it_is_told_to_stop(tmp_path: Path) -> None:
    arguments = (
        tmp_path,
        "--store",
        "--http",
        "127.0.0.1:0",
        "--allow-origin",
        "https://app.example",
    )
    with serving(*arguments) as (process, said):
        (url,) = (address for address in said["addresses"] if address.startswith("http://"))
        async with aiohttp.ClientSession() as session:
            stream = f"{url}/v1/stream/orders"
            headers = {"Content-Type": "text/plain", "Origin": "https://app.example"}
            async with session.put(stream, data=b"v", headers=headers) as answer:
                assert answer.status == 201
            async with session.get(f"{url}/metrics") as answer:
                assert 'walstore_durable_limit_offset{log="orders"} 2.0' in await answer.text()
            async with connect(said["addresses"][0], log="orders") as remote:
                assert await remote.append(b"w") == 2
            async with session.get(f"{stream}?offset=-1&live=sse") as answer:
                assert b"vw" in await answer.content.readuntil(b"\n\n")
                process.send_signal(signal.SIGTERM)
                await answer.content.read()  # it ends
        assert process.wait(30) == 0


async def test_both_protocols_stop_at_once(tmp_path: Path) -> None:
    """Their clients have the same ``--drain-seconds``, not one after the other; idle readers need none."""
    socket = tmp_path / "s.sock"
    arguments = (tmp_path / "logs", "--store", "--http", "127.0.0.1:0", "--unix", socket)
    with serving(*arguments, "--drain-seconds", 86_400) as (process, said):
        url = next(one for one in said["addresses"] if one.startswith("http://"))
        stream = f"{url}/v1/stream/orders"
        async with (
            aiohttp.ClientSession(headers={"Content-Type": "text/plain"}) as session,
            connect(said["addresses"][0], log="orders", reconnect_seconds=0) as remote,
        ):
            async with session.put(stream, data=b"v") as answer:
                assert answer.status == 201
            own = remote.follow(await remote.append(b"w") + 1)
            waiting = [
                asyncio.ensure_future(session.get(f"{stream}?offset=now&live=long-poll")),
                asyncio.ensure_future(anext(own)),
            ]
            host, port = url.removeprefix("http://").split(":")
            _, half = await asyncio.open_connection(host, int(port))
            half.write(
                b"POST /v1/stream/orders HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: text/plain\r\nContent-Length: 9\r\n\r\nhalf"
            )
            async with session.get(f"{stream}?offset=now&live=sse") as answer:
                await answer.content.readuntil(b"\n\n")
                # Over HTTP there are three, and the one that asks.
                wanted = (
                    'http_requests_in_progress{http="logs"} 4',
                    'server_requests_in_progress{server="logs"} 1',
                )
                await in_progress(session, url, *wanted)
                process.send_signal(signal.SIGTERM)
                await answer.content.read()  # it ends
            assert (await waiting[0]).status == 204
            with pytest.raises(WalError):
                await waiting[1]
            assert process.poll() is None  # there is still one who sends something
            half.close()
            await half.wait_closed()
        assert await asyncio.to_thread(process.wait, 30) == 0


async def test_settings_reach_what_they_are_of(tmp_path: Path) -> None:
    config = tmp_path / "w.toml"
    config.write_text(
        'version = 1\n[log]\nmax_record_bytes = 9\n[upload]\nfragment_bytes = "4 KiB"\n'
    )
    log, bucket = tmp_path / "orders", f"file://{tmp_path}/bucket"
    arguments = (log, "--http", "127.0.0.1:0", "--tier", bucket, "--config", config)
    options = ("--set", "http.body_bytes=1KiB", "--set", "log.retention_bytes=1GiB")
    environment = {"WALSTORE_SERVE_CONNECTIONS": "1"}
    with serving(*arguments, *options, **environment) as (_, said):
        async with connect(said["addresses"][0]) as remote, aiohttp.ClientSession() as session:
            with pytest.raises(RecordTooLargeError):
                await remote.append(b"ten bytes!")
            with pytest.raises(StorageUnavailableError):
                await connect(said["addresses"][0], reconnect_seconds=0)
            for _ in range(4):
                await remote.append_many([b"123456789"] * 1000)
            await remote.append(b"v", durability="cloud")
            headers = {"Content-Type": "text/plain"}
            url = f"{said['addresses'][1]}/v1/stream/orders"
            async with session.post(url, data=b"v" * 1025, headers=headers) as answer:
                assert answer.status == 413
    async with CloudLog.open(bucket) as stored:
        assert len(await stored.fragments()) > 4


async def test_behind_a_proxy_with_figures_of_its_own(tmp_path: Path) -> None:
    """As in a container: at every address, with a token and without TLS."""
    everywhere = ("--tcp", "0.0.0.0:0", "--http", "0.0.0.0:0", "--behind-proxy")
    arguments = (tmp_path / "orders", *everywhere, "--metrics", "127.0.0.1:0")
    with serving(*arguments, WALSTORE_TOKEN="t") as (_, said):
        tcp, metrics, http = said["addresses"]
        assert metrics.endswith("/metrics")
        address = tcp.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(AccessDeniedError):
            await connect(address, reconnect_seconds=0)
        async with (
            connect(address, token="t") as remote,
            aiohttp.ClientSession() as session,
        ):
            assert await remote.append(b"v") == 1
            async with session.get(metrics) as answer:
                text = await answer.text()
            assert 'walstore_durable_limit_offset{log="orders"} 2.0' in text
            assert 'walstore_server_requests_in_progress{server="orders"}' in text
            url = http.replace("0.0.0.0", "127.0.0.1")
            async with session.get(f"{url}/v1/stream/orders") as answer:
                assert answer.status == 401
            async with session.get(f"{metrics.removesuffix('metrics')}ready") as answer:
                assert answer.status == 200


def test_a_message_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    with serving(tmp_path / "a\nb\x1b[31m", stderr=subprocess.PIPE) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        lines = process.stderr.read().decode().splitlines()
    assert all(re.match(r"\d{4}-", line) for line in lines)
    assert r"a\nb\x1b[31m" in lines[0]


def test_the_time_to_drain_needs_no_http(tmp_path: Path) -> None:
    with serving(tmp_path / "orders", "--drain-seconds", 5) as (process, said):
        assert len(said["addresses"]) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, is_abstract: bool) -> None:
    name = f"@walstore-{os.urandom(8).hex()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(name.replace("@", "\0") if is_abstract else name)
        told.settimeout(30)
        with serving(tmp_path / "orders", NOTIFY_SOCKET=name) as (process, _):
            assert told.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert told.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0
    with serving(tmp_path / "orders", NOTIFY_SOCKET=name) as (process, _):
        process.send_signal(signal.SIGTERM)  # nobody listens: it serves as ever
        assert process.wait(30) == 0


async def test_store_settings_reach_the_store(tmp_path: Path) -> None:
    arguments = (tmp_path / "logs", "--store", "--set", "store.max_open_logs=1")
    with serving(*arguments) as (_, said):
        for name in ("a", "b"):
            async with connect(said["addresses"][0], log=name) as remote:
                assert await remote.append(b"v") == 1


def test_messages_are_lines_with_time_level_and_logger(tmp_path: Path) -> None:
    """A tier without retention is warned of: the disk fills."""
    arguments = (tmp_path / "orders", "--tier", f"file://{tmp_path}/bucket")
    for form in ("json", "text"):
        with serving(*arguments, "--log-format", form, stderr=subprocess.PIPE) as (process, _):
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            lines = process.stderr.read().decode().splitlines()
            assert process.wait(30) == 0
        if form == "json":
            found = [json.loads(line) for line in lines]
            assert all(set(one) == {"time", "level", "logger", "message"} for one in found)
            (warned,) = (one for one in found if one["level"] == "warning")
            assert warned["logger"] == "walstore.serve"
            assert "log.retention_bytes" in warned["message"]
        else:
            pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING) walstore[.a-z]*: .+"
            assert all(re.fullmatch(pattern, line) for line in lines)
            assert any("listening at unix://" in line for line in lines)
    with serving(*arguments, "--log-level", "error", stderr=subprocess.PIPE) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == b""


async def in_progress(session: aiohttp.ClientSession, url: str, *wanted: str) -> None:
    """Return when so many requests are in progress."""
    found = ""
    while not all(f"walstore_{one}.0\n" in found for one in wanted):
        async with session.get(f"{url}/metrics") as answer:
            found = await answer.text()


@pytest.mark.slow
async def test_the_files_of_a_served_log_are_looked_at_as_ever(tmp_path: Path, cli: Cli) -> None:
    log = tmp_path / "orders"
    with serving(log) as (process, said):
        async with connect(said["addresses"][0]) as remote:
            await remote.append_many([b"a", b"b"])
        for verb in ("inspect", "verify", "segments", "cursors", "dump"):
            with case(verb):
                assert (await asyncio.to_thread(cli, verb, log)).code == 0
        second = subprocess.run(
            [sys.executable, "-m", "walstore", "serve", str(log)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 4
        assert f"serves it at unix://{log}/serve.sock" in second.stderr
        process.kill()
        process.wait()
        with serving(log) as (_, again):  # what a killed server left behind is in nobody's way
            async with connect(again["addresses"][0]) as remote:
                assert await remote.append(b"c") == 3


@pytest.mark.slow
async def test_a_store_at_a_port_with_a_token(tmp_path: Path) -> None:
    arguments = (tmp_path / "store", "--store", "--tcp", "127.0.0.1:0", "--unix", tmp_path / "s")
    with serving(*arguments, WALSTORE_TOKEN="t") as (process, said):
        unix, tcp = said["addresses"]
        assert (said["store"], unix) == (True, f"unix://{tmp_path}/s")
        async with (
            connect(tcp, log="eu", token="t") as one,
            connect(f"{unix}?log=us", token="t") as two,
        ):
            assert (await one.append(b"1"), await two.append(b"2")) == (1, 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    with serving(tmp_path / "store", "--unix", tmp_path / "s") as (_, said):
        assert said["store"]


def write_tokens(file: Path, **scopes: str) -> None:
    """Let a file have tokens, which are their own names."""
    tables = [
        f'[[token]]\nname = "{name}"\ntoken = "{name}"\nscopes = ["{scope}"]\n'
        for name, scope in scopes.items()
    ]
    file.write_text("".join(tables))
    file.chmod(0o600)


def next_line(process: Program, words: str) -> str:
    """Return the next line of stderr that has some words."""
    assert process.stderr is not None
    return next(line for line in map(bytes.decode, process.stderr) if words in line)


@pytest.mark.slow
async def test_sighup_reads_tokens_and_certificate_again(tmp_path: Path) -> None:
    """A server without either goes on, too."""
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, old="append")
    certificate, key = make_certificate(tmp_path)
    arguments = ("--store", "--tcp", "127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key)
    arguments = (*arguments, "--token-file", tokens)
    with serving(tmp_path / "s", *arguments, stderr=subprocess.PIPE) as (process, said):
        (address,) = said["addresses"]

        def connected(token: str) -> Any:
            trust = ssl.create_default_context(cafile=certificate)
            return connect(address, log="a", token=token, tls=trust)

        async with connected("old") as old:
            await old.append(b"1")
            before, files = certificate.read_bytes(), key.read_bytes()
            write_tokens(tokens, old="append", new="append")
            make_certificate(tmp_path)
            process.send_signal(signal.SIGHUP)
            assert "INFO" in next_line(process, "the tokens were read again")
            assert "INFO" in next_line(process, "the certificate was read again")
            async with connected("new") as new:
                await old.append(b"2")
                write_tokens(tokens, new="append")
                key.write_bytes(files)  # of the certificate that was
                process.send_signal(signal.SIGHUP)
                assert "INFO" in next_line(process, "the tokens were read again")
                assert "ERROR" in next_line(process, "the certificate stays as it was: cannot use")
                with pytest.raises(AccessDeniedError, match="refused the token"):
                    await old.append(b"3")
                tokens.write_text("")
                certificate.write_bytes(before)
                process.send_signal(signal.SIGHUP)
                assert "ERROR" in next_line(process, "the tokens stay as they were: ")
                assert "INFO" in next_line(process, "the certificate was read again")
                await new.append(b"4")
            async with connected("new") as again:  # trusts the first certificate
                await again.append(b"5")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with serving(tmp_path / "l", stderr=subprocess.PIPE) as (process, said):
        process.send_signal(signal.SIGHUP)
        assert "INFO" in next_line(process, "there is no file of tokens and no certificate")
        async with connect(said["addresses"][0]) as remote:
            await remote.append(b"1")


@pytest.mark.slow
async def test_audit_lines_have_fields_as_json(tmp_path: Path) -> None:
    arguments = (tmp_path / "l", "--log-format", "json")
    with serving(*arguments, stderr=subprocess.PIPE, WALSTORE_TOKEN="t") as (process, said):
        async with connect(said["addresses"][0], token="t") as remote:
            await remote.append(b"1")
            await remote.trim(1)
        begun, trimmed, ended = (json.loads(next_line(process, "walstore.audit")) for _ in range(3))
    who = {"logger": "walstore.audit", "token": "WALSTORE_TOKEN", "peer": "unix", "tls": False}
    for line, more in (
        (begun, {"action": "connect", "log": "l"}),
        (trimmed, {"action": "trim", "log": "l", "before": 1, "outcome": "done"}),
        (ended, {"action": "disconnect", "appended": {"l": 1}}),
    ):
        assert {**line, **who, **more} == line


def test_tokens_come_from_one_place(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine of a cluster needs one of the file, too, for the others."""
    tokens = tmp_path / "tokens.toml"
    write_tokens(tokens, some="append")
    given = [tmp_path / "l", "--token-file", tokens]
    cluster = [*given, "--cluster", "etcd://127.0.0.1:1"]
    done = cli("serve", *cluster)
    assert (done.code, "needs the token of this machine in WALSTORE_TOKEN" in done.error) == (
        1,
        True,
    )
    monkeypatch.setenv("WALSTORE_TOKEN", "some")
    done = cli("serve", *given)
    assert done.code == 1
    assert "--token-file and WALSTORE_TOKEN exclude each other" in done.error
    done = cli("serve", *cluster)
    assert (done.code, "with the scope admin, for all logs" in done.error) == (1, True)
    assert not (tmp_path / "l").exists()


@pytest.mark.slow
async def test_a_server_ships(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    with serving(tmp_path / "log", "--tier", url) as (process, said):
        async with connect(said["addresses"][0]) as remote:
            assert await remote.append(b"v", durability="cloud") == 1
            assert remote.uploaded_limit in (1, 2)
            await remote.refresh()
            assert remote.uploaded_limit == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_mistakes(tmp_path: Path, cli: Cli) -> None:
    for arguments, word in (
        (["s3://bucket/x"], "log directory"),
        ([tmp_path / "l", "--tcp", "0.0.0.0:1"], "tls"),
        ([tmp_path / "l", "--tcp", "nowhere"], "HOST:PORT"),
        (
            [tmp_path / "l", "--tcp", "0.0.0.0:7999"],
            "needs a token in WALSTORE_TOKEN or --token-file, and --tls-cert",
        ),
        (
            [tmp_path / "l", "--http", "0.0.0.0:7999"],
            "needs a token in WALSTORE_TOKEN or --token-file, and --tls-cert",
        ),
        ([tmp_path / "l", "--unix", "x" * 200], "socket"),
        (
            [tmp_path / "l", "--http", "0.0.0.0:7999", "--behind-proxy"],
            "needs a token in WALSTORE_TOKEN or --token-file; or",
        ),
        ([tmp_path / "l", "--allow-host", "log.example"], "--allow-host needs --http"),
        (
            [tmp_path / "l", "--http", "127.0.0.1:0", "--allow-host", "http://x/"],
            "takes names of hosts such as log.example, not",
        ),
        ([tmp_path / "l", "--behind-proxy"], "--behind-proxy can do nothing without --tcp"),
        ([tmp_path / "l", "--tls-cert", "a"], "belong together"),
        ([tmp_path / "l", "--tls-cert", "a", "--tls-key", "b"], "without --tcp"),
        (
            [tmp_path / "l", "--tcp", "127.0.0.1:0", "--tls-cert", "a", "--tls-key", "b"],
            "cannot use",
        ),
        ([tmp_path / "l", "--take-over"], "--tier"),
        ([tmp_path / "l", "--tier", "memory://x"], "memory://"),
    ):
        with case(*arguments):
            done = cli("serve", *arguments)
            assert done.code == 1
            assert word in done.error


@pytest.mark.slow
def test_a_log_that_is_open_elsewhere(cli: Cli, log: Path, held: Held) -> None:
    with held(log):
        assert cli("serve", log).code == 4


async def test_a_machine_of_a_cluster_reads_a_log_of_others(tmp_path: Path, cli: Cli) -> None:
    url = (tmp_path / "store" / "theirs").as_uri()
    async with Wal.open(tmp_path / "theirs", tier=CloudTier(url)) as wal:
        await wal.append(b"v", durability="cloud")
    store = MemoryKeyValues()
    store.swap("walstore/logs/theirs", LogSpec(source=url).encode(), 0, 0)
    async with fake_etcd.serving(fake_etcd.FakeEtcd(store)) as (place,):
        command = (tmp_path, "--cluster", place.replace("http", "etcd"), "--json")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "walstore", "serve", *map(str, command)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        said = json.loads(await process.stdout.readline())
        async with (
            connect_readonly(said["advertised"], log="theirs") as log,
            log.reader(follow=False) as reader,
        ):
            assert [record.value async for record in reader] == [b"v"]
        address = f"{said['advertised']}?log=theirs"
        for verb in ("tail", "dump"):
            found = await asyncio.to_thread(cli, verb, address)
            assert (found.code, len(found.lines)) == (0, 1), found.error
        refused = await asyncio.to_thread(cli, "append", address, stdin=b"w\n")
        assert (refused.code, "takes no appends here" in refused.error) == (1, True)
        process.terminate()
        assert await process.wait() == 0


async def test_copies_and_their_primary(tmp_path: Path, cli: Cli) -> None:
    """Each line of docs/replication.md as a process of its own."""
    sockets = [tmp_path / f"{name}.sock" for name in "bc"]
    with (
        serving(tmp_path / "b", "--replicate", "--unix", sockets[0]) as (_, said),
        serving(tmp_path / "c", "--replicate", "--unix", sockets[1]),
    ):
        assert said == {"copies": str(tmp_path / "b"), "addresses": [f"unix://{sockets[0]}"]}
        replicas = [word for path in sockets for word in ("--replica", f"unix://{path}")]
        tier = ("--tier", f"file://{tmp_path}/bucket")
        with serving(tmp_path / "a" / "orders", *replicas, *tier) as (process, said):
            async with connect(said["addresses"][0]) as log:
                await log.append(b"v", durability="cloud")
                await log.append(b"w", durability="replicated")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    async with CloudLog.open(tier[1]) as shipped, shipped.reader() as reader:
        assert [record.value async for record in reader] == [b"v", b"w"]
    copy = tmp_path / "b" / "orders"
    refused = await asyncio.to_thread(cli, "append", copy, stdin=b"x\n")
    assert (refused.code, "is a copy of a replicated log" in refused.error) == (1, True)
    (copy / "PROMISE").unlink()
    assert [record.value for record in await contents(copy)] == [b"v", b"w"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--replicate", "--store"),
        ("--replicate", "--replica", "unix:///a"),
        ("--replica", "unix:///a", "--store"),
        ("--replica", "http://a"),
    ],
    ids=case,
)
def test_options_that_exclude_each_other(
    arguments: tuple[str, ...], tmp_path: Path, cli: Cli
) -> None:
    done = cli("serve", tmp_path / "log", *arguments)
    assert (done.code, done.out) == (1, b"")
    assert not (tmp_path / "log").exists()


NOWHERE = ("--unix", "/nowhere/at/all")
"""So that what is not refused ends, too."""


@pytest.mark.parametrize("option", ["--store", "--replicate"])
async def test_a_log_is_not_served_as_a_directory_of_logs(
    option: str, tmp_path: Path, cli: Cli
) -> None:
    directory = tmp_path / "orders"
    async with Wal.open(directory) as log:
        await log.append(b"v")
    files = sorted(directory.iterdir())
    done = await asyncio.to_thread(cli, "serve", directory, option, *NOWHERE)
    assert (done.code, done.out) == (1, b"")
    assert done.error == (
        f"{directory} is a log itself and holds no others; 'walstore serve {directory}', without {option}, "
        "serves it"
    )
    assert sorted(directory.iterdir()) == files


async def test_logs_are_not_served_as_one(tmp_path: Path, cli: Cli) -> None:
    for name in ("orders", "returns"):
        async with Wal.open(tmp_path / name) as log:
            await log.append(b"v")
    done = await asyncio.to_thread(cli, "serve", tmp_path, *NOWHERE)
    assert (done.code, done.out) == (1, b"")
    assert done.error == (
        f"{tmp_path} holds logs and is none itself; 'walstore serve {tmp_path} --store' serves them"
    )
    assert sorted(one.name for one in tmp_path.iterdir()) == ["orders", "returns"]


async def test_a_store_that_is_known_by_itself_has_no_replicas(tmp_path: Path, cli: Cli) -> None:
    async with WalStore.open(tmp_path):
        pass
    replica = ("--replica", "unix:///nowhere")
    done = await asyncio.to_thread(cli, "serve", tmp_path, *NOWHERE, *replica)
    assert (done.code, done.out) == (1, b"")
    assert done.error == f"{tmp_path} is a store of logs; --replica is for a single one"


async def test_a_log_that_was_served_as_a_store_by_mistake_is_a_log(tmp_path: Path) -> None:
    async with Wal.open(tmp_path) as log:
        await log.append(b"v")
    (tmp_path / ".store").touch()
    with serving(tmp_path) as (_, said):
        assert said["store"] is False
        async with connect(said["addresses"][0]) as remote:
            assert remote.tail == 2


def test_copies_are_not_served_as_a_log(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / ".copies").touch()
    done = cli("serve", tmp_path, *NOWHERE)
    assert (done.code, done.out) == (1, b"")
    assert done.error == f"{tmp_path} holds copies of logs; --replicate or --cluster serves them"
