"""Every way into a log, and what each may do with files that are damaged or forged."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import logging
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.fuzz import bases
from tests.fuzz.bases import MemoryFileSystem
from tests.fuzz.inputs import Input
from tests.local import stored_batches
from walstore import CorruptionError, Record, Wal, WalError
from walstore.cli import app
from walstore.cli.errors import CORRUPTION, LOCKED, OK
from walstore.core.files.log_files import LogSnapshot
from walstore.positions.cursors.directory import list_cursors
from walstore.testing import ManualClock

# Typer makes the commands out of functions again for each command line, which takes most of the time.
app.get_command = functools.cache(app.get_command)

CPU_SECONDS: Final = 20.0
"""Processor time that one door may take for one input."""
OUTCOMES: Final = frozenset(("not_written", "durable", "unknown"))


class Inspection:
    """One input, and what was wrong with the answers to it."""

    def __init__(self, path: Path, made: Input) -> None:
        """``made`` lies in the directory ``path``."""
        self.path = path
        self.truth = made.truth
        self.is_single = made.is_single
        self.problems: list[str] = []
        self._complaints = _Complaints()

    @contextlib.contextmanager
    def door(self, name: str) -> Iterator[None]:
        """Note whatever comes out of a door that is no typed error, and how long it took."""
        began = time.process_time()
        self._complaints.messages.clear()
        logger = logging.getLogger("asyncio")
        logger.addHandler(self._complaints)
        before = sys.unraisablehook
        sys.unraisablehook = lambda it: self._complaints.messages.append(repr(it.exc_value))
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.judge(name, error)
        finally:
            logger.removeHandler(self._complaints)
            sys.unraisablehook = before
        seconds = time.process_time() - began
        if seconds > CPU_SECONDS:
            self.problems.append(f"{name}: slow: took {seconds:.1f} s of processor time")
        self.problems += [f"{name}: complaint: {text}" for text in self._complaints.messages]

    def check(self, name: str, record: Record, truth: dict[int, Record] | None) -> None:
        """Compare a record with what was acknowledged."""
        if truth is not None and record != truth.get(record.offset):
            self.problems.append(f"{name}: wrong record {record!r:.300}")

    def judge(self, name: str, error: Exception) -> None:
        """Note an error that is no typed one, or says too little."""
        if isinstance(error, WalError):
            if error.outcome not in OUTCOMES:
                self.problems.append(f"{name}: outcome {error.outcome!r} of {error!r}")
            if isinstance(error, CorruptionError) and not error.path:
                self.problems.append(f"{name}: no path in {error!r}")
            return
        frames = traceback.extract_tb(error.__traceback__)
        places = [
            f for f in frames if "/walstore/" in f.filename or "/uploader/" in f.filename
        ] or list(frames)
        where = " < ".join(
            f"{'/'.join(f.filename.split('/')[-3:])}:{f.name}" for f in reversed(places[-3:])
        )
        text = f"{type(error).__name__}: {error}"[:160]
        self.problems.append(f"{name}: untyped: {text} | {where}")


class _Complaints(logging.Handler):
    """What asyncio and the garbage collector can only log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record)[:300])


def view(at: Inspection) -> None:
    """Read the files without a lock, and list the cursors."""
    with at.door("LogSnapshot"):
        found = LogSnapshot.open(at.path)
        for batch in stored_batches(found):
            for record in batch.records():
                at.check("LogSnapshot", record, at.truth)
        found.offset_at(bases.TIME_US)
    with at.door("cursors"):
        for info in list_cursors(MemoryFileSystem(), at.path, bases.TIME_US):
            str(info)


def readonly(at: Inspection) -> None:
    """Follow the files as another process does."""

    async def follow() -> None:
        async with Wal.open_readonly(at.path, clock=ManualClock(now_us=bases.TIME_US)) as log:
            await log.registers()
            await log.streams()
            await log.offset_at(bases.TIME_US)
            async with log.reader("earliest", follow=False, stream="eu") as reader:
                async for record in reader:
                    at.check("readonly", record, at.truth)
            async with log.reader("earliest", follow=False) as reader:
                async for record in reader:
                    at.check("readonly", record, at.truth)

    with at.door("open_readonly"):
        asyncio.run(follow())


def writer(at: Inspection) -> None:
    """Open a copy for writing, use it, and open it again."""
    path = at.path.with_name("written")
    shutil.copytree(at.path, path)
    truth = None if at.truth is None else dict(at.truth)
    with at.door("Wal.open"):
        asyncio.run(_write(at, path, truth))
    shutil.rmtree(path)


async def _write(at: Inspection, path: Path, truth: dict[int, Record] | None) -> None:
    clock = ManualClock(now_us=bases.TIME_US + 1_000_000_000)
    settings, fs = bases.SETTINGS, MemoryFileSystem()
    async with Wal.open(path, settings=settings, clock=clock, fs=fs) as wal:
        is_short = at.is_single and truth is not None and wal.tail <= max(truth)
        if truth is not None and is_short and wal._engine.opened.recovery.missing_from is None:
            at.problems.append(f"Wal.open: lost silently: {wal.tail} of {max(truth) + 1}")
        appended = await wal.append(b"appended", stream="eu")
        if truth is not None:
            for offset in [offset for offset in truth if offset >= appended]:
                del truth[offset]
            truth[appended] = Record(
                appended, b"appended", stream="eu", timestamp_us=clock.now_us()
            )
        await _read(at, wal, truth)
        await wal.producer("p").append(b"produced")
        await wal.rotate()
        await wal.cursors()
        with contextlib.suppress(WalError):
            await wal.trim(wal.head + 3)
    async with Wal.open(path, settings=settings, clock=clock, fs=fs) as wal:
        last = await wal.append(b"again")
        async with wal.reader(last, follow=False) as reader:
            if [record.value async for record in reader] != [b"again"]:
                at.problems.append("Wal.open: what was appended is not there")


async def _read(at: Inspection, wal: Wal, truth: dict[int, Record] | None) -> None:
    """Read all; damage in the middle is reported, and what is behind it is tried as well."""
    try:
        async with wal.reader("earliest", follow=False) as reader:
            async for record in reader:
                at.check("Wal.open", record, truth)
    except CorruptionError as error:
        if not error.path:
            at.problems.append(f"Wal.open: no path in {error!r}")


def verbs(at: Inspection) -> None:
    """Run the verbs that look."""
    verified = run_cli(at, "verify", at.path)[0]
    for verb in ("inspect", "segments", "cursors"):
        run_cli(at, verb, at.path, "--json")
    code, out = run_cli(at, "dump", at.path)
    offsets = set()
    for line in out.splitlines() if at.truth is not None else ():
        row = json.loads(line)
        offsets.add(row["offset"])
        record = (at.truth or {}).get(row["offset"])
        if record is None or row["value"] != _shown(record.value):
            at.problems.append(f"dump: wrong record {row!r:.300}")
    if at.truth is not None and verified == OK and code == CORRUPTION:
        at.problems.append("verify: found nothing, but dump did")


def repair(at: Inspection) -> None:
    """Plan a repair, do it, and open what it made."""
    code, _ = run_cli(at, "repair", at.path)
    path = at.path.with_name("repaired")
    shutil.copytree(at.path, path)
    keep = ("--keep", "before") if code == CORRUPTION and len(at.path.name) % 2 else ()
    code, _ = run_cli(at, "repair", path, "--confirm", *keep)
    if code == OK:
        with at.door("opened after repair"):
            try:
                asyncio.run(_reopen(at, path))
            except CorruptionError as error:
                at.problems.append(f"repair: does not open afterwards: {error!s:.200}")
    shutil.rmtree(path)


async def _reopen(at: Inspection, path: Path) -> None:
    clock = ManualClock(now_us=bases.TIME_US + 1_000_000_000)
    async with Wal.open(path, settings=bases.SETTINGS, clock=clock, fs=MemoryFileSystem()) as wal:
        await wal.append(b"appended")


def _shown(value: bytes) -> Any:
    from walstore.cli.records import ValueEncoding, encoder

    return encoder(ValueEncoding.AUTO)(value)


def run_cli(at: Inspection, *arguments: object) -> tuple[int, str]:
    """Run a command line in this process; return its code and what it wrote."""
    name = " ".join(map(str, (arguments[0], *arguments[2:])))
    out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    code = -1
    with at.door(name), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = app.run([str(argument) for argument in arguments])
        finally:
            text = err.getvalue()
    if code != -1 and not OK <= code <= LOCKED:
        at.problems.append(f"{name}: exit code {code}")
    if "Traceback" in text:
        at.problems.append(f"{name}: traceback: {text[-300:]}")
    return code, out.buffer.getvalue().decode("utf-8", "surrogatepass")  # type: ignore[attr-defined]


DOORS: Final[tuple[Callable[[Inspection], None], ...]] = (view, readonly, verbs, repair, writer)


def inspect(path: Path, made: Input, doors: Any = DOORS) -> list[str]:
    """Open the log in ``path`` through every door; return what was wrong."""
    at = Inspection(path, made)
    before = bases.read_files(path)
    for door in doors:
        door(at)
        if bases.read_files(path) != before:
            at.problems.append(f"{door.__name__}: changed files")
            bases.write_files(path, before)
    return at.problems
