"""What the S3 store makes of everything a server or a network can answer, from a scripted server."""

from __future__ import annotations

import asyncio
import ipaddress
import pickle
import ssl
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from uploader.stores import ObjectNotFoundError, PreconditionFailedError, S3Store
from walstore.errors import (
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    StorageUnavailableError,
    UnsupportedStoreError,
    WalError,
)

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("aws_environment")]


@dataclass
class Answer:
    """A canned response; status 0 closes the connection instead, after the request was read."""

    status: int
    code: str = ""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_body_at: int | None = None

    def to_bytes(self) -> bytes:
        body = self.body
        if self.code:
            body = f"<Error><Code>{self.code}</Code><Message>said so</Message></Error>".encode()
        headers = {"Content-Length": str(len(body)), **self.headers}
        if "Transfer-Encoding" in headers:
            del headers["Content-Length"]
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} x\r\n{head}\r\n".encode() + body[: self.cut_body_at]


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    connection: int


class ScriptedServer:
    """Gives its answers in turn; when they run out it keeps silent."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        self.asked = asyncio.Event()
        self._connections = 0
        self._open: dict[asyncio.StreamWriter, asyncio.Event] = {}

    async def aclose(self) -> None:
        """End the connections that a client keeps, and wait for that."""
        for writer, ended in list(self._open.items()):
            writer.transport.abort()
            await ended.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection = self._connections
        ended = self._open[writer] = asyncio.Event()
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split(" ")
                headers = {}
                while (header := await reader.readline()) != b"\r\n":
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(Request(method, path, headers, connection))
                self.asked.set()
                if not self.answers:
                    await reader.read()
                    return
                answer = self.answers.pop(0)
                if not answer.status:
                    return
                writer.write(answer.to_bytes())
                await writer.drain()
                if answer.cut_body_at is not None:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            del self._open[writer]
            ended.set()


@pytest.fixture
async def server():
    scripted = ScriptedServer()
    listener = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    async with listener:
        scripted.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield scripted
        await scripted.aclose()


@pytest.fixture
async def store(server, impatient):
    """Waits for an answer for longer than any test takes."""
    opened = S3Store("bucket", endpoint_url=server.url, region="us-east-1", retry=impatient)
    async with aclosing(opened) as opened:
        yield opened


@pytest.fixture
async def hasty(server, impatient):
    """Soon gives up on a server that keeps silent."""
    opened = S3Store(
        "bucket",
        endpoint_url=server.url,
        region="us-east-1",
        read_timeout_seconds=0.1,
        retry=impatient,
    )
    async with aclosing(opened) as opened:
        yield opened


FOUND = {"ETag": '"abc"', "Last-Modified": "Mon, 01 Jun 2026 00:00:00 GMT"}
OK = Answer(200, headers=FOUND, body=b"data")
DONE = Answer(200, headers={"ETag": '"abc"'})
NOTHING_DECIDED = [
    Answer(409, "ConditionalRequestConflict"),
    Answer(409, "OperationAborted"),
    Answer(503, "SlowDown"),
    Answer(429, "TooManyRequests"),
]
PERHAPS = [
    Answer(500, "InternalError"),
    Answer(502),
    Answer(503, "ServiceUnavailable"),
    Answer(504, body=b"<html>gateway timeout</html>"),
    Answer(400, "RequestTimeout"),
    Answer(0),
]
CUT = Answer(200, body=b"not what S3 says", headers=FOUND, cut_body_at=3)
"""The headers of a success, and not all that was announced."""


async def create(store):
    return await store.put_if_absent("key", b"data")


async def swap(store):
    return await store.put_if_match("key", b"data", "etag")


@pytest.mark.parametrize("put", [create, swap])
@pytest.mark.parametrize("answer", NOTHING_DECIDED, ids=lambda answer: answer.code)
async def test_a_put_that_was_not_decided_is_not_written(server, store, put, answer):
    server.answers = [answer, DONE]
    with pytest.raises(StorageUnavailableError) as caught:
        await put(store)
    assert caught.value.retriable
    assert caught.value.outcome == "not_written"
    assert len(server.requests) == 1


@pytest.mark.parametrize("put", [create, swap])
@pytest.mark.parametrize("answer", PERHAPS, ids=lambda answer: f"{answer.status} {answer.code}")
async def test_a_put_without_a_clear_answer_is_unknown_and_sent_once(server, store, put, answer):
    server.answers = [answer, DONE]
    with pytest.raises(StorageUnavailableError) as caught:
        await put(store)
    assert caught.value.retriable
    assert caught.value.outcome == "unknown"
    assert len(server.requests) == 1


@pytest.mark.parametrize("put", [create, swap])
async def test_a_put_whose_answer_is_cut_is_unknown_and_sent_once(server, store, put):
    await test_a_put_without_a_clear_answer_is_unknown_and_sent_once(server, store, put, CUT)


@pytest.mark.parametrize("put", [create, swap])
async def test_a_put_whose_answer_never_comes_is_unknown(server, hasty, put):
    with pytest.raises(StorageUnavailableError) as caught:
        await put(hasty)
    assert caught.value.outcome == "unknown"
    await server.asked.wait()
    assert len(server.requests) == 1


async def test_a_put_on_a_kept_connection_that_dies_is_sent_once(server, store):
    """Left alone, aiohttp would send it again on a new connection, and the second answer would mislead."""
    server.answers = [DONE, Answer(0), Answer(412, "PreconditionFailed")]
    await create(store)
    with pytest.raises(StorageUnavailableError) as caught:
        await create(store)
    assert caught.value.outcome == "unknown"
    assert [request.connection for request in server.requests] == [1, 1]


async def test_a_put_that_never_got_a_connection_is_not_written(server, store):
    listener = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with aclosing(S3Store("bucket", endpoint_url=f"http://127.0.0.1:{port}")) as nobody:
        with pytest.raises(StorageUnavailableError, match="no connection") as caught:
            await create(nobody)
    assert caught.value.retriable
    assert caught.value.outcome == "not_written"


async def test_a_name_that_does_not_resolve_is_not_written(impatient):
    nowhere = S3Store("bucket", endpoint_url="http://no-such-host.invalid", retry=impatient)
    async with aclosing(nowhere):
        with pytest.raises(StorageUnavailableError, match="no connection") as caught:
            await create(nowhere)
    assert caught.value.outcome == "not_written"


@pytest.mark.parametrize("status", [412, 304])
async def test_a_condition_that_does_not_hold(server, store, status):
    """Older MinIO servers say 304 where S3 says 412."""
    for put in (create, swap):
        server.answers = [Answer(status, "PreconditionFailed" if status == 412 else "")]
        with pytest.raises(PreconditionFailedError) as caught:
            await put(store)
        assert caught.value.key == "key"


async def test_a_swap_of_what_is_gone_has_lost(server, store):
    server.answers = [Answer(404, "NoSuchKey")]
    with pytest.raises(PreconditionFailedError):
        await swap(store)


async def test_a_create_that_finds_no_place(server, store):
    server.answers = [Answer(404, "NoSuchKey")]
    with pytest.raises(LogNotFoundError):
        await create(store)


async def test_a_missing_bucket(server, store):
    for call in (create, swap, lambda store: store.get("key"), lambda store: store.delete(["key"])):
        server.answers = [Answer(404, "NoSuchBucket")]
        with pytest.raises(LogNotFoundError, match="bucket") as caught:
            await call(store)
        assert caught.value.location == store.url


FORBIDDEN = [
    Answer(403, "AccessDenied"),
    Answer(403, "InvalidAccessKeyId"),
    Answer(403, "SignatureDoesNotMatch"),
    Answer(400, "ExpiredToken"),
    Answer(403, "RequestTimeTooSkewed"),
    Answer(401),
]


@pytest.mark.parametrize("answer", FORBIDDEN, ids=lambda answer: f"{answer.status} {answer.code}")
async def test_refused_credentials_are_final_and_not_repeated(server, store, answer):
    for call in (create, lambda store: store.get("key")):
        server.requests.clear()
        server.answers = [answer, OK]
        with pytest.raises(StorageUnavailableError) as caught:
            await call(store)
        assert not caught.value.retriable
        assert caught.value.outcome == "not_written"
        assert len(server.requests) == 1


async def test_a_header_that_is_not_implemented(server, store):
    server.answers = [Answer(501, "NotImplemented")]
    with pytest.raises(UnsupportedStoreError):
        await create(store)


async def test_another_region(server, store):
    """The client asks for the region, and would follow; here nobody knows it."""
    server.answers = [Answer(400, "IllegalLocationConstraintException"), Answer(404)]
    with pytest.raises(InvalidSettingsError, match="region"):
        await create(store)


async def test_any_other_refusal_is_final(server, store):
    server.answers = [Answer(400, "EntityTooLarge"), OK]
    with pytest.raises(StorageUnavailableError, match="EntityTooLarge") as caught:
        await create(store)
    assert not caught.value.retriable
    assert caught.value.outcome == "not_written"


async def test_a_server_without_etags(server, store):
    server.answers = [Answer(200)]
    with pytest.raises(UnsupportedStoreError, match="ETag"):
        await create(store)


@pytest.mark.parametrize("answer", PERHAPS + NOTHING_DECIDED, ids=lambda a: f"{a.status} {a.code}")
async def test_reads_and_deletes_are_repeated(server, store, instant_clock, answer):
    server.answers = [answer, answer, OK]
    assert (await store.get("key")).data == b"data"
    assert len(server.requests) == 3
    assert instant_clock.waits == [0.05, 0.1]
    server.answers = [answer, Answer(204)]
    await store.delete(["key"])


async def test_a_read_that_is_cut_is_repeated(server, store, instant_clock):
    server.answers = [CUT, CUT, OK]
    assert (await store.get("key")).data == b"data"
    assert len(server.requests) == 3
    assert instant_clock.waits == [0.05, 0.1]


async def test_reads_give_up(server, store, instant_clock):
    server.answers = [Answer(503, "SlowDown")] * 6
    with pytest.raises(StorageUnavailableError) as caught:
        await store.get("key")
    assert caught.value.retriable
    assert caught.value.outcome == "not_written"
    assert len(server.requests) == 5
    assert instant_clock.waits == [0.05, 0.1, 0.2, 0.4]


@pytest.mark.parametrize("size_bytes", [11, 1 << 40])
async def test_the_body_of_what_is_too_long_is_not_read(server, store, size_bytes):
    """Its length is told before it; nothing more is sent here, and nothing more is waited for."""
    server.answers = [
        Answer(200, headers={**FOUND, "Content-Length": str(size_bytes)}, body=b"x"),
        OK,
    ]
    with pytest.raises(CorruptionError, match="longer") as caught:
        await store.get("key", max_bytes=10)
    assert (caught.value.path, caught.value.found) == ("key", size_bytes)
    assert len(server.requests) == 1
    assert (await store.get("key", max_bytes=10)).data == b"data"


async def test_a_body_of_a_length_that_is_not_told_is_read_no_further(server, store):
    chunks = b"".join(b"4\r\ndata\r\n" for _ in range(3))
    headers = {"ETag": '"abc"', "Transfer-Encoding": "chunked"}
    server.answers = [
        Answer(200, headers=headers, body=chunks),
        Answer(200, headers=headers, body=chunks + b"0\r\n\r\n"),
    ]
    with pytest.raises(CorruptionError, match="longer"):
        await store.get("key", max_bytes=10)
    assert (await store.get("key", max_bytes=12)).data == b"data" * 3


async def test_a_missing_object_is_not_repeated(server, store):
    server.answers = [Answer(404, "NoSuchKey"), OK]
    with pytest.raises(ObjectNotFoundError):
        await store.get("key")
    assert len(server.requests) == 1


async def test_conditions_and_etags_travel_without_quotes(server, store):
    """As Ceph RGW and DigitalOcean need them; Amazon takes both."""
    server.answers = [DONE, DONE]
    etag = await create(store)
    assert etag == "abc"
    await store.put_if_match("key", b"data", etag)
    first, second = server.requests
    assert first.headers["if-none-match"] == "*"
    assert "if-match" not in first.headers
    assert second.headers["if-match"] == "abc"
    assert "if-none-match" not in second.headers


@pytest.mark.parametrize("size_bytes", [0, 10, 1_000_000])
async def test_a_put_carries_its_md5_and_nothing_that_others_refuse(server, store, size_bytes):
    server.answers = [DONE]
    await store.put_if_absent("key", b"x" * size_bytes)
    headers = server.requests[0].headers
    assert headers["content-md5"]
    assert headers["content-length"] == str(size_bytes)
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert not [name for name in headers if "checksum" in name or name == "transfer-encoding"]


async def test_no_error_shows_a_secret(server, store):
    """Neither in its own text nor in the chain that a traceback prints."""
    secrets = ("testing", "secret-of-the-tests")
    answers = [*NOTHING_DECIDED, *PERHAPS, *FORBIDDEN, Answer(404, "NoSuchBucket"), Answer(412)]
    for answer in answers:
        server.answers = [answer]
        with pytest.raises(WalError) as caught:
            await create(store)
        error: BaseException | None = caught.value
        while error is not None:
            shown = f"{error!s} {error!r}"
            assert not any(secret in shown for secret in secrets)
            error = error.__cause__
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


async def test_a_cancelled_put_may_have_happened(server, store):
    server.answers = []

    async def put():
        await create(store)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(put())
        await server.asked.wait()
        task.cancel()
    assert task.cancelled()
    server.answers = [OK]
    assert (await store.get("key")).data == b"data"


async def test_a_request_that_trickles_ends_with_its_time_limit(server):
    """The read timeout alone would wait as long as something arrives now and then."""
    opened = S3Store("bucket", endpoint_url=server.url, request_timeout_seconds=0.5)
    async with aclosing(opened) as store:
        with pytest.raises(StorageUnavailableError) as caught:
            await create(store)
    assert caught.value.outcome == "unknown"


def listing(*keys: str, more: str = "") -> Answer:
    contents = "".join(f"<Contents><Key>{key}</Key><Size>3</Size></Contents>" for key in keys)
    tail = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    truncated = str(bool(more)).lower()
    body = (
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url'
        f"</EncodingType><IsTruncated>{truncated}</IsTruncated>{contents}{tail}</ListBucketResult>"
    )
    return Answer(200, body=body.encode())


async def test_a_listing_goes_on_page_by_page_and_repeats_a_failed_one(server, impatient):
    opened = S3Store("bucket", prefix="top", endpoint_url=server.url, retry=impatient)
    async with aclosing(opened) as store:
        server.answers = [
            listing("top/a/1", "top/a/2%20x", more="token-1"),
            Answer(503, "SlowDown"),
            listing("top/a/3", more="token-2"),
            listing(),
        ]
        found = [listed.key async for listed in store.list("a/", after="a/0")]
    assert found == ["a/1", "a/2 x", "a/3"]
    paths = [request.path for request in server.requests]
    assert all("prefix=top%2Fa%2F" in path for path in paths)
    assert "start-after=top%2Fa%2F0" in paths[0]
    assert ["continuation-token=token-1" in path for path in paths] == [False, True, True, False]


@pytest.mark.parametrize("token", ["", "<NextContinuationToken></NextContinuationToken>"])
async def test_a_listing_that_goes_on_from_nowhere_is_refused(server, impatient, token):
    answer = listing("a/1")
    answer.body = answer.body.replace(
        b"false</IsTruncated>", b"true</IsTruncated>" + token.encode()
    )
    server.answers = [answer] * 3
    async with aclosing(S3Store("bucket", endpoint_url=server.url, retry=impatient)) as store:
        with pytest.raises(UnsupportedStoreError, match="not from where"):
            [listed async for listed in store.list("a/")]
    assert len(server.requests) == 1


async def test_a_listing_that_goes_on_from_the_same_place_again_is_refused(server, impatient):
    server.answers = [listing("a/1", more="token")] * 3
    async with aclosing(S3Store("bucket", endpoint_url=server.url, retry=impatient)) as store:
        with pytest.raises(UnsupportedStoreError, match="not from where"):
            [listed async for listed in store.list("a/")]
    assert len(server.requests) == 2


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, as private servers have."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    key_file, certificate_file = directory / "key.pem", directory / "certificate.pem"
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    key_file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    certificate_file.write_bytes(certificate.public_bytes(pem))
    return key_file, certificate_file


async def test_certificates_are_verified_and_can_be_given(tmp_path, monkeypatch):
    key_file, certificate_file = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate_file, key_file)
    scripted = ScriptedServer()
    scripted.answers = [DONE]
    listener = await asyncio.start_server(scripted.serve, "127.0.0.1", 0, ssl=context)
    async with listener:
        url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with aclosing(S3Store("bucket", endpoint_url=url)) as distrusting:
            with pytest.raises(StorageUnavailableError, match="AWS_CA_BUNDLE") as caught:
                await create(distrusting)
        assert not caught.value.retriable
        assert caught.value.outcome == "not_written"
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate_file))
        async with aclosing(S3Store("bucket", endpoint_url=url)) as trusting:
            assert await create(trusting) == "abc"


async def test_a_request_that_waits_for_a_connection_is_not_timed(server, monkeypatch):
    """Only what was sent can have been obeyed, and only that may end with an unknown outcome."""
    timed = []
    timeout = asyncio.timeout

    def noted(seconds):
        timed.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr("uploader.stores.s3_client.asyncio.timeout", noted)
    opened = S3Store(
        "bucket", endpoint_url=server.url, request_timeout_seconds=47, max_connections=1
    )
    async with aclosing(opened) as store:
        putting = [asyncio.create_task(store.put_if_absent(f"{n}", b"")) for n in range(3)]
        await server.asked.wait()
        assert timed.count(47) == 1
        for task in putting:
            task.cancel()
        await asyncio.gather(*putting, return_exceptions=True)
    assert len(server.requests) == 1


def test_there_is_at_least_one_connection():
    with pytest.raises(InvalidSettingsError, match="max_connections"):
        S3Store("bucket", max_connections=0)
