"""The certificate of a server: replaced while it runs, and watched until it ends."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import ssl
from pathlib import Path

import pytest

from tests.walstore.serve.certificates import make_certificate
from walstore import WalStore, connect
from walstore.errors import InvalidSettingsError
from walstore.http import HttpServer
from walstore.serve import Server
from walstore.serve.server_certificate import ServerCertificate, end_of
from walstore.testing import ManualClock


async def presented(host: str, port: int, name: str | None) -> bytes:
    """Return the certificate that a server presents to a client that names it, or not."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, port, ssl=trust, server_hostname=name or "")
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return found


def in_file(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


async def test_new_connections_see_the_new_certificate(tmp_path: Path) -> None:
    """Those that are there go on; what cannot be used changes nothing."""
    files = make_certificate(tmp_path)
    made = await asyncio.to_thread(ServerCertificate, *files)
    async with (
        WalStore.open(tmp_path / "store") as store,
        Server.open(store, tcp="127.0.0.1:0", tls=made.context, token="t") as server,
        HttpServer.open(store, "127.0.0.1:0", tls=made.context, token="t") as web,
    ):
        ports = [server.addresses[0].port, int(web.addresses[0].rpartition(":")[2])]

        async def seen() -> set[bytes]:
            return {
                await presented("127.0.0.1", port, name)
                for port in ports
                for name in ("localhost", None)
            }

        first = in_file(files[0])
        assert await seen() == {first}
        trust = ssl.create_default_context(cafile=files[0])
        async with connect(str(server.addresses[0]), log="a", token="t", tls=trust) as remote:
            await remote.append(b"1")
            old_key = files[1].read_bytes()
            make_certificate(tmp_path)
            second, new_key = in_file(files[0]), files[1].read_bytes()
            await made.reload()
            assert await seen() == {second}
            for content in (old_key, b""):
                files[1].write_bytes(content)
                with pytest.raises(InvalidSettingsError, match="cannot use"):
                    await made.reload()
                assert await seen() == {second}
            files[1].write_bytes(new_key)
            await made.reload()
            await remote.append(b"2")


@pytest.mark.parametrize(
    ("days", "words"),
    [(30, None), (13.5, "ends in 13 days, at "), (-1, "ended at ")],
)
def test_a_certificate_that_ends_soon_is_a_warning(
    days: float, words: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    now = dt.datetime.fromtimestamp(clock.now_us() // 1_000_000, dt.UTC)
    ends = now + dt.timedelta(days=days)
    made = ServerCertificate(*certificate_until(tmp_path, ends), clock=clock)
    assert made.ends == ends
    made.warn()
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [words in line and ends.isoformat() in line for line in lines if words] == (
        [True] if words else []
    )


def certificate_until(path: Path, ends: dt.datetime) -> tuple[Path, Path]:
    return make_certificate(path, ends=ends, begins=ends - dt.timedelta(days=90))


async def test_it_is_looked_at_every_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    ends = dt.datetime.fromtimestamp(clock.now_us() // 1_000_000, dt.UTC) + dt.timedelta(days=14.5)
    files = certificate_until(tmp_path, ends)
    made = await asyncio.to_thread(ServerCertificate, *files, clock=clock)
    watching = asyncio.ensure_future(made.watch())
    for count in (0, 1, 2):
        await clock.wait_for_sleepers()
        assert len(caplog.records) == count
        clock.advance(86_400)
    watching.cancel()
    await asyncio.wait([watching])


@pytest.mark.parametrize("content", [b"", b"\x30", b"\x30\x80", b"\x30\x02\x30\x00", b"\x05\x00"])
def test_what_is_no_certificate_has_no_end(content: bytes) -> None:
    assert end_of(content) is None


@pytest.mark.parametrize("year", [2049, 2050, 9999])
def test_the_century_of_an_end(year: int, tmp_path: Path) -> None:
    ends = dt.datetime(year, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    certificate, _ = certificate_until(tmp_path, ends)
    assert end_of(in_file(certificate)) == ends
