"""json_answer: an answer of an HTTP server whose body is JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web


def json_answer(fields: Mapping[str, Any], status: int = 200) -> web.Response:
    """Return an answer that no cache keeps."""
    return web.Response(
        status=status,
        body=json.dumps(fields).encode() + b"\n",
        headers={"Content-Type": "application/json", "Cache-Control": "no-store"},
    )
