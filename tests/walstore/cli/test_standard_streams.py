"""Stdin, stdout and stderr that are closed, full or limited: one line, the documented code, no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import case
from tests.walstore.cli.conftest import Cli

pytestmark = pytest.mark.slow  # most start some programs

FULL = "stdout cannot be written: no space left on device"
NOT_UTF8 = os.fsdecode(b"\377")
"""As Python makes it of such an argument."""


def _shell(command: str, directory: Path, stdin: bytes = b"a\n") -> tuple[int, str, str]:
    """Run a command line of the shell, in which ``walstore`` is ours; return its code and outputs."""
    done = subprocess.run(
        ["sh", "-c", command.replace("walstore", f"{sys.executable} -m walstore")],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        input=stdin,
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_stdin_that_is_closed(tmp_path: Path) -> None:
    """Nothing is made, and no file of the log takes the place of stdin."""
    for place in ("log", (tmp_path / "store").as_uri()):
        code, out, err = _shell(f"walstore append {place} <&-", tmp_path)
        assert (code, out) == (1, "")
        assert err.startswith("walstore: stdin is closed; ")
        assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_verbs_that_do_not_read_stdin_run_without_it(log: Path, tmp_path: Path) -> None:
    assert _shell(f"walstore dump {log} --limit 1 <&-", tmp_path)[::2] == (0, "")


def test_stdin_that_cannot_be_read(tmp_path: Path) -> None:
    """Opened for writing alone."""
    code, out, err = _shell("walstore append log 0>nothing", tmp_path)
    assert (code, out) == (1, "")
    (told,) = err.splitlines()
    assert told.startswith("walstore: stdin cannot be read: bad file descriptor (0 records before")


def test_stdout_that_is_closed_or_full(log: Path, tmp_path: Path) -> None:
    for verb, target, reason in (
        (f"append {tmp_path}/new", "&-", "stdout is closed; "),
        (f"dump {log}", "/dev/full", FULL),
    ):
        code, _, err = _shell(f"walstore {verb} >{target}", tmp_path)
        assert code == 1, verb
        assert err.removeprefix("walstore: ").startswith(reason), verb
        assert len(err.splitlines()) == 1, verb
    assert not (tmp_path / "new").exists()


def test_each_kind_of_output_to_a_full_disk(
    cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, reason in (
        (("dump", log), FULL),
        (("inspect", log), FULL),
        (("segments", log, "--json"), f'{{"error":"{FULL}'),
        (("--help",), "no space left on device"),
    ):
        with case(*words), open("/dev/full", "w") as full, monkeypatch.context() as replaced:
            replaced.setattr(sys, "stdout", full)
            done = cli(*words)
            assert done.code == 1
            assert done.err.removeprefix("walstore: ").startswith(reason)
            assert len(done.err.splitlines()) == 1


def test_a_reader_of_stdout_that_has_ended_is_no_error(
    cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of ``| head -1``, whatever draws the output."""
    for words in (
        ("dump", log),
        ("inspect", log),
        ("segments", log, "--json"),
        ("top", log, "--count", "1"),
        ("top", log, "--count", "1", "--json"),
    ):
        reading, written = os.pipe()
        os.close(reading)
        with (
            case(*words),
            contextlib.suppress(BrokenPipeError),  # of the end of the block
            open(written, "w") as pipe,
            monkeypatch.context() as replaced,
        ):
            replaced.setattr(sys, "stdout", pipe)
            done = cli(*words)
            assert (done.code, done.err) == (0, "")


def test_what_was_done_is_not_called_undone_for_a_full_stdout(tmp_path: Path) -> None:
    """A program that believed it would append twice."""
    code, _, err = _shell("walstore append log --json >/dev/full", tmp_path)
    assert (code, json.loads(err)["outcome"]) == (1, "unknown")
    assert _shell("walstore dump log", tmp_path)[1].count("\n") == 1


def test_stderr_that_is_closed_or_full(tmp_path: Path) -> None:
    """The code says it all; nothing of it goes to stdout."""
    for target in ("&-", "/dev/full"):
        assert _shell(f"walstore dump nowhere 2>{target}", tmp_path) == (3, "", "")


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """As a full disk: what is on disk by then is reported, and is there."""
    done = subprocess.run(
        [sys.executable, "-m", "walstore", "append", "log"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        input=b"%s\n" % (b"x" * 999) * 3000,
        capture_output=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    (told,) = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (1, b"")
    assert "file too large" in told.lower()
    (reported,) = map(int, re.findall(r"\((\d+) records before this are on disk", told))
    code, out, _ = _shell("walstore dump log", tmp_path)
    assert code == 0
    assert len(out.splitlines()) >= reported


def test_words_that_are_not_utf_8(cli: Cli, tmp_path: Path) -> None:
    """Options are refused by name; paths may have any bytes and are shown escaped."""
    log = tmp_path / "log"
    for words, option in (
        (("append", log, "--stream", NOT_UTF8), "--stream"),
        (("append", log, "--key", NOT_UTF8), "--key"),
        (("append", log, "--tier", f"file:///{NOT_UTF8}"), "--tier"),
        (("tail", log, "--stream", NOT_UTF8), "--stream"),
        (("trim", log, "--before", NOT_UTF8), "--before"),
        (("cursors", log, "--set", NOT_UTF8, "1"), "--set"),
        (("inspect", f"file:///{NOT_UTF8}"), "LOCATION"),
    ):
        with case(option):
            done = cli(*words)
            assert (done.code, done.out) == (1, b"")
            assert done.error.startswith(f"{option} must be UTF-8, not b")
    code, out, err = _shell("walstore $(printf 'append log --key \\377')", tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith("walstore: --key must be UTF-8, not b")
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    command = "export PYTHONUTF8=1; walstore append $(printf 'l\\377') --json"
    assert _shell(command, tmp_path)[:2] == (
        0,
        '{"directory":"l\\udcff","start":1,"limit":2,"records":1,"bytes":1}\n',
    )


def test_stdout_that_cannot_encode_a_name(tmp_path: Path) -> None:
    """JSON is UTF-8 all the same, and text has escapes."""
    setting = "export PYTHONUTF8=1 PYTHONIOENCODING=ascii;"
    code, out, err = _shell(f"{setting} walstore append l\u00fc --json", tmp_path)
    assert (code, out[:17], err) == (0, '{"directory":"l\u00fc"', "")
    code, out, err = _shell(f"{setting} walstore inspect l\u00fc", tmp_path)
    assert (code, out.splitlines()[0], err) == (0, "location    l\\xfc", "")
