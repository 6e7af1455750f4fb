"""Stdin, stdout and stderr that are closed, full or limited: one line, the documented code, no traceback."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each starts some programs


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
    assert err.splitlines() == [
        "walstore: 0 records before this are on disk",
        "walstore: stdin cannot be read: bad file descriptor",
    ]


def test_stdout_that_is_closed_or_full(log: Path, tmp_path: Path) -> None:
    for verb, target, reason in (
        (f"append {tmp_path}/new", "&-", "stdout is closed; "),
        (f"dump {log}", "/dev/full", "stdout cannot be written: no space left on device"),
        (f"inspect {log}", "/dev/full", "stdout cannot be written: no space left on device"),
        (
            f"segments {log} --json",
            "/dev/full",
            '{"error":"stdout cannot be written: no space left',
        ),
        ("--help", "/dev/full", "no space left on device"),
    ):
        code, _, err = _shell(f"walstore {verb} >{target}", tmp_path)
        assert code == 1, verb
        assert err.removeprefix("walstore: ").startswith(reason), verb
        assert len(err.splitlines()) == 1, verb
    assert not (tmp_path / "new").exists()


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
    first, last = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (1, b"")
    assert "records before this are on disk" in first
    assert "file too large" in last.lower()
    reported = int(first.removeprefix("walstore: ").split()[0])
    code, out, _ = _shell("walstore dump log", tmp_path)
    assert code == 0
    assert len(out.splitlines()) >= reported


def test_words_that_are_not_utf_8(tmp_path: Path) -> None:
    """Options are refused by name; paths may have any bytes and are shown escaped."""
    for words, option in (
        ("append log --stream \\377", "--stream"),
        ("append log --key \\377", "--key"),
        ("append log --tier file:///\\377", "--tier"),
        ("tail log --stream \\377", "--stream"),
        ("trim log --before \\377", "--before"),
        ("cursors log --set \\377 1", "--set"),
        ("inspect file:///\\377", "LOCATION"),
    ):
        code, out, err = _shell(f"walstore $(printf '{words}')", tmp_path)
        assert (code, out) == (1, ""), words
        assert err.startswith(f"walstore: {option} must be UTF-8, not b"), words
        assert len(err.splitlines()) == 1, words
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
