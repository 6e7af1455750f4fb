"""Runs a program under strace and reads its system calls, in the order in which they began and ended."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,write,writev,pwrite64,pwritev,pwritev2,ftruncate,"
    "truncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,"
    "symlinkat,fsync,fdatasync,sync,syncfs,mmap,sendfile,splice,copy_file_range,io_uring_setup,openat2"
)
REPORTS = 3
"""Descriptor on which the program writes its reports."""
_LINE = re.compile(r"^(\d+) +(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+|\?|0x[0-9a-f]+)(?: .*)?$", re.DOTALL)
_RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>(.*)$", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_ARGUMENT = re.compile(r' *("(?:\\x[0-9a-f]{2})*"(?:\.\.\.)?|\[.*\]|\{.*?\}|[^,]+)')


class CannotTraceError(Exception):
    """strace cannot run here; the text says why."""


def prepare(*, install: bool = False) -> None:
    """Make sure that strace works; as root on Debian it may be installed. Raises CannotTraceError."""
    if shutil.which("strace") is None:
        wanted = "the package strace is missing"
        if not install or shutil.which("apt-get") is None or os.geteuid() != 0:
            raise CannotTraceError(f"{wanted}; as root on Debian: apt-get install strace")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "--yes", "--no-install-recommends", "strace"]
        updated = subprocess.run(["apt-get", "update"], env=environment, check=False)
        if updated.returncode or subprocess.run(command, env=environment, check=False).returncode:
            raise CannotTraceError(f"{wanted}, and could not be installed")
    tried = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "-e", "trace=close", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        raise CannotTraceError(f"strace may not trace here: {tried.stderr.strip()[:200]}")


def record(command: Sequence[str], *, cwd: Path, environment: dict[str, str]) -> list[Call]:
    """Run a command, which must succeed, and return its calls in order."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "calls")
        options = ["-f", "--seccomp-bpf", "-qq", "-xx", "-s", str(1 << 26), "-e", "signal=none"]
        traced = ["strace", *options, "-e", f"trace={CALLS}", "-o", str(out), *command]
        with Path(scratch, "reports").open("wb") as reports:
            done = subprocess.run(
                ["/bin/sh", "-c", f'exec "$@" {REPORTS}>&0 0</dev/null', "sh", *traced],
                stdin=reports,
                cwd=cwd,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )
        if done.returncode:
            raise RuntimeError(f"the traced program ended with {done.returncode}: {done.stderr}")
        return _parse(out)


@dataclass(slots=True)
class Call:
    """A call at one of its two moments; one that nothing came between has both at once."""

    name: str
    arguments: list[str]
    result: int
    begins: bool
    ends: bool
    thread: str


def _parse(out: Path) -> list[Call]:
    """Read what strace wrote; the result of a call is known from its beginning on."""
    moments: list[Call] = []
    open_calls: dict[str, tuple[str, int]] = {}
    with out.open("rb") as lines:
        for raw in lines:
            match = _LINE.match(raw.decode("ascii").rstrip("\n"))
            assert match is not None, raw[:200]
            thread, text = match.groups()
            if text.endswith(_UNFINISHED):
                open_calls[thread] = (text.removesuffix(_UNFINISHED), len(moments))
                moments.append(Call("", [], 0, begins=True, ends=False, thread=thread))
                continue
            resumed = _RESUMED.match(text)
            begins = resumed is None
            if resumed is not None:
                begun, at = open_calls.pop(thread)
                text = begun + resumed[2]
            elif text.startswith(("+++", "---")):
                continue
            match = _CALL.match(text)
            assert match is not None, text[:200]
            result = -1 if match[3] == "?" else int(match[3], 0)
            call = Call(match[1], _arguments(match[2]), result, begins, ends=True, thread=thread)
            if not begins:
                moments[at] = Call(match[1], call.arguments, result, True, False, thread)
            moments.append(call)
    return [call for call in moments if call.name]


def _arguments(text: str) -> list[str]:
    return [found.strip() for found in _ARGUMENT.findall(text) if found.strip()]
