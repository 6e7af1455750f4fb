"""EtcdKeyValues: what it makes of nodes that fail, behind a gateway that only looks like etcd's."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable

import pytest

from tests.cases import case
from tests.local import turns
from tests.waiting import RUNS_OUT_SECONDS, until
from tests.walstore.serve.certificates import make_certificate
from tests.walstore.topology.conftest import sockets
from tests.walstore.topology.fake_etcd import FakeEtcd, Fault, serving
from walstore.errors import (
    AccessDeniedError,
    InvalidSettingsError,
    LimitExceededError,
    OutcomeUnknownError,
    StorageUnavailableError,
    WalClosedError,
)
from walstore.testing import ManualClock
from walstore.topology.etcd import EtcdKeyValues, parse_etcd
from walstore.topology.key_values import HistoryCompactedError, KeyValue, Swap
from walstore.topology.memory import MemoryKeyValues

RANGE, TXN, GRANT = "/v3/kv/range", "/v3/kv/txn", "/v3/lease/grant"
REQUEST_SECONDS = 2.0


@pytest.fixture
def store(clock: ManualClock) -> MemoryKeyValues:
    return MemoryKeyValues(clock)


@pytest.fixture
async def nodes(store: MemoryKeyValues) -> AsyncIterator[tuple[FakeEtcd, FakeEtcd]]:
    found = FakeEtcd(store), FakeEtcd(store)
    async with serving(*found):
        yield found


@pytest.fixture
async def client(nodes: tuple[FakeEtcd, FakeEtcd]) -> AsyncIterator[EtcdKeyValues]:
    """A client whose time stands still."""
    async with _open(nodes) as found:
        yield found


@pytest.fixture
async def timely(nodes: tuple[FakeEtcd, FakeEtcd]) -> AsyncIterator[EtcdKeyValues]:
    """A client whose time passes."""
    async with _open(nodes, clock=None, request_seconds=60) as found:
        yield found


@pytest.fixture
async def hasty(nodes: tuple[FakeEtcd, FakeEtcd]) -> AsyncIterator[EtcdKeyValues]:
    """A client that does not wait for long. Busy machines delay what it does, but must not prevent it."""
    async with _open(nodes, clock=None, request_seconds=RUNS_OUT_SECONDS) as found:
        yield found


def _open(nodes: tuple[FakeEtcd, ...], **options):
    options = {"clock": nodes[0].store.clock, "request_seconds": REQUEST_SECONDS, **options}
    return EtcdKeyValues.open([node.endpoint for node in nodes], **options)


async def _without_answer(clock: ManualClock, call, *asked: Callable[[], bool]):
    """Do a call; when each of the requests was made, as long passes as a node has for it."""
    async with asyncio.TaskGroup() as group:
        result = group.create_task(call)
        for is_asked in asked:
            await until(is_asked)
            clock.advance(REQUEST_SECONDS)
    return result.result()


def _requests(nodes: tuple[FakeEtcd, ...], path: str) -> list[int]:
    return [node.requests.count(path) for node in nodes]


# -- reads -----------------------------------------------------------------------------------


async def test_reads_go_on_at_the_next_node(nodes, store) -> None:
    store.swap("k", b"1", 0, 0)
    for fault in (
        *(Fault.RESET, Fault.LOST, Fault.UNAVAILABLE, Fault.BUSY, Fault.NOT_ETCD, Fault.PROXY),
        *(Fault.GARBAGE, Fault.OTHER_JSON),
    ):
        with case(fault):
            nodes[0].faults, nodes[0].requests, nodes[1].requests = {RANGE: fault}, [], []
            async with _open(nodes) as client:
                assert await client.get("k") == KeyValue("k", b"1", 2)
                assert list((await client.list("")).items) == ["k"]
            assert _requests(nodes, RANGE) == [1, 2]  # it stays with the one that answers


async def test_nodes_that_never_answer_are_left(nodes, client, clock) -> None:
    nodes[0].faults = dict.fromkeys((RANGE, GRANT, "/v3/lease/keepalive"), Fault.SILENT)
    found = _without_answer(clock, client.get("k"), lambda: nodes[0].requests == [RANGE])
    assert await found is None
    lease = await client.grant(5)
    assert await client.keep_alive(lease) == 5
    assert nodes[0].requests == [RANGE]


async def test_no_node_answers(nodes, client, clock) -> None:
    for node, fault in zip(nodes, (Fault.SILENT, Fault.PROXY), strict=True):
        node.faults = {RANGE: fault}
    began = clock.monotonic()
    found = _fails(client.get("k"), StorageUnavailableError)
    error = await _without_answer(
        clock, found, lambda: _requests(nodes, RANGE) == [1, 0], lambda: nodes[0].requests[1:] != []
    )
    assert clock.monotonic() - began == 2 * REQUEST_SECONDS
    assert error.retriable
    assert error.outcome == "not_written"
    for node in nodes:
        assert node.endpoint in str(error)


async def test_it_is_tried_again_until_the_time_is_over(nodes, timely) -> None:
    """All nodes are there again before that, as after an election."""
    for node in nodes:
        node.faults = {RANGE: Fault.UNAVAILABLE}
    async with asyncio.TaskGroup() as group:
        found = group.create_task(timely.get("k"))
        await until(lambda: min(_requests(nodes, RANGE)) >= 2)
        for node in nodes:
            node.faults = {}
    assert found.result() is None


async def test_an_answer_that_is_too_large(nodes, client, store) -> None:
    nodes[0].faults = {RANGE: Fault.HUGE}
    with pytest.raises(LimitExceededError):
        await client.list("")
    nodes[0].once, nodes[0].faults = {TXN: Fault.HUGE}, {}
    assert (await client.swap("k", b"1", expected=0)).happened


# -- swaps -----------------------------------------------------------------------------------


async def test_a_swap_whose_answer_is_lost_is_found(nodes, client, store) -> None:
    """It is sent once."""
    for number, fault in enumerate((Fault.LOST, Fault.GARBAGE, Fault.OTHER_JSON)):
        with case(fault):
            nodes[0].requests, nodes[1].requests = [], []
            for node in nodes:
                node.once = {TXN: fault}
            swap = await client.swap(f"k{number}", b"1", expected=0)
            assert swap == Swap(True, KeyValue(f"k{number}", b"1", store.revision), store.revision)
            assert sum(_requests(nodes, TXN)) == 1


async def test_a_swap_that_may_still_happen(nodes, client, store) -> None:
    item = store.swap("k", b"1", 0, 0).found
    for fault in (Fault.RESET, Fault.UNAVAILABLE, Fault.PROXY):
        for key, value, expected in (("k", b"2", 2), ("k", None, 2), ("new", b"2", 0)):
            with case(fault, key, value):
                for node in nodes:
                    node.once, node.requests = {TXN: fault}, []
                with pytest.raises(OutcomeUnknownError, match="may still happen") as caught:
                    await client.swap(key, value, expected=expected)
                assert caught.value.outcome == "unknown"
                assert sum(_requests(nodes, TXN)) == 1
    assert store.list("").items == {"k": item}


async def test_a_swap_that_gets_no_answer_in_time(nodes, client, clock, store) -> None:
    nodes[0].once = {TXN: Fault.LATE}
    swap = client.swap("k", b"1", expected=0)
    assert (await _without_answer(clock, swap, lambda: store.revision == 2)).happened
    nodes[1].once = {TXN: Fault.SILENT}
    swap = _fails(client.swap("k", b"2", expected=2), OutcomeUnknownError)
    error = await _without_answer(clock, swap, lambda: TXN in nodes[1].requests)
    assert "no answer in time" in str(error)
    assert (await client.swap("k", b"3", expected=2)).happened


async def test_a_swap_that_was_not_executed_is_sent_again(nodes, store) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        endpoints = [nobody, *(node.endpoint for node in nodes)]
        async with EtcdKeyValues.open(endpoints) as client:
            nodes[0].faults = {TXN: Fault.BUSY}
            assert (await client.swap("k", b"1", expected=0)).happened
            assert _requests(nodes, TXN) == [1, 1]
        async with EtcdKeyValues.open([nobody], request_seconds=RUNS_OUT_SECONDS) as client:
            with pytest.raises(StorageUnavailableError) as caught:
                await client.swap("k", b"2", expected=2)
            assert caught.value.outcome == "not_written"
    assert store.get("k").value == b"1"


async def test_what_became_of_a_swap_before_others(nodes, client, store) -> None:
    """The first change after the revision that it expected tells."""
    other = Swap(False, KeyValue("k", b"other", 3), 3)
    own = Swap(True, KeyValue("k", b"own", 3), 4)
    cases: list[tuple[Fault, bytes | None, list[bytes | None], Swap | None]] = [
        (Fault.RESET, b"own", [b"other"], other),
        (Fault.RESET, None, [b"other"], other),
        (Fault.RESET, b"own", [b"1", b"2", b"other"], Swap(False, KeyValue("k", b"other", 5), 5)),
        (Fault.LOST, b"own", [b"other"], own),
        (Fault.LOST, b"own", [None], None),
        (Fault.LOST, b"own", [None, b"other"], None),
        (Fault.RESET, b"own", [None], None),
        (Fault.RESET, b"own", [None, b"other"], None),
        (Fault.LOST, None, [], None),
        (Fault.RESET, b"own", [b"%d" % number for number in range(40)], None),
    ]
    for fault, value, later, expected in cases:
        with case(fault, value, later):
            fresh = MemoryKeyValues()
            for node in nodes:
                node.store, node.once = fresh, {TXN: fault}
                node.then = lambda: _write(fresh, later)  # noqa: B023 - called in this round
            assert fresh.swap("k", b"old", 0, 0).revision == 2
            if expected is None:
                with pytest.raises(OutcomeUnknownError):
                    await client.swap("k", value, expected=2)
            else:
                assert await client.swap("k", value, expected=2) == expected


def _write(store: MemoryKeyValues, values: list[bytes | None]) -> None:
    for value in values:
        found = store.get("k")
        assert store.swap("k", value, found.revision if found else 0, 0).happened


async def test_of_a_new_key_others_tell_nothing(nodes, client, store) -> None:
    """The own swap is executed when they are deleted."""
    nodes[0].once = {TXN: Fault.RESET}
    nodes[0].then = lambda: _write(store, [b"other"])
    with pytest.raises(OutcomeUnknownError):
        await client.swap("k", b"own", expected=0)


async def test_a_revision_that_the_key_never_had(nodes, client, store) -> None:
    item = store.swap("k", b"1", 0, 0).found
    store.swap("other", b"", 0, 0)
    nodes[0].once = {TXN: Fault.RESET}
    assert await client.swap("k", b"2", expected=3) == Swap(False, item, 3)


async def test_a_swap_that_cannot_be_looked_up(nodes, client, clock, store) -> None:
    store.swap("k", b"1", 0, 0)
    for fault in (Fault.DENIED, Fault.SILENT):
        with case(fault):
            for node in nodes:
                node.faults, node.requests, node.once = {RANGE: fault}, [], {TXN: Fault.LOST}
            swap = client.swap("k", b"2", expected=store.revision)
            # Both nodes have the same time, in whatever order they are asked.
            error = await _without_answer(
                clock,
                _fails(swap, OutcomeUnknownError),
                *(
                    lambda count=count: sum(_requests(nodes, RANGE)) == count
                    for count in ((1, 2) if fault is Fault.SILENT else ())
                ),
            )
            assert "cannot be read" in str(error)
    for node in nodes:
        node.faults, node.once = {}, {TXN: Fault.RESET}
        node.then = lambda: (_write(store, [b"3", b"4"]), store.compact(store.revision))
    error = await _fails(client.swap("k", b"5", expected=store.revision), OutcomeUnknownError)
    assert "compacted" in str(error)


async def test_refusals_are_final(nodes, client) -> None:
    for path, call in (
        (RANGE, lambda: client.get("k")),
        (TXN, lambda: client.swap("k", b"1", expected=0)),
        (GRANT, lambda: client.grant(1)),
        ("/v3/lease/keepalive", lambda: client.keep_alive(1)),
        ("/v3/lease/revoke", lambda: client.revoke(1)),
        ("/v3/watch", lambda: anext(client.watch("", after=0))),
    ):
        with case(path):
            nodes[0].faults = {path: Fault.DENIED}
            with pytest.raises(AccessDeniedError):
                await call()
            nodes[0].faults = {path: Fault.FULL}
            with pytest.raises(StorageUnavailableError, match="space"):
                await call()
    assert nodes[1].requests == []


# -- watches ---------------------------------------------------------------------------------


async def test_a_watch_leaves_nodes_that_tell_nothing(nodes, store) -> None:
    for fault in (Fault.SILENT, Fault.DEAF, Fault.RESET, Fault.UNAVAILABLE, Fault.GARBAGE):
        with case(fault):
            for node in nodes:
                node.faults, node.requests = {}, []
            nodes[0].faults = {"/v3/watch": fault}
            item = store.swap(f"k{fault.name}", b"1", 0, 0).found
            async with _open(nodes, clock=None, request_seconds=RUNS_OUT_SECONDS) as client:
                watch = client.watch("k", after=item.revision - 1)
                assert [event.now for event in await anext(watch)] == [item]
                await watch.aclose()
            assert nodes[0].requests[0] == "/v3/watch"
            assert _checks(nodes[0]) <= 2


async def test_a_watch_leaves_a_silent_node_that_answers_no_reads(nodes, hasty, store) -> None:
    nodes[0].faults = {"/v3/watch": Fault.DEAF, RANGE: Fault.SILENT}
    item = store.swap("k", b"1", 0, 0).found
    store.swap("k", None, item.revision, 0)
    watch = hasty.watch("", after=item.revision)
    assert [event.now for event in await anext(watch)] == [None]
    await watch.aclose()
    assert _checks(nodes[0]) <= 1


async def test_a_watch_is_begun_anew_after_long_silence(nodes) -> None:
    """A deletion that it does not tell shows nowhere else."""
    async with (
        _open(nodes[:1], clock=None, request_seconds=0.02) as client,
        asyncio.TaskGroup() as group,
    ):
        watching = group.create_task(_next(client.watch("", after=1)))
        await until(lambda: _requests(nodes, RANGE)[0] >= 12)
        watching.cancel()
    assert _checks(nodes[0]) <= 9


def _checks(node: FakeEtcd) -> int:
    """How often a watch made sure at most that a node is well, before the next watch."""
    runs = [0]
    for path in node.requests:
        runs.append(0 if path == "/v3/watch" else runs[-1] + (path == RANGE))
    return max(runs)


async def test_a_quiet_watch_stays_where_it_is(nodes, client, clock, store) -> None:
    watch = client.watch("k", after=1)
    async with asyncio.timeout(60):
        first = store.swap("k", b"1", 0, 0).found
        assert [event.now for event in await anext(watch)] == [first]
        async with asyncio.TaskGroup() as group:
            told = group.create_task(_next(watch))
            await clock.wait_for_sleepers()
            clock.advance(REQUEST_SECONDS)
            await until(lambda: _requests(nodes, RANGE) == [1, 0])
            store.swap("other", b"", 0, 0)
            second = store.swap("k", b"2", first.revision, 0).found
        assert [event.now for event in told.result()] == [second]
    await watch.aclose()
    assert _requests(nodes, "/v3/watch") == [1, 0]


async def test_what_changed_at_one_revision_is_told_together(nodes, timely, store) -> None:
    """Also if it comes in parts, and the connection is lost between them."""
    for node, fault in zip(nodes, ({"/v3/watch": Fault.CUT}, {}), strict=True):
        node.part_events, node.faults = 1, fault
    lease = store.grant(60)
    for name in "abc":
        store.swap(name, b"1", 0, lease)
    store.revoke(lease)
    watch = timely.watch("", after=store.revision - 2)
    told = [await anext(watch), await anext(watch)]
    await watch.aclose()
    assert [[event.key for event in events] for events in told] == [["c"], ["a", "b", "c"]]
    assert min(_requests(nodes, "/v3/watch")) >= 1


async def test_watches_that_nobody_closes(nodes, client, store) -> None:
    """The event loop closes them when it ends."""
    item = store.swap("k", b"1", 0, 0).found
    watches = [client.watch("", after=1) for _ in range(10)]
    asyncio.get_running_loop().kept = watches
    for watch in watches:
        assert [event.now for event in await anext(watch)] == [item]


async def test_a_store_that_went_back(hasty) -> None:
    with pytest.raises(HistoryCompactedError, match="lost its newest"):
        await anext(hasty.watch("", after=100))


# -- users -----------------------------------------------------------------------------------


async def test_users(nodes, store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    address = "etcd://me:secret@" + ",".join(node.endpoint[7:] for node in nodes)
    assert parse_etcd(address) == [node.endpoint for node in nodes]
    async with EtcdKeyValues.open(address) as client:
        assert "secret" not in repr(client)
        assert await client.get("k") is None  # nobody asks for a user
        for node in nodes:
            node.user = ("me", "secret")
        assert (await client.swap("k", b"1", expected=0)).happened
        watch = client.watch("", after=1)
        assert len(await anext(watch)) == 1
        nodes[0].tokens.clear()
        nodes[0].once = {"/v3/auth/authenticate": Fault.RESET}
        assert (await client.swap("k", b"2", expected=2)).happened
        nodes[0].tokens.clear()
        nodes[1].tokens.clear()
        nodes[0].reset_all()
        assert len(await anext(watch)) == 1
        await watch.aclose()
    for options in ({"user": "me", "password": "secret2"}, {}):
        async with _open(nodes, **options) as client:
            calls: list[Callable[[], object]] = [
                lambda: client.get("k"),
                lambda: client.swap("k", b"3", expected=3),
                lambda: anext(client.watch("", after=0)),
            ]
            for call in calls:
                with pytest.raises(AccessDeniedError) as caught:
                    await call()
                assert "secret" not in str(caught.value)
    assert "secret" not in caplog.text
    assert store.get("k").value == b"2"


async def test_a_user_who_may_not_watch(nodes) -> None:
    """A new token is tried once."""
    for node in nodes:
        node.user, node.faults = ("me", "secret"), {"/v3/watch": Fault.DENIED}
    async with _open(nodes, user="me", password="secret") as client:
        await _fails(anext(client.watch("", after=0)), AccessDeniedError)
    assert _requests(nodes, "/v3/watch") == [2, 0]


async def test_a_node_that_gives_no_token(nodes, clock) -> None:
    """Nothing else was sent, so the swap is tried elsewhere."""
    for node in nodes:
        node.user = ("me", "secret")
    nodes[0].faults = {"/v3/auth/authenticate": Fault.SILENT}
    async with _open(nodes, user="me", password="secret") as client:
        swap = client.swap("k", b"1", expected=0)
        assert (await _without_answer(clock, swap, lambda: nodes[0].requests != [])).happened


async def test_tls(store, tmp_path) -> None:
    """A node that is not trusted is not told anything."""
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    node = FakeEtcd(store)
    async with serving(node, tls=context) as endpoints:
        address = f"etcds://{endpoints[0].removeprefix('https://')}"
        async with EtcdKeyValues.open(address, tls=trusting) as client:
            swap = await client.swap("k", b"1", expected=0)
            watch = client.watch("", after=1)
            assert [event.now for event in await anext(watch)] == [swap.found]
            await watch.aclose()
        node.requests = []
        async with EtcdKeyValues.open(address, request_seconds=RUNS_OUT_SECONDS) as client:
            error = await _fails(client.swap("k", b"2", expected=2), StorageUnavailableError)
            assert error.outcome == "not_written"
        assert node.requests == []


# -- opening and closing -----------------------------------------------------------------------


async def test_arguments() -> None:
    context = ssl.create_default_context()
    for endpoints, options in (
        ("etcd://h", {"tls": context}),
        ("etcd://h", {"user": "me"}),
        ("etcd://h", {"password": "secret"}),
        ("etcd://h", {"user": "", "password": "secret"}),
        ("etcd://h", {"request_seconds": 0}),
        ("etcd://h", {"request_seconds": 61}),
        ([], {}),
    ):
        with case(endpoints, options), pytest.raises(InvalidSettingsError):
            EtcdKeyValues.open(endpoints, **options)
    async with EtcdKeyValues.open("etcds://h", tls=context) as client:
        assert repr(client) == "<EtcdKeyValues at https://h:2379>"


async def test_closing_ends_calls(nodes) -> None:
    for node in nodes:
        node.faults = dict.fromkeys((RANGE, TXN, "/v3/watch"), Fault.SILENT)
    for call, error in (
        (lambda client: client.get("k"), WalClosedError),
        (lambda client: client.swap("k", b"1", expected=0), OutcomeUnknownError),
        (lambda client: anext(client.watch("", after=1)), WalClosedError),
    ):
        async with _open(nodes) as client, asyncio.TaskGroup() as group:
            for node in nodes:
                node.requests = []
            waiting = group.create_task(_fails(call(client), error))
            await until(lambda: any(node.requests for node in nodes))
            await client.aclose()
        assert waiting.done()


async def test_closing_ends_a_watch_that_waits_for_the_next_change(nodes, store) -> None:
    item = store.swap("k", b"1", 0, 0).found
    async with _open(nodes) as client:  # time stands still
        watch = client.watch("k", after=item.revision - 1)
        assert [event.now for event in await anext(watch)] == [item]
        waiting = asyncio.get_running_loop().create_task(_fails(anext(watch), WalClosedError))
        await turns()
        await client.aclose()
        await asyncio.wait_for(waiting, 30)


async def test_cancelled_calls_leave_no_connection(nodes) -> None:
    for path, fault, call in (
        (RANGE, Fault.SILENT, lambda client: client.get("k")),
        (TXN, Fault.LATE, lambda client: client.swap("k", b"1", expected=0)),
        (GRANT, Fault.SILENT, lambda client: client.grant(1)),
        ("/v3/lease/keepalive", Fault.LATE, lambda client: client.keep_alive(1)),
        ("/v3/watch", Fault.SILENT, lambda client: anext(client.watch("", after=1))),
        ("/v3/watch", Fault.DEAF, lambda client: anext(client.watch("", after=1))),
    ):
        with case(path, fault):
            before = sockets()
            async with _open(nodes) as client:
                nodes[0].faults, nodes[0].requests = {path: fault}, []
                tasks = asyncio.all_tasks()
                task = asyncio.get_running_loop().create_task(call(client))
                await until(lambda path=path: path in nodes[0].requests)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
                await until(lambda before=before: sockets() <= before)
                await until(lambda tasks=tasks: asyncio.all_tasks() <= tasks)


async def _next(watch):
    return await anext(watch)


async def _fails(call, error: type[Exception]):
    """Return the error that a call raises."""
    with pytest.raises(error) as caught:
        await call
    return caught.value
