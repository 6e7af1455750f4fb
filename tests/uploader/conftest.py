"""Object stores for the tests of the cloud tier: an S3 server over real HTTP, and retries that do not wait.

The server is the one that WALSTORE_S3_ENDPOINT names (``make test-s3`` starts one), else moto's, which is
imported when the first test needs it.
"""

from __future__ import annotations

import atexit
import functools
import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.s3.rgw import ACCESS_KEY, ENDPOINT, SECRET_KEY
from uploader.stores import RetryPolicy

if TYPE_CHECKING:
    from tests.uploader.s3_server import S3Server


class RealServer:
    """A server that was there before us and does nothing for us but what S3 does."""

    def __init__(self, endpoint_url: str) -> None:
        self.endpoint_url = endpoint_url

    @property
    def unconditional_buckets(self) -> set[str]:
        pytest.skip("a real server enforces conditions whatever one tells it")

    @property
    def requests(self) -> list[tuple[str, str]]:
        pytest.skip("a real server does not tell what it was asked")


class InstantClock:
    """Never waits, but notes for how long it should have."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now_us(self) -> int:
        return 1_750_000_000_000_000

    def monotonic(self) -> float:
        return sum(self.waits)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.fixture
def instant_clock() -> InstantClock:
    return InstantClock()


@pytest.fixture
def impatient(instant_clock: InstantClock) -> RetryPolicy:
    """Retry without waiting: five attempts, no chance involved."""
    return RetryPolicy(clock=instant_clock, jitter=lambda: 0.0)


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    """Credentials for the emulator, and nothing else of this machine's AWS settings."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    nowhere = str(tmp_path_factory.getbasetemp() / "no-such-file")
    monkeypatch.setenv("AWS_CONFIG_FILE", nowhere)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


@functools.cache
def _started_server() -> S3Server:
    """Return moto's server. A fixture that several modules import is made for each of them; this is not."""
    from tests.uploader.s3_server import S3Server

    server = S3Server()
    server.start()
    atexit.register(server.stop)
    return server


@functools.cache
def _client(endpoint_url: str) -> Any:
    import boto3

    session = boto3.Session(
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name="us-east-1"
    )
    client = session.client("s3", endpoint_url=endpoint_url)
    atexit.register(client.close)
    return client


@pytest.fixture(scope="session")
def s3_server() -> S3Server | RealServer:
    """One server for all tests; each test has a bucket of its own."""
    endpoint_url = os.environ.get(ENDPOINT)
    return RealServer(endpoint_url) if endpoint_url else _started_server()


@pytest.fixture(scope="session")
def s3_admin(s3_server: S3Server | RealServer) -> Any:
    """A plain client, to make buckets and to look behind the store's back."""
    return _client(s3_server.endpoint_url)


@pytest.fixture
def s3_bucket(s3_admin: Any, aws_environment: None) -> str:
    """A new, empty bucket."""
    name = f"bucket-{uuid.uuid4().hex[:16]}"
    s3_admin.create_bucket(Bucket=name)
    return name


@pytest.fixture
def s3_url(s3_server: S3Server | RealServer, s3_bucket: str) -> str:
    """The URL of a place in a new bucket, as a user would write it."""
    return f"s3://{s3_bucket}/logs/orders?endpoint_url={s3_server.endpoint_url}&region=us-east-1"
