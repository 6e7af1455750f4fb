"""A headless Chromium, driven by its DevTools protocol. ``python -m tests.browser`` installs one."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

SKIPPED: Final = 77
NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--window-size=1200,1000",
)
SCREENSHOTS: Final = Path(os.environ.get("WALSTORE_SCREENSHOTS", ".screenshots"))
"""Where pictures are kept after a run."""


def find_chromium() -> str | None:
    """Return the program, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._numbers = itertools.count(1000)
        self.problems: list[str] = []
        """Exceptions and errors that the page reported."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json(
            {"id": number, "sessionId": self._session, "method": method, "params": parameters}
        )
        return await _answer(self._socket, number, self.problems)

    async def open(self, url: str) -> None:
        await self.call("Runtime.enable")
        await self.call("Log.enable")
        await self.call("Page.enable")
        await self.call("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """Return what an expression is; a promise is awaited."""
        found = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    async def until(self, condition: str, seconds: float = 30) -> None:
        """Return when an expression is true in the page."""
        waiting = f"""new Promise(done => {{
            const look = () => {{ try {{ if ({condition}) return done(true); }} catch {{}}
            setTimeout(look, 20); }}; look(); }})"""
        try:
            async with asyncio.timeout(seconds):
                await self.run(waiting)
        except TimeoutError:
            text = await self.run("document.body ? document.body.innerText : ''")
            raise AssertionError(f"never true: {condition}; the page says: {text}") from None

    async def screenshot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        picture = base64.b64decode(found["data"])
        assert picture.startswith(b"\x89PNG")
        SCREENSHOTS.mkdir(exist_ok=True)
        (SCREENSHOTS / f"{name}.png").write_bytes(picture)


@asynccontextmanager
async def open_tab(profile: Path) -> AsyncIterator[Tab]:
    """Yield an empty page of a browser with a profile of its own."""
    program = find_chromium()
    assert program is not None
    browser = await asyncio.create_subprocess_exec(
        program,
        *OPTIONS,
        f"--user-data-dir={profile}",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert browser.stderr is not None
        while line := (await browser.stderr.readline()).decode():
            if found := re.search(r"listening on (ws://\S+)", line):
                break
        else:
            raise AssertionError("the browser ended")
        drain = asyncio.ensure_future(browser.stderr.read())
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(found[1], max_msg_size=1 << 26) as socket,
        ):
            await socket.send_json(
                {"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}
            )
            target = (await _answer(socket, 1, []))["targetId"]
            attach = {"targetId": target, "flatten": True}
            await socket.send_json({"id": 2, "method": "Target.attachToTarget", "params": attach})
            yield Tab(socket, (await _answer(socket, 2, []))["sessionId"])
    finally:
        if browser.returncode is None:
            browser.kill()
        await browser.wait()
    await drain


async def _answer(
    socket: aiohttp.ClientWebSocketResponse, number: int, problems: list[str]
) -> dict[str, Any]:
    async for message in socket:
        found = json.loads(message.data)
        if found.get("method") == "Runtime.exceptionThrown":
            problems.append(str(found["params"]["exceptionDetails"]))
        if found.get("method") == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
            problems.append(found["params"]["entry"]["text"])
        if found.get("id") == number:
            if "error" in found:
                raise AssertionError(found["error"])
            result: dict[str, Any] = found["result"]
            return result
    raise AssertionError("the browser ended")


def main() -> int:
    """Install Debian's Chromium if there is none and this may be done; 77 if there is none after that."""
    if find_chromium() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-qq", "chromium"], check=False)
    if find_chromium() is None:
        print("the page cannot be tested: there is no Chromium (Debian's package: chromium)")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
