"""What the store by obstore makes of all that the S3 store is tested with, and what only it has to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import aclosing

import pytest

from tests.uploader.stores.test_s3_faults import (  # noqa: F401 - run here with this module's stores
    OK,
    Answer,
    create,
    server,
    swap,
    test_a_cancelled_put_may_have_happened,
    test_a_condition_that_does_not_hold,
    test_a_create_that_finds_no_place,
    test_a_header_that_is_not_implemented,
    test_a_missing_bucket,
    test_a_missing_object_is_not_repeated,
    test_a_put_on_a_kept_connection_that_dies_is_sent_once,
    test_a_put_that_was_not_decided_is_not_written,
    test_a_put_whose_answer_never_comes_is_unknown,
    test_a_put_without_a_clear_answer_is_unknown_and_sent_once,
    test_a_server_without_etags,
    test_a_swap_of_what_is_gone_has_lost,
    test_another_region,
    test_any_other_refusal_is_final,
    test_conditions_and_etags_travel_without_quotes,
    test_no_error_shows_a_secret,
    test_reads_and_deletes_are_repeated,
    test_reads_give_up,
    test_refused_credentials_are_final_and_not_repeated,
    test_the_body_of_what_is_too_long_is_not_read,
)
from uploader.stores import ObstoreStore
from walstore.errors import InvalidSettingsError, StorageUnavailableError, WalClosedError

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("aws_environment")]


@pytest.fixture
async def store(server, impatient):  # noqa: F811 - fixture
    opened = ObstoreStore("s3", "bucket", endpoint_url=server.url, retry=impatient)
    async with aclosing(opened):
        yield opened


@pytest.fixture
async def hasty(server, impatient):  # noqa: F811 - fixture
    opened = ObstoreStore(
        "s3", "bucket", endpoint_url=server.url, request_timeout_seconds=0.1, retry=impatient
    )
    async with aclosing(opened):
        yield opened


@pytest.mark.parametrize("put", [create, swap])
async def test_a_put_that_never_got_a_connection_is_not_written(impatient, put):
    listener = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    for url in (f"http://127.0.0.1:{port}", "http://no-such-host.invalid"):
        async with aclosing(ObstoreStore("s3", "bucket", endpoint_url=url)) as nobody:
            with pytest.raises(StorageUnavailableError, match="no connection") as caught:
                await put(nobody)
        assert caught.value.retriable
        assert caught.value.outcome == "not_written"


async def test_each_put_is_signed_with_its_content(server, store):  # noqa: F811
    """So the server notices if it arrives changed."""
    server.answers = [Answer(200, headers={"ETag": '"abc"'})]
    await create(store)
    headers = server.requests[0].headers
    assert len(headers["x-amz-content-sha256"]) == 64
    assert headers["content-length"] == "4"


async def test_a_closed_store(store):
    await store.aclose()
    with pytest.raises(WalClosedError):
        await store.get("key")


FORKING = """
import asyncio, os, sys
from uploader.stores import ObstoreStore
from walstore.errors import StorageUnavailableError

store = ObstoreStore("s3", "bucket", endpoint_url="http://127.0.0.1:9")

async def why(store):
    try:
        await store.put_if_absent("key", b"")
    except StorageUnavailableError as error:
        return str(error)

def check(store):
    assert "no connection" in asyncio.run(why(store))
    child = os.fork()
    if not child:
        told = [asyncio.run(why(one)) for one in (store, ObstoreStore("s3", "other"))]
        os._exit(0 if all("fork" in one for one in told) else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

check(store)
"""


def test_a_forked_process_is_told_that_it_cannot(tmp_path):
    """It has none of the threads that do the work: it would wait for ever."""
    assert subprocess.run([sys.executable, "-c", FORKING], timeout=60, check=False).returncode == 0


def test_what_is_no_store():
    with pytest.raises(InvalidSettingsError, match="scheme"):
        ObstoreStore("ftp", "bucket")  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingsError, match="max_connections"):
        ObstoreStore("s3", "bucket", max_connections=0)


async def test_requests_at_once_are_bounded(server, impatient):  # noqa: F811
    opened = ObstoreStore(
        "s3", "bucket", endpoint_url=server.url, max_connections=2, retry=impatient
    )
    async with aclosing(opened) as store, asyncio.TaskGroup() as group:
        server.answers = [OK] * 6
        for _ in range(6):
            group.create_task(store.get("key"))
    assert {request.connection for request in server.requests} <= {1, 2}
