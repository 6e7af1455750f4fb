"""WriteId: which write rows belong to, and where its objects are under the common prefix. Pure.

A *query* is a series of writes, its *epochs*, each of which is in the logs once or not at all: the
micro-batches of a stream, or a batch job that may be run again. Each run of an epoch is a *job* with a
name of its own, which begins with its start time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from uploader.format.layout import HOLD_FOLDER, MAX_U64, hold_path
from walstore.errors import InvalidSettingsError

STAGING: Final = "sink/staging/"
"""What tasks have put and no driver has published."""
QUERIES: Final = "sink/queries/"
"""Commit records of queries that have a name."""
JOBS: Final = "sink/jobs/"
"""Commit records of jobs that are run once."""
BATCH: Final = "batch"
"""Source of writes that do not belong to a stream."""

HOLD_SECONDS: Final = 7 * 86_400.0
"""How long after its start a job keeps its logs from being collected, unless it is over before."""

_QUERY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_JOB: Final = re.compile(r"([0-9a-f]{16})-[0-9a-f]{16}")
_STAGED: Final = re.compile(r"(0|[1-9][0-9]*)-[0-9]+\.parquet")
_HOLD: Final = re.compile(r"(?:0|[1-9][0-9]*)/" + HOLD_FOLDER + _JOB.pattern + r"\.json")


@dataclass(frozen=True, slots=True)
class WriteId:
    """One run of one epoch."""

    query: str
    """Name of the series; that of the job, if it is run once."""
    epoch: int
    """Number of the write in the series, from 0."""
    job: str
    """Name of this run; see :func:`job_name`."""
    source: str = BATCH
    """Whose epochs these are: the identity of the stream, or ``batch``."""

    def __post_init__(self) -> None:
        """Check the parts; InvalidSettingsError."""
        job_time_us(self.job)
        if self.query != self.job:
            check_query(self.query)
        if not 0 <= self.epoch <= MAX_U64:
            raise InvalidSettingsError(f"an epoch is a number from 0, not {self.epoch}")

    @classmethod
    def once(cls, job: str) -> WriteId:
        """Return the write of a job that is not run again."""
        return cls(job, 0, job)

    @property
    def is_named(self) -> bool:
        """Whether the write may be run again under the same name."""
        return self.query != self.job

    @property
    def record_key(self) -> str:
        """Key of the commit record."""
        return (QUERIES if self.is_named else JOBS) + self.query

    @property
    def staging(self) -> str:
        """Folder of what this run's tasks put."""
        return f"{staging_of(self.query)}{self.epoch:016x}/{self.job}/"


def is_passing(key: str) -> bool:
    """Return whether an object under the common prefix may be deleted once its write is over.

    These are staged objects, holds of jobs, and the records of jobs that are run once. Records of named
    queries stay: they say which epochs are in the logs.
    """
    if _HOLD.fullmatch(key):
        return True
    if key.startswith(JOBS):
        return _JOB.fullmatch(key.removeprefix(JOBS)) is not None
    return key.startswith(STAGING)


def hold_of(key: str) -> str | None:
    """Return the key of the hold that keeps a log from being collected until the job that staged an object is
    over.

    None if the object is not staged for a log.
    """
    staged, found = parse_staged(key), _STAGED.fullmatch(key.rpartition("/")[2])
    if staged is None or found is None:
        return None
    return f"{found[1]}/{hold_path(staged[2])}"


def check_query(query: str) -> str:
    """Return the name of a query; InvalidSettingsError if it cannot be one."""
    if not _QUERY.fullmatch(query) or _JOB.fullmatch(query):
        raise InvalidSettingsError(
            "the name of a query is made of up to 128 letters A to Z, digits, '_', '-' and '.', "
            f"does not begin with '-' or '.', and is not of the form of a job's, not {query!r}"
        )
    return query


def job_name(now_us: int, random: str) -> str:
    """Return the name of a job that begins now; ``random`` is 16 hex digits that no other job has."""
    return f"{now_us:016x}-{random}"


def job_time_us(job: str) -> int:
    """Return when a job began; InvalidSettingsError if that is no name of one."""
    found = _JOB.fullmatch(job)
    if found is None:
        raise InvalidSettingsError(f"not the name of a job: {job!r}")
    return int(found[1], 16)


def staging_of(query: str) -> str:
    """Return the folder of what was staged for a query."""
    return f"{STAGING}{query}/"


def parse_staged(key: str) -> tuple[str, int, str] | None:
    """Return query, epoch and job of a staged object's key, or None for any other key."""
    parts = key.removeprefix(STAGING).split("/")
    if not key.startswith(STAGING) or len(parts) < 4 or not _JOB.fullmatch(parts[2]):
        return None
    try:
        return parts[0], int(parts[1], 16), parts[2]
    except ValueError:
        return None
