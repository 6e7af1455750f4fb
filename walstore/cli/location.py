"""LOCATION, a log directory, an address or a store URL: the opened log, and PLACE, a place in it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

import walstore
from walstore import ReadableLog, RemoteWal, connect
from walstore.cli.errors import UsageError
from walstore.errors import (
    AccessDeniedError,
    CollectionNotFoundError,
    InvalidSettingsError,
    LogNotFoundError,
)
from walstore.location import is_address, is_url
from walstore.net.wire.address import parse_address
from walstore.records import to_timestamp_us

if TYPE_CHECKING:
    from uploader import Collection

_SCHEMES = ("s3", "s3a", "file", "memory")
TOKEN_VARIABLE: Final = "WALSTORE_TOKEN"  # noqa: S105 - its name


def is_store(location: str) -> bool:
    """As :func:`is_url`, for verbs that a server does not do; UsageError for its address."""
    if is_address(location):
        raise UsageError(
            f"{location} is the address of a server, which does not do this: name the log's directory, or "
            "its store; 'walstore top' and 'walstore tail' take addresses"
        )
    return is_url(location)


async def connect_to(location: str, *, create: bool = False) -> RemoteWal:
    """Connect to a served log, with the token of the environment; UsageError if it has to be named.

    LogNotFoundError if it is not there, unless ``create``.
    """
    with _explained(location):
        return await connect(location, create=create, token=_token())


def _token() -> str | None:
    return os.environ.get(TOKEN_VARIABLE) or None


@contextmanager
def _explained(location: str) -> Iterator[None]:
    """Let errors of connecting to a location say what to do about them on the command line."""
    try:
        yield
    except AccessDeniedError as error:
        if "refused the token" not in str(error):
            raise
        raise AccessDeniedError(
            f"the server at {location} refused the token; put its token into {TOKEN_VARIABLE}"
        ) from error
    except InvalidSettingsError as error:
        if "log=NAME" not in str(error) or not is_address(location):
            raise
        address = parse_address(location)
        if address.log is not None:
            raise
        raise UsageError(
            f"the server at {address} has many logs; name one: {address}?log=NAME"
        ) from None


def to_directory(location: str, verb: str) -> Path:
    """Return a location as a path; UsageError if it is a URL or was meant as something else."""
    if is_store(location):
        raise UsageError(f"{verb} needs a log directory, not a store URL: {location}")
    if not location:
        raise UsageError("the name of the log directory is empty")
    if location.startswith("~"):
        raise UsageError(
            f"{location} was not expanded by the shell: write the path out, or ./{location} for a "
            "directory of that name"
        )
    scheme = location.partition(":")[0]
    if scheme != location and scheme in _SCHEMES:
        raise UsageError(
            f"a store URL begins with {scheme}://; write ./{location} for a directory of that name"
        )
    return Path(location)


def to_url(location: str, verb: str) -> str:
    """Return a location as a store URL; UsageError if it is none, for verbs that need a store."""
    if not is_store(location):
        raise UsageError(
            f"{verb} needs a store URL such as s3://bucket/prefix or file:///directory, "
            f"not {location!r}"
        )
    if location.startswith("memory:"):
        raise UsageError(
            f"a memory:// store is gone when this command ends; {verb} needs s3:// or file:///"
        )
    return location


def own_directory(directory: Path | None, verb: str) -> Path:
    """Return an empty directory for what a verb makes: the given one, created, or a temporary one.

    UsageError if something is in it.
    """
    if directory is None:
        return Path(tempfile.mkdtemp(prefix=f"walstore-{verb}-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; the {verb} needs a directory of its own")
    return directory.resolve()


def fresh_prefix(url: str, verb: str) -> str:
    """Return a store URL with a last component that no other run uses."""
    name = f"{verb}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}"
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


@asynccontextmanager
async def open_location(location: str) -> AsyncIterator[ReadableLog]:
    """Open the log at a directory, an address or a store URL for reading; raises the typed errors of each."""
    if not is_url(location):
        to_directory(location, "this")
    async with AsyncExitStack() as stack:
        with _explained(location):
            log = await stack.enter_async_context(walstore.open(location, token=_token()))
        yield log


@asynccontextmanager
async def open_collection(url: str) -> AsyncIterator[Collection]:
    """Open the versioned collection at a store URL; CollectionNotFoundError as of :func:`at_collection`."""
    from uploader import Collection

    async with at_collection(url), Collection.open(url) as collection:
        yield collection


@asynccontextmanager
async def at_collection(url: str) -> AsyncIterator[None]:
    """Let a CollectionNotFoundError of the block say what is at the URL instead, or how to make one."""
    try:
        yield
    except CollectionNotFoundError as error:
        text = str(error).removesuffix("; create it with create=True")
        if text == str(error):  # it was deleted
            raise
        if await is_log(url):
            text = f"there is a log at {error.location}, no collection"
        raise CollectionNotFoundError(
            f"{text}; 'walstore collection create' makes one", location=error.location
        ) from None


async def is_log(url: str) -> bool:
    """Return whether a stored log is there, rather than nothing or something else."""
    from uploader import CloudLog

    try:
        async with CloudLog.open(url):
            return True
    except LogNotFoundError:
        return False


_FIRST_STEP = 4096
"""How many records are looked at first to find the last ones of a stream."""


@dataclass(frozen=True, slots=True)
class StartPlace:
    """A place in a log, not yet resolved to an offset. Exactly one field is set."""

    word: str | None = None
    """``earliest`` or ``latest``."""
    offset: int | None = None
    last: int | None = None
    """So many records before the end."""
    timestamp_us: int | None = None

    async def resolve(
        self, log: ReadableLog, stream: str | None = None, *, limit: int | None = None
    ) -> int:
        """Return the offset in ``log``; the last N records are those of the stream, if one is named.

        With ``limit`` the log ends there: a writer may append meanwhile.
        """
        if limit is None:
            limit = log.limit
        if self.offset is not None:
            return self.offset
        if self.last is not None and stream is not None:
            return await _last_of_stream(log, limit, stream, self.last)
        if self.last is not None:
            return max(log.head, limit - self.last)
        if self.timestamp_us is not None:
            return min(await log.offset_at(self.timestamp_us), limit)
        return log.head if self.word == "earliest" else limit


def check_stream(name: str | None) -> str | None:
    """Return what was given with ``--stream``; UsageError if no stream can have that name."""
    if name == "":
        raise UsageError("a stream name is never empty; leave --stream out to see all records")
    return name


async def _last_of_stream(log: ReadableLog, limit: int, stream: str, count: int) -> int:
    """Return the offset of the last record but ``count`` of a stream, or that of its first one.

    Looks backwards, at four times as many records each time, at none twice.
    """
    stop, step, missing = limit, _FIRST_STEP, count
    while missing > 0 and stop > log.head:
        start = max(log.head, stop - step)
        offsets: list[int] = []
        async for batch in log.reader(start, stop=stop, stream=stream, follow=False).batches():
            offsets += batch.offsets
        if len(offsets) >= missing:
            return offsets[-missing]
        missing -= len(offsets)
        stop, step = start, step * 4
    return limit if count == 0 else log.head


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_place(text: str, *, now: datetime | None = None) -> StartPlace:
    """Parse what was given with ``--from`` or ``--to``; UsageError if it is nothing of the kind.

    ``now`` is the moment to which ``-1h`` and ``yesterday`` relate, by default this one.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return StartPlace(word=word)
    if re.fullmatch(r"\d{1,19}", word):
        return StartPlace(offset=int(word))
    if re.fullmatch(r"-\d{1,19}", word):
        return StartPlace(last=-int(word))
    try:
        moment = _relative(word, now or datetime.now(UTC)) or datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"not a place in a log: {text!r}; give 'earliest', 'latest', an offset, -N for the last "
            "N records, or a time such as 2025-06-01T12:00:00Z, -90m, -2d or yesterday"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return StartPlace(timestamp_us=max(to_timestamp_us(moment), 0))


def _relative(word: str, now: datetime) -> datetime | None:
    """Return the time that ``-1h``, ``now``, ``today`` or ``yesterday`` means; None for any other word.

    Days begin at midnight UTC, as times without a zone are in UTC.
    """
    if word == "now":
        return now
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("today", "yesterday"):
        return midnight - timedelta(days=word == "yesterday")
    found = re.fullmatch(r"-(\d{1,18})([smhdw])", word)
    if found is None:
        return None
    try:
        return now - timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
