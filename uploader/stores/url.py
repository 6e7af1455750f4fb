"""Store URLs, which name an object store.

``file:///absolute/path``, ``s3://bucket/prefix?endpoint_url=…&region=…``, ``gs://bucket/prefix``,
``az://container/prefix``, ``memory://name``. Owns the syntax; opens nothing. No error repeats a URL or a
value, because a secret may have slipped in.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from uploader.stores.hedged import HedgedStore, HedgeSettings
from uploader.stores.local import LocalStore
from uploader.stores.memory import MemoryStore
from uploader.stores.obstore_store import ObstoreStore, Scheme
from uploader.stores.port import ObjectStore, check_key
from uploader.stores.s3 import S3Store
from walstore.errors import InvalidSettingsError

SCHEMES = ("file", "s3", "gs", "az", "memory")
OPTIONS = ("endpoint_url", "max_connections", "hedges_per_second")
S3_OPTIONS = (*OPTIONS, "region", "client")
S3_CLIENTS = ("aioboto3", "obstore")

_METHODS = ("get", "get_range", "head", "list", "put_if_absent", "put_if_match", "delete", "aclose")
_WHOLE = re.compile(r"[0-9]{1,5}")
_DECIMAL = re.compile(r"[0-9]{1,5}(\.[0-9]{1,5})?")
_OPTION = re.compile(r"[a-z_]{1,32}")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


def open_store(url: str) -> ObjectStore:
    """Return the store a URL names. Does no I/O; the first call on the store does.

    * ``file:///absolute/path``: a directory, created by the first write.
    * ``s3://bucket/prefix``: an existing bucket and a prefix in it. ``endpoint_url`` names a server other
      than Amazon's, ``region`` the bucket's region. ``max_connections`` (32) bounds the requests in flight;
      ``hedges_per_second`` late requests are sent a second time, see ``hedged.py``; ``client=obstore``
      sends them by :class:`ObstoreStore`, which takes less processor time. These three are not part of the
      store's ``url``: they do not locate it. Credentials come from the environment only.
    * ``gs://bucket/prefix``, ``az://container/prefix``: the same in Google Cloud Storage and Azure Blob
      Storage, of the account that the environment names. Without ``region`` and ``client``.
    * ``memory://name``: shared by all stores of that name in this process, and lost when it ends.

    InvalidSettingsError for any other scheme or option, and for a URL that holds credentials. TypeError for
    anything but a str.
    """
    _check_text(url)
    try:
        parts = urlsplit(url)
        has_login = "@" in parts.netloc
    except ValueError:
        raise InvalidSettingsError("the store URL cannot be parsed; check its brackets") from None
    if parts.scheme not in SCHEMES or not url[len(parts.scheme) :].startswith("://"):
        raise InvalidSettingsError(
            "a store URL must begin with file:///absolute/path, s3://bucket, gs://bucket, az://container or "
            "memory://name" + (f", not {parts.scheme}:" if parts.scheme else "")
        )
    if has_login:
        raise InvalidSettingsError(
            "a store URL must not hold credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            " in the environment"
        )
    if parts.fragment:
        raise InvalidSettingsError("a # in a store URL must be written %23")
    if parts.scheme in {"s3", "gs", "az"}:
        return _open_bucket(parts)
    _options(parts, allowed=())
    return _open_local(parts) if parts.scheme == "file" else _open_memory(parts)


def chosen_store(url: str, store: ObjectStore | None) -> ObjectStore:
    """Return the caller's store if given, else the one that ``url`` names.

    TypeError for a ``url`` that is not a str, and for a ``store`` that is not a store.
    """
    _check_text(url)
    if store is None:
        return open_store(url)
    missing = [name for name in _METHODS if not callable(getattr(store, name, None))]
    if isinstance(store, type) or missing:
        raise TypeError(f"store must be an object store or None, not {_named(store)}")
    return store


def _check_text(url: object) -> None:
    if not isinstance(url, str):
        hint = ": a directory is named by path.absolute().as_uri()" if isinstance(url, Path) else ""
        raise TypeError(f"a store URL must be a str, not {_named(url)}{hint}")


def _named(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _open_local(parts: SplitResult) -> LocalStore:
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
        raise InvalidSettingsError("a file: URL needs an absolute path: file:///absolute/path")
    # normpath keeps two leading slashes, which mean nothing here.
    return LocalStore(Path("/" + posixpath.normpath(path).lstrip("/")))


def _open_memory(parts: SplitResult) -> MemoryStore:
    name = (parts.netloc + parts.path).rstrip("/")
    if not name:
        raise InvalidSettingsError("a memory: URL needs a name: memory://name")
    return MemoryStore(name)


def _open_bucket(parts: SplitResult) -> ObjectStore:
    scheme, bucket = parts.scheme, parts.netloc
    if not _BUCKET.fullmatch(bucket):
        raise InvalidSettingsError(
            f"the store URL needs a bucket, of letters, digits, dots and dashes: "
            f"{scheme}://bucket/prefix"
        )
    prefix = unquote(parts.path).strip("/")
    if prefix:
        check_key(prefix)
    options = _options(parts, allowed=S3_OPTIONS if scheme == "s3" else OPTIONS)
    endpoint_url = options.get("endpoint_url")
    given: dict[str, Any] = {
        "prefix": prefix,
        "endpoint_url": None if endpoint_url is None else _checked_endpoint(endpoint_url),
        "region": options.get("region"),
        "max_connections": int(_number(options, "max_connections", whole=True, default=32)),
    }
    client = options.get("client", "aioboto3" if scheme == "s3" else "obstore")
    if client not in S3_CLIENTS:
        raise InvalidSettingsError(f"the option client must be {' or '.join(S3_CLIENTS)}")
    store: ObjectStore
    if client == "aioboto3":
        store = S3Store(bucket, **given)
    else:
        store = ObstoreStore(cast("Scheme", scheme), bucket, **given)
    if "hedges_per_second" not in options:
        return store
    hedges_per_second = _number(options, "hedges_per_second", whole=False, default=0)
    return HedgedStore(store, HedgeSettings(hedges_per_second=hedges_per_second))


def _number(options: dict[str, str], name: str, *, whole: bool, default: int) -> float:
    """Return a positive number; the error does not repeat the text."""
    text = options.get(name, str(default))
    if not (_WHOLE if whole else _DECIMAL).fullmatch(text) or not float(text):
        kind = "whole number" if whole else "number"
        raise InvalidSettingsError(f"the option {name} must be a {kind} above 0")
    return float(text)


def _checked_endpoint(endpoint_url: str) -> str:
    try:
        parts = urlsplit(endpoint_url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good, parts = False, None
    if not is_good or parts is None or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidSettingsError(
            "endpoint_url must be of the form http(s)://host:port, without credentials"
        )
    return endpoint_url.rstrip("/")


def _options(parts: SplitResult, *, allowed: Collection[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in allowed:
            shown = f" {name}" if _OPTION.fullmatch(name) else ""
            raise InvalidSettingsError(
                f"{parts.scheme}: URLs have no such option{shown}; allowed:"
                f" {', '.join(allowed) or 'none'}"
            )
        if name in options or not value:
            raise InvalidSettingsError(f"the option {name} must be given once, with a value")
        options[name] = value
    return options
