"""Every verb on everything that is no log: one line, a documented code, and nothing is made."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest

from tests.cases import case
from tests.waiting import RUNS_OUT_SECONDS
from tests.walstore.cli.conftest import Cli, fill
from tests.walstore.cli.test_app import COLLECTION_VERBS, VERBS
from walstore import connect
from walstore.cli import location as locations

DIRECTORY = ("ls", "segments", "repair", "upload", "rotate", "trim")
"""Verbs that need a log directory."""
STORE = ("fragments", "manifest", "scrub", "rebuild", "restore", "fork", "gc", "seal", "destroy")
"""Verbs that need a log in a store."""
READERS = ("tail", "dump", "inspect", "cursors", "check", "verify", "top", "group")
EITHER = (*READERS, "sidecar")
OTHER = ("append", "bench")
"""Append makes what is not there, bench takes any directory."""
SERVED = ("trim", "rotate", "inspect", "check", "cursors")
"""A server does these, too."""
COLLECTION = tuple(f"collection {verb}" for verb in COLLECTION_VERBS)
"""Verbs that need a versioned collection in a store, but for the one that makes it."""

BEFORE = {"gc": ("plan",), "collection materialize": ("log",)}
AFTER = {
    "upload": ("file:///nowhere/store",),
    "restore": ("restored",),
    "fork": ("file:///nowhere/fork",),
    "trim": ("--before", "1"),
    "bench": ("--seconds", "0.1"),
    "top": ("--count", "1"),
    "sidecar": ("--to", "table"),
    "collection create": ("--column", "a:int64"),
    "collection write": ("-",),
    "collection expire": ("report",),
    "collection materialize": ("--envelope", "append"),
}

NO_DIRECTORIES = (
    ("", 1, "is empty"),
    ("~/log", 1, "~/log was not expanded by the shell"),
    ("s3:bucket/log", 1, "a store URL begins with s3://"),
    ("file:/log", 1, "a store URL begins with file://"),
    ("loop", 1, "loop"),
    ("a" * 300, 1, "aaa"),
)
NO_LOGS = (("missing", 3, "there is no log at "), ("file", 3, "file"))
NO_STORES = (
    ("s3://", 1, "needs a bucket"),
    ("file://host/x", 1, "needs an absolute path"),
    ("http://host/x", 1, "must begin with"),
    ("://", 1, "must begin with"),
    ("file:///x?bogus=1", 1, "bogus"),
)


def test_every_verb_is_here() -> None:
    named = {*VERBS, "rebuild", "sidecar"} - {
        "demo",
        "prove",
        "soak",
        "collection",
        "logs",
        "serve",
    }
    assert {*DIRECTORY, *STORE, *EITHER, *OTHER} == named


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a log, a file, and a link that leads to itself."""
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    asyncio.run(fill(path / "log", records=3))
    (path / "file").write_text("something else")
    (path / "loop").symlink_to("loop")
    return path


def _check(cli: Cli, verb: str, location: str, codes: set[int], words: str) -> None:
    before = sorted(os.listdir())
    done = cli(*verb.split(), *BEFORE.get(verb, ()), location, *AFTER.get(verb, ()), stdin=b"a\n")
    told = f"walstore {verb} {location!r}: {done}"
    assert done.code in codes, told
    assert done.out == b"", told
    assert len(done.err.splitlines()) == 1, told
    assert words in done.err, told
    assert sorted(os.listdir()) == before, told


def test_verbs_on_directories(cli: Cli, place: Path) -> None:
    for verb in (*DIRECTORY, *READERS):
        for location, code, words in (*NO_DIRECTORIES, *NO_LOGS):
            _check(cli, verb, location, {code}, words)


def test_verbs_that_take_any_directory(cli: Cli, place: Path) -> None:
    for verb in OTHER:
        for location, code, words in NO_DIRECTORIES:
            _check(cli, verb, location, {code, 3} if verb == "bench" else {code}, words)
        _check(cli, verb, "file", {1, 3}, "file")


@pytest.mark.slow
def test_verbs_on_stores(cli: Cli, place: Path) -> None:
    for verb in (*STORE, *READERS):
        for location, code, words in NO_STORES:
            _check(cli, verb, location, {code}, words)
        for path in (place / "missing", place / "file"):
            words = "there are no fragments" if verb == "rebuild" else "there is no log at"
            _check(cli, verb, path.as_uri(), {3}, words)


def test_verbs_on_collections(cli: Cli, place: Path) -> None:
    for verb in COLLECTION:
        for location, code, words in NO_STORES:
            _check(cli, verb, location, {code}, words)
        if verb != "collection create":
            for path in (place / "missing", place / "file", place / "log"):
                _check(cli, verb, path.as_uri(), {3}, "there is no collection at")


def test_a_store_instead_of_a_directory(cli: Cli, place: Path) -> None:
    for verb in DIRECTORY:
        _check(cli, verb, (place / "log").as_uri(), {1}, f"{verb} needs a log directory, not")


def test_a_server_instead_of_a_log(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = partial(connect, connect_seconds=RUNS_OUT_SECONDS)
    monkeypatch.setattr(locations, "connect", impatient)
    for address in ("tcp://127.0.0.1:1", "unix:///nowhere"):
        for verb in {*DIRECTORY, *STORE, *COLLECTION, "verify"} - set(SERVED):
            _check(cli, verb, address, {1}, "is the address of a server")
        for verb in SERVED:
            _check(cli, verb, address, {1}, "no server at ")


def test_a_directory_instead_of_a_store(cli: Cli, place: Path) -> None:
    for verb in (*STORE, *COLLECTION):
        for location in ("log", "missing", "~/log", ""):
            _check(cli, verb, location, {1}, f"{verb} needs a store URL such as")


def test_targets_that_make_no_sense(cli: Cli, place: Path) -> None:
    """The second argument, and the option that is a URL."""
    url = (place / "log").as_uri()
    for arguments, words in (
        (("upload", "log", "there"), "upload needs a store URL such as"),
        (("upload", "log", "memory://x"), "is gone when this command ends"),
        (("restore", url, "s3://bucket/x"), "restore needs a log directory, not"),
        (("restore", url, "~/x"), "was not expanded by the shell"),
        (("fork", url, "there"), "fork needs a store URL such as"),
        (("append", "new", "--tier", "there"), "--tier needs a store URL such as"),
        (("append", "memory://x"), "is gone when this command ends"),
    ):
        before = sorted(os.listdir())
        done = cli(*arguments, stdin=b"a\n")
        assert (done.code, done.out) == (1, b""), arguments
        assert words in done.error, arguments
        assert sorted(os.listdir()) == before, arguments


def test_the_working_directory_is_a_location(
    cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(log)
    for verb, *options in (
        ("inspect",), ("segments",), ("verify",), ("cursors",), ("tail",), ("dump",), ("repair",),
        ("trim", "--before", "3"), ("trim", "--before", "3", "--confirm"), ("append",),
    ):  # fmt: skip
        with case(verb, *options):
            done = cli(verb, ".", *options, stdin=b"value\n")
            assert (done.code, "Error" in done.err) == (0, False), done.err
    monkeypatch.chdir(log.parent)
    for verb in ("segments", "verify", "cursors", "tail", "dump"):
        with case(verb):
            done = cli(verb, ".")
            assert (done.code, done.error[:19]) == (3, "there is no log at ")
