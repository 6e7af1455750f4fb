"""moto as an S3 server over real HTTP.

moto differs from S3 in ways that are made up for here, or matter to nobody:

* moto looks at a condition and puts in two steps without a lock; S3 is atomic. Puts are queued.
* moto hashes an object when it is first asked for the ETag, without a lock, while another thread may read
  the same file: such an ETag is wrong. It is hashed when it is put.
* moto never answers 409, 503 or 412-after-retry; ``test_s3_faults.py`` has a scripted server for those.
* moto takes any credentials.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import FakeKey
from werkzeug.serving import WSGIRequestHandler, make_server


def _hash_at_once() -> None:
    make = FakeKey.__init__

    @functools.wraps(make)
    def make_and_hash(self: FakeKey, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        assert self.etag

    FakeKey.__init__ = make_and_hash


_hash_at_once()


class S3Server:
    """moto behind a lock, which can be told to ignore the conditions of puts as some emulators do."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._server = make_server(
            "127.0.0.1", 0, self._serve, threaded=True, request_handler=_QuietHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.unconditional_buckets: set[str] = set()
        self.requests: list[tuple[str, str]] = []

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        self.requests.append((environ["REQUEST_METHOD"], path))
        if path.split("/")[1] in self.unconditional_buckets:
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if environ["REQUEST_METHOD"] == "PUT":
            with self._lock:
                return list(self._app(environ, start_response))
        return self._app(environ, start_response)


class _QuietHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        pass

    def send_response(self, code: int, message: str | None = None) -> None:
        """Leave out the header Server: moto sends one too, and aiohttp in debug mode refuses two."""
        self.send_response_only(code, message)
