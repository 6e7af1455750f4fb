"""The page in a real browser: what a person sees, finds and reads there."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import aiohttp
import pyarrow as pa
import pytest

from tests.browser import Tab, find_chromium, open_tab
from tests.walstore.cluster.machines import Machines
from tests.walstore.cluster.replication.cluster import Cluster
from uploader import CloudTier, Collection
from walstore import Settings, StorageUnavailableError, Wal, WalStore
from walstore.http import HttpServer, HttpSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.page,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        find_chromium() is None, reason="there is no Chromium: make test-page gets it"
    ),
]
SMALL = Settings(segment_bytes=64 << 10, checkpoint_bytes=64 << 10)


async def text_of(tab: Tab, place: str) -> str:
    found = await tab.run(f"document.querySelector({place!r}).innerText")
    return str(found)


async def boxes(tab: Tab, kind: str) -> list[tuple[float, float]]:
    """Left and right ends of the shapes of a kind on the axis, as parts of its width."""
    script = f"""[...document.querySelectorAll('#axis .{kind}')].map(one => {{
        const all = document.querySelector('#axis').getBoundingClientRect();
        const box = one.getBoundingClientRect();
        return [(box.left - all.left) / all.width, (box.right - all.left) / all.width]; }})"""
    found: list[tuple[float, float]] = await tab.run(script)
    return found


async def test_a_log_is_drawn_to_scale_and_its_records_are_found(tmp_path: Path) -> None:
    tier = CloudTier((tmp_path / "store").as_uri())
    async with (
        Wal.open(tmp_path / "orders", settings=SMALL, tier=tier) as wal,
        HttpServer.open(wal, "127.0.0.1:0") as server,
        open_tab(tmp_path / "profile") as tab,
    ):
        for n in range(1, 1001):
            wal.append_nowait(b'{"order": %d}' % n + b" " * 200, key=b"customer-%d" % (n % 7))
        await wal.append(b"<script>document.title = 'owned'</script>", durability="cloud")
        await (await wal.cursor("billing")).commit(601)
        async with wal.group("workers", start=751) as group:
            await group.ack(await group.fetch(10))
            await group.fetch(3)
            await tab.open(server.addresses[0])
            await tab.until("document.body.dataset.looks > 2")
            await tab.until("document.querySelectorAll('#records tbody tr').length == 50")

            segments, stored, cursors = [
                await boxes(tab, kind) for kind in ("segment", "stored", "cursor")
            ]
            assert len(segments) == len(wal.extents().segments) > 2
            assert segments[0][0] == pytest.approx(0, abs=0.01)
            assert segments[-1][1] == pytest.approx(1, abs=0.01)
            assert stored[-1][1] == pytest.approx(1, abs=0.01)
            assert cursors[0][0] == pytest.approx(0.6, abs=0.01)
            deletable = await boxes(tab, "deletable")
            assert deletable
            assert all(right <= 0.6 for _, right in deletable)

            assert "holds retention back" in await text_of(tab, "#cursors tbody tr")
            row = (await text_of(tab, "#groups tbody tr")).split()
            assert (row[0], row[1], row[3]) == ("workers", "761", "3")
            assert "<script>" in await text_of(
                tab, "#records tbody tr:last-child .value:last-child"
            )
            assert await tab.run("document.title") == "walstore"
            await tab.screenshot("log")

        await browse(tab, **{"from": "1", "key": "customer-3"})
        await tab.until("document.querySelector('#records tbody td').innerText == '3'")
        assert (await text_of(tab, "#records tbody tr:nth-child(2)")).split()[0] == "10"
        first = int((await text_of(tab, "#records tbody tr")).split()[0])
        await tab.run("document.querySelector('#newer').click()")
        await tab.until(f"Number(document.querySelector('#records tbody td').innerText) > {first}")
        await browse(tab, **{"from": "nonsense", "key": ""})
        await tab.until("document.querySelector('#state').innerText.includes('from is an offset')")
        assert [one for one in tab.problems if "400" not in one] == []


async def test_a_phone_shows_all_of_it_in_its_width(tmp_path: Path) -> None:
    """Nothing is wider than the screen, and nothing is screens and screens away."""
    width, height = 390, 844
    async with (
        WalStore.open(tmp_path / "store", settings=SMALL) as store,
        HttpServer.open(store, "127.0.0.1:0") as server,
        open_tab(tmp_path / "profile") as tab,
    ):
        wal = await store.wal("a-log-with-a-name-that-is-longer-than-a-phone-is-wide/and-longer")
        for number in range(60):
            headers = {"content-type": b"text/plain", "trace": b"0" * 200}
            await wal.append(b"x" * 4000, key=b"key-%d" % number * 20, stream="s", headers=headers)
        for number in range(30):
            await (await wal.cursor(f"cursor-of-a-service-with-a-long-name-{number}")).commit(
                number + 1
            )
        async with wal.group("workers-with-a-long-name"):
            await tab.call(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=height, deviceScaleFactor=2, mobile=True,
            )  # fmt: skip
            await tab.open(server.addresses[0])
            await tab.until("document.body.dataset.looks > 1")
            await tab.until("document.querySelectorAll('#records tbody tr').length == 15")
            page = "document.documentElement"
            assert await tab.run(f"{page}.clientWidth") == width
            assert await tab.run(f"{page}.scrollWidth") <= width
            assert await tab.run(f"{page}.scrollHeight") <= 5 * height
            wide = """[...document.querySelectorAll('body *:not(svg *)')].filter(one =>
                one.getBoundingClientRect().right > innerWidth + 1 || one.scrollWidth > one.clientWidth + 1
                && getComputedStyle(one).overflowX == 'auto').map(one => one.outerHTML.slice(0, 80))"""
            assert await tab.run(wide) == []
            times = "[...document.querySelectorAll('#records td.time')].map(one => one.innerText)"
            assert all(text.endswith(" UTC") for text in await tab.run(times))
            await tab.screenshot("phone")
            await tab.run("document.querySelector('#older').click()")
            await tab.until("document.querySelector('#records tbody td').innerText == '31'")
            await tab.run("document.querySelector('#newer').click()")
            await tab.until("document.querySelector('#records tbody td').innerText == '46'")
        assert tab.problems == []


async def test_an_event_source_goes_on_where_it_was(tmp_path: Path) -> None:
    """The browser's own, with tickets, across time-outs of the server."""
    settings = HttpSettings(event_seconds=0.2)
    async with (
        Wal.open(tmp_path / "orders") as wal,
        HttpServer.open(wal, "127.0.0.1:0", token="secret", settings=settings) as server,
        open_tab(tmp_path / "profile") as tab,
    ):
        await wal.append(b"1")
        await tab.open(server.addresses[0])
        await tab.until("!document.querySelector('#login').hidden")
        await tab.run("""(async () => {
            const headers = {Authorization: 'Bearer secret'};
            const answer = await fetch('/v1/ticket/orders', {method: 'POST', headers});
            const {ticket} = await answer.json();
            window.got = []; window.opened = 0;
            const source = new EventSource(`/v1/stream/orders?offset=-1&live=sse&ticket=${ticket}`);
            source.addEventListener('data', (event) => got.push(atob(event.data)));
            source.onopen = () => { opened += 1; }; })()""")
        await tab.until("opened == 2 && got.length == 1")
        await wal.append(b"2")
        await tab.until("opened == 3 && got.length == 2")
        assert await tab.run("got") == ["1", "2"]


async def test_a_stream_of_html_runs_nothing(tmp_path: Path) -> None:
    async with (
        WalStore.open(tmp_path / "store") as store,
        HttpServer.open(store, "127.0.0.1:0") as server,
        open_tab(tmp_path / "profile") as tab,
        aiohttp.ClientSession() as session,
    ):
        script = "<script>document.title = 'owned'; fetch('/v1/stream/x', {method: 'PUT'})</script>"
        svg = f"<svg xmlns='http://www.w3.org/2000/svg'>{script}</svg>"
        xhtml = f"<html xmlns='http://www.w3.org/1999/xhtml'><body>{script}</body></html>"
        for kind, text in (
            ("text/html", f"<p>shown</p><img src=x onerror='document.title=1'>{script}"),
            ("image/svg+xml", svg),
            ("application/xhtml+xml", xhtml),
        ):
            url = f"{server.addresses[0]}/v1/stream/{kind}"
            async with session.put(url, data=text, headers={"Content-Type": kind}) as answer:
                assert answer.status == 201
            await tab.open(url)
            loaded = f"location.pathname.endsWith({kind!r}) && document.readyState == 'complete'"
            while not await tab.run(loaded):  # a timer of the page would not run, either
                pass
            assert not await tab.run("document.title"), kind
        assert not await store.exists("x")


async def browse(tab: Tab, **fields: str) -> None:
    for name, value in fields.items():
        await tab.run(f"document.querySelector('#browse [name={name}]').value = {value!r}")
    await tab.run("document.querySelector('#browse button').click()")


async def test_the_pace_is_seen_as_it_changes(tmp_path: Path) -> None:
    async with (
        Wal.open(tmp_path / "orders") as wal,
        HttpServer.open(wal, "127.0.0.1:0") as server,
        open_tab(tmp_path / "profile") as tab,
    ):
        await wal.append(b"first")
        await tab.open(server.addresses[0])
        await tab.until("document.body.dataset.looks > 1")

        async def produce() -> None:
            while True:
                await wal.append_many([b"x" * 100] * 50)

        producing = asyncio.create_task(produce())
        rate = "Number(document.querySelectorAll('.figure b')[1].innerText.replace(/\\D/g, ''))"
        await tab.until(f"{rate} > 100")
        producing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await producing
        await tab.until(f"{rate} == 0")
        await tab.screenshot("pace")
        assert tab.problems == []


async def test_logs_and_collections_are_chosen_from_a_list(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    async with (
        WalStore.open(tmp_path / "store") as store,
        Collection.open((tmp_path / "people").as_uri(), create=True, schema=schema) as people,
        HttpServer.open(store, "127.0.0.1:0", collections={"people": people}) as server,
        open_tab(tmp_path / "profile") as tab,
    ):
        for name in ("audit", "shop/orders ü"):
            await (await store.wal(name)).append(name.encode())
        writer = people.writer()
        await writer.append(pa.table({"id": [1, 2]}), lower=0, upper=7)
        async with await people.reader("report"):
            await tab.open(server.addresses[0])
            await tab.until("document.querySelectorAll('#logs a').length == 3")
            await tab.until("document.querySelector('#name').innerText == 'audit'")
            await tab.run("document.querySelectorAll('#logs a')[1].click()")
            await tab.until("document.querySelector('#name').innerText == 'shop/orders ü'")
            await tab.until(
                "document.querySelector('#records').innerText.includes('shop/orders ü')"
            )
            await tab.run("document.querySelectorAll('#logs a')[2].click()")
            await tab.until("document.querySelector('#collection-name').innerText == 'people'")
            assert "holds back the rest" in await text_of(tab, "#readers")
            assert (await text_of(tab, "#layers tbody tr")).split()[:3] == ["pending", "1", "2"]
            await tab.screenshot("collection")
        assert tab.problems == []


async def test_a_token_is_asked_for_and_remembered(tmp_path: Path) -> None:
    async with (
        Wal.open(tmp_path / "orders") as wal,
        HttpServer.open(wal, "127.0.0.1:0", token="secret") as server,
        open_tab(tmp_path / "profile") as tab,
    ):
        await wal.append(b"a record")
        await tab.open(server.addresses[0])
        await tab.until("!document.querySelector('#login').hidden")
        assert await tab.run("document.querySelectorAll('#logs a').length") == 0
        for token in ("wrong", "secret"):
            await tab.run(f"document.querySelector('#token').value = {token!r}")
            await tab.run("document.querySelector('#login button').click()")
        await tab.until("document.querySelector('#login').hidden")
        await tab.until("document.querySelector('#records').innerText.includes('a record')")
        await tab.run("location.reload()")
        await tab.until("document.querySelector('#records').innerText.includes('a record')")


async def test_a_server_that_is_gone_is_told(tmp_path: Path) -> None:
    async with open_tab(tmp_path / "profile") as tab, Wal.open(tmp_path / "orders") as wal:
        async with HttpServer.open(wal, "127.0.0.1:0") as server:
            await tab.open(server.addresses[0])
            await tab.until("document.body.dataset.looks > 1")
        await tab.until("document.querySelector('#state').className == 'bad'")


async def test_the_copies_of_a_replicated_log(tmp_path: Path) -> None:
    """Who is there and who is not, and why nothing is acknowledged."""
    async with Cluster(tmp_path) as cluster:
        wal = await cluster.primary(0)
        await wal.append_many([b"v"] * 4)
        await cluster.machines[1].stop()
        async with (
            wal,
            HttpServer.open(wal, "127.0.0.1:0") as server,
            open_tab(tmp_path / "profile") as tab,
        ):
            await wal.append(b"v")
            await tab.open(server.addresses[0])
            rows = "document.querySelector('#copies tbody').innerText.split('\\n')"
            await tab.until("document.querySelectorAll('#copies tbody tr').length == 2")
            await tab.until(f"/no: .+\\t5\\t1$/.test({rows}[0])")
            await tab.until(f"{rows}[1].endsWith('yes\\t6\\t0')")
            await cluster.machines[2].stop()
            async with cluster.losing_patience(wal):
                with pytest.raises(StorageUnavailableError):
                    await wal.append(b"w")
            await tab.until("document.querySelector('#copies').innerText.includes('1 of 3 copies')")
            await tab.screenshot("copies")
            for number in (1, 2):
                await cluster.machines[number].start()
            await tab.until("!document.querySelector('#copies').innerText.includes('1 of 3')")


async def test_a_cluster(tmp_path: Path) -> None:
    """Machines, who leads, which copies are there; and a log that another machine leads."""
    async with Machines(tmp_path, web={}) as machines:
        await machines.apply(labels={"env": "prod"})
        leader = await machines.led()
        async with await machines.connect() as remote:
            await remote.append_many([b"v"] * 4)
        other = next(one for one in machines.all if one is not leader)
        assert other.web is not None
        async with open_tab(tmp_path / "profile") as tab:
            await tab.open(other.web.addresses[0])
            await tab.until("document.querySelectorAll('#machines tbody tr').length == 3")
            await tab.until("document.querySelector('#machines').innerText.includes('this one')")
            led = "document.querySelector('#led').innerText"
            await tab.until(f"{led}.includes('3 of 3') && {led}.includes('env=prod')")
            await tab.until("!document.querySelector('#led .bad')")
            await tab.screenshot("cluster")
            third = next(one for one in machines.all if one not in (leader, other))
            third.keys.cut_off = True
            machines.end_lease(third)
            await tab.until("document.querySelector('#led .bad').innerText.endsWith('away')")
            third.keys.cut_off = False
            await tab.until("!document.querySelector('#led .bad')")
            await machines.apply(suspended=True)
            await tab.until(f"{led}.includes('suspended') && !document.querySelector('#led .bad')")
            await machines.apply(suspended=False)
            await tab.until(f"!{led}.includes('suspended') && !document.querySelector('#led .bad')")
            await tab.run("location.hash = '#log/orders'")
            await tab.until("document.querySelectorAll('#records tbody tr').length == 4")
            await tab.until("document.querySelectorAll('#copies tbody tr').length == 2")
