"""Google's XML interface as object_store uses it: objects with generations, in the memory of this process.

No emulator has it: fake-gcs-server takes JSON only. Conditions are as Google documents them
(https://cloud.google.com/storage/docs/xml-api/reference-headers#xgoogifgenerationmatch).
"""

from __future__ import annotations

import json
from itertools import count
from typing import Final
from urllib.parse import quote
from xml.sax.saxutils import escape

from aiohttp import web

MOST_BYTES: Final = 64 << 20
CREDENTIALS: Final = json.dumps(
    {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
)
"""Of a service account that asks for no token: GOOGLE_SERVICE_ACCOUNT_KEY."""


class GcsServer:
    """One bucket."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.endpoint_url = ""
        self._generations = count(1_700_000_000_000_000)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_route("*", "/bucket", self._list)
        app.router.add_route("*", "/bucket/{key:.+}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.endpoint_url = f"http://{host}:{port}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        if request.method == "PUT":
            return await self._put(request, key)
        if key not in self.objects:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        if request.method == "DELETE":
            del self.objects[key]
            return web.Response(status=204)
        return self._get(request, key)

    async def _put(self, request: web.Request, key: str) -> web.Response:
        data = await request.read()
        wanted = request.headers.get("x-goog-if-generation-match")
        found = self.objects.get(key, (b"", 0))[1]
        if wanted is not None and int(wanted) != found:
            return web.Response(status=412, text="<Error><Code>PreconditionFailed</Code></Error>")
        self.objects[key] = data, next(self._generations)
        return web.Response(headers=self._headers(key))

    def _get(self, request: web.Request, key: str) -> web.Response:
        data, headers, status = self.objects[key][0], self._headers(key), 200
        if (wanted := request.http_range).start is not None:
            start, size = wanted.start, len(data)
            data, status = data[start : wanted.stop], 206
            if not data:
                return web.Response(status=416, text="<Error><Code>InvalidRange</Code></Error>")
            headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{size}"
        if request.method == "HEAD":
            headers["Content-Length"] = str(len(data))
            data = b""
        return web.Response(body=data, headers=headers, status=status)

    def _headers(self, key: str) -> dict[str, str]:
        generation = self.objects[key][1]
        return {
            "ETag": f'"{generation:x}"',
            "x-goog-generation": str(generation),
            "Last-Modified": "Mon, 01 Jun 2026 00:00:00 GMT",
        }

    async def _list(self, request: web.Request) -> web.Response:
        query = request.query
        after = query.get("continuation-token", query.get("start-after", ""))
        most = int(query.get("max-keys", 1000))
        keys = sorted(key for key in self.objects if key.startswith(query.get("prefix", "")))
        left = [key for key in keys if key.encode() > after.encode()]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key][0])}</Size>"
            f"<ETag>x</ETag><LastModified>2026-06-01T00:00:00.000Z</LastModified></Contents>"
            for key in left[:most]
        )
        if len(left) > most:
            rows += f"<NextContinuationToken>{escape(left[most - 1])}</NextContinuationToken>"
        return web.Response(text=f"<ListBucketResult>{rows}</ListBucketResult>")


def url_of(server: GcsServer, prefix: str) -> str:
    """Return the URL of a place in the bucket."""
    return f"gs://bucket/{quote(prefix)}?endpoint_url={server.endpoint_url}"
