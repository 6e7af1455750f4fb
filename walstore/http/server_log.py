"""ServerLog: what aiohttp logs of a server. What a client sent that is no HTTP is one line of it."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_SENT: Final = (HttpProcessingError, web.RequestPayloadError)
"""Errors that say what is wrong with a request, and nothing about this program."""
_MOST_CHARS: Final = 200


def said_by(error: Exception) -> str:
    """Return what an error of aiohttp says of a request, in one line that is not long."""
    message = error.message if isinstance(error, HttpProcessingError) else str(error)
    return " ".join(message.split())[:_MOST_CHARS]


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """Passes on what is logged; errors in requests at most as information."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message of aiohttp."""
        error = kwargs.get("exc_info")
        if isinstance(error, _SENT):
            del kwargs["exc_info"]
            level = min(level, logging.INFO)
            msg, args = f"{msg}: %s: %s", (*args, type(error).__name__, said_by(error))
        super().log(level, msg, *args, **kwargs)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Return a message as it is."""
        return msg, kwargs
