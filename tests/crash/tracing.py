"""Turns the system calls of a program below a directory into events.

An event is a list: what happened, then paths (relative to the directory), the number of a file, and more:

  * ``["write", file, position, bytes]``, ``["size", file, bytes]``: content; a number stays a file's own
    whatever its name is;
  * ``["store", file, bytes]``: into mapped memory, which strace cannot see: the program reports it;
  * ``["create", path, file]``, ``["mkdir", path, file]``, ``["rename", path, path]``,
    ``["unlink", path]``, ``["link", path, path]``;
  * ``["syncing", file or path, token]`` when a sync begins and ``["synced", token]`` when it returned:
    it covers what had returned before it began; the name of a directory is its path;
  * ``["say", report]``: what the program reported, in the same order.

Calls of several threads overlap. A write counts from the moment at which it began. A call that would change
files in a way that is not modelled raises, so that nothing is missed silently.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.strace import REPORTS, Call

_IOV = re.compile(r'iov_base="((?:\\x[0-9a-f]{2})*)"')


class NotModelledError(Exception):
    """A call that this recorder does not understand would change the files."""


def _bytes(text: str) -> bytes:
    assert text.startswith('"'), text[:50]
    assert text.endswith('"'), "strace cut a string short"
    return bytes.fromhex(text.strip('"').replace("\\x", ""))


@dataclass(slots=True)
class _Open:
    """An open file description; duplicated descriptors share it."""

    path: str | None
    """Relative path of a directory; None for a file."""
    file: int | None
    position: int = 0
    appends: bool = False


@dataclass
class Tree:
    """The names below a directory while a program runs, and the numbers of the files."""

    root: Path
    names: dict[str, int] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {"."})
    sizes: dict[int, int] = field(default_factory=dict)
    next_file: int = 1


class Reader:
    """Turns calls into events of one of several directories; reports choose which one is talked of."""

    def __init__(self, trees: Sequence[Tree], cwd: Path) -> None:
        self.events: list[list[list]] = [[] for _ in trees]
        self._trees = list(trees)
        self._cwd = str(cwd)
        self._table: dict[int, tuple[int, _Open]] = {}
        self._reporting = 0
        self._tokens = 0
        self._syncing: dict[str, tuple[int, int]] = {}
        self._cells: dict[int, int] = {}

    def read(self, calls: Sequence[Call]) -> list[list[list]]:
        """Return the events of each tree."""
        for call in calls:
            if call.result < 0:
                continue
            handler = getattr(self, f"_on_{call.name}", None)
            if handler is not None:
                handler(call)
        return self.events

    # -- finding out what a call is about ----------------------------------------------------

    def _emit(self, tree: int, *event: object) -> None:
        self.events[tree].append(list(event))

    def _locate(self, where: str, name: str) -> tuple[int, str] | None:
        """Return the tree and the relative path that a directory descriptor and a name lead to."""
        path = os.fsdecode(_bytes(name))
        if not path.startswith("/"):
            base = self._cwd
            if where != "AT_FDCWD":
                known = self._table.get(int(where))
                if known is None or known[1].path is None:
                    return None
                base = str(self._trees[known[0]].root / known[1].path)
            path = f"{base}/{path}"
        path = os.path.normpath(path)
        for number, tree in enumerate(self._trees):
            root = str(tree.root)
            if path == root:
                return number, "."
            if path.startswith(root + "/"):
                return number, path[len(root) + 1 :]
        return None

    def _file(self, argument: str) -> tuple[int, _Open] | None:
        known = self._table.get(int(argument))
        return known if known is not None and known[1].file is not None else None

    # -- descriptors -------------------------------------------------------------------------

    def _opened(self, call: Call, where: str, name: str, flags: str) -> None:
        if not call.ends:
            return
        self._table.pop(call.result, None)
        found = self._locate(where, name)
        if found is None:
            return
        number, path = found
        tree = self._trees[number]
        if "O_TMPFILE" in flags:
            raise NotModelledError(f"open of {path} with {flags}")
        if path in tree.directories:
            self._table[call.result] = (number, _Open(path, None))
            return
        if path not in tree.names:
            assert "O_CREAT" in flags, f"{path} is there but was never made"
            file, tree.next_file = tree.next_file, tree.next_file + 1
            tree.names[path], tree.sizes[file] = file, 0
            self._emit(number, "create", path, file)
        file = tree.names[path]
        if "O_TRUNC" in flags and tree.sizes[file]:
            self._resize(number, file, 0)
        self._table[call.result] = (number, _Open(None, file, appends="O_APPEND" in flags))

    def _on_openat(self, call: Call) -> None:
        self._opened(call, *call.arguments[:3])

    def _on_open(self, call: Call) -> None:
        self._opened(call, "AT_FDCWD", *call.arguments[:2])

    def _on_openat2(self, call: Call) -> None:
        self._opened(call, *call.arguments[:3])

    def _on_creat(self, call: Call) -> None:
        self._opened(call, "AT_FDCWD", call.arguments[0], "O_CREAT|O_TRUNC")

    def _on_close(self, call: Call) -> None:
        if call.begins:  # its number may be another file's before the call is seen to return
            self._table.pop(int(call.arguments[0]), None)

    def _on_dup(self, call: Call) -> None:
        if call.ends:
            self._table.pop(call.result, None)
            known = self._table.get(int(call.arguments[0]))
            if known is not None:
                self._table[call.result] = known

    _on_dup2 = _on_dup3 = _on_dup

    def _on_fcntl(self, call: Call) -> None:
        if call.arguments[1].startswith("F_DUPFD"):
            self._on_dup(call)

    def _on_lseek(self, call: Call) -> None:
        found = self._file(call.arguments[0])
        if found is not None and call.ends:
            found[1].position = call.result

    # -- content -----------------------------------------------------------------------------

    def _resize(self, number: int, file: int, size: int) -> None:
        self._trees[number].sizes[file] = size
        self._emit(number, "size", file, size)

    def _write(self, call: Call, data: bytes, position: int | None) -> None:
        if not call.begins:
            return
        found = self._file(call.arguments[0])
        if found is None:
            return
        number, opened = found
        file = opened.file
        assert file is not None
        sizes = self._trees[number].sizes
        data = data[: call.result]
        if opened.appends:
            position = sizes[file]
        if position is None or opened.appends:
            position = opened.position if position is None else position
            opened.position = position + len(data)
        sizes[file] = max(sizes[file], position + len(data))
        self._emit(number, "write", file, position, data)

    def _on_write(self, call: Call) -> None:
        if int(call.arguments[0]) == REPORTS:
            if call.begins:
                self._report(json.loads(_bytes(call.arguments[1])))
        elif self._file(call.arguments[0]) is not None:
            self._write(call, _bytes(call.arguments[1]), None)

    def _on_writev(self, call: Call) -> None:
        if self._file(call.arguments[0]) is not None:
            self._write(call, _pieces(call.arguments[1]), None)

    def _on_pwrite64(self, call: Call) -> None:
        if self._file(call.arguments[0]) is not None:
            self._write(call, _bytes(call.arguments[1]), int(call.arguments[3]))

    def _on_pwritev(self, call: Call) -> None:
        if self._file(call.arguments[0]) is not None:
            self._write(call, _pieces(call.arguments[1]), int(call.arguments[3]))

    _on_pwritev2 = _on_pwritev

    def _on_ftruncate(self, call: Call) -> None:
        found = self._file(call.arguments[0])
        if found is not None and call.begins:
            assert found[1].file is not None
            self._resize(found[0], found[1].file, int(call.arguments[1]))

    def _on_truncate(self, call: Call) -> None:
        found = self._locate("AT_FDCWD", call.arguments[0])
        if found is not None and call.begins:
            file = self._trees[found[0]].names[found[1]]
            self._resize(found[0], file, int(call.arguments[1]))

    def _on_fallocate(self, call: Call) -> None:
        found = self._file(call.arguments[0])
        if found is None or not call.begins:
            return
        number, file = found[0], found[1].file
        assert file is not None
        mode, start, length = call.arguments[1], *map(int, call.arguments[2:4])
        if mode == "0":
            if start + length > self._trees[number].sizes[file]:
                self._resize(number, file, start + length)
        elif mode != "FALLOC_FL_KEEP_SIZE":
            raise NotModelledError(f"fallocate with {mode}")

    def _on_mmap(self, call: Call) -> None:
        if "PROT_WRITE" in call.arguments[2] and "MAP_SHARED" in call.arguments[3] and call.ends:
            found = self._file(call.arguments[4])
            if found is not None:
                assert found[1].file is not None
                self._cells[found[0]] = found[1].file

    def _report(self, report: list) -> None:
        number = self._reporting
        if report[0] == "at":
            self._reporting = report[1]
        elif report[0] == "cell":
            if number in self._cells:  # else it is written by calls, which are events already
                self._emit(number, "store", self._cells[number], bytes.fromhex(report[1]))
        else:
            self._emit(number, "say", report)

    # -- names -------------------------------------------------------------------------------

    def _renamed(self, call: Call, source: tuple, target: tuple) -> None:
        if not call.begins:
            return
        old, new = self._locate(*source), self._locate(*target)
        if old is None and new is None:
            return
        if old is None or new is None or old[0] != new[0]:
            raise NotModelledError("rename into or out of the directory")
        tree = self._trees[old[0]]
        if old[1] in tree.directories:
            raise NotModelledError(f"rename of the directory {old[1]}")
        tree.names[new[1]] = tree.names.pop(old[1])
        self._emit(old[0], "rename", old[1], new[1])

    def _on_rename(self, call: Call) -> None:
        self._renamed(call, ("AT_FDCWD", call.arguments[0]), ("AT_FDCWD", call.arguments[1]))

    def _on_renameat(self, call: Call) -> None:
        self._renamed(call, tuple(call.arguments[:2]), tuple(call.arguments[2:4]))

    def _on_renameat2(self, call: Call) -> None:
        if "EXCHANGE" in call.arguments[4]:
            raise NotModelledError("renameat2 with RENAME_EXCHANGE")
        self._on_renameat(call)

    def _linked(self, call: Call, source: tuple, target: tuple) -> None:
        new = self._locate(*target)
        if new is None or not call.begins:
            return
        old = self._locate(*source)
        if old is None or old[0] != new[0]:
            raise NotModelledError("link from outside of the directory")
        tree = self._trees[new[0]]
        tree.names[new[1]] = tree.names[old[1]]
        self._emit(new[0], "link", old[1], new[1])

    def _on_link(self, call: Call) -> None:
        self._linked(call, ("AT_FDCWD", call.arguments[0]), ("AT_FDCWD", call.arguments[1]))

    def _on_linkat(self, call: Call) -> None:
        self._linked(call, tuple(call.arguments[:2]), tuple(call.arguments[2:4]))

    def _unlinked(self, call: Call, where: str, name: str) -> None:
        found = self._locate(where, name) if call.begins else None
        if found is not None:
            tree = self._trees[found[0]]
            tree.names.pop(found[1], None)
            tree.directories.discard(found[1])
            self._emit(found[0], "unlink", found[1])

    def _on_unlink(self, call: Call) -> None:
        self._unlinked(call, "AT_FDCWD", call.arguments[0])

    _on_rmdir = _on_unlink

    def _on_unlinkat(self, call: Call) -> None:
        self._unlinked(call, *call.arguments[:2])

    def _made(self, call: Call, where: str, name: str) -> None:
        found = self._locate(where, name) if call.begins else None
        if found is not None:
            tree = self._trees[found[0]]
            tree.directories.add(found[1])
            self._emit(found[0], "mkdir", found[1])

    def _on_mkdir(self, call: Call) -> None:
        self._made(call, "AT_FDCWD", call.arguments[0])

    def _on_mkdirat(self, call: Call) -> None:
        self._made(call, *call.arguments[:2])

    # -- syncs -------------------------------------------------------------------------------

    def _on_fsync(self, call: Call) -> None:
        if call.begins:
            known = self._table.get(int(call.arguments[0]))
            if known is None:
                return
            number, opened = known
            self._tokens += 1
            self._syncing[call.thread] = (number, self._tokens)
            what = opened.path if opened.file is None else opened.file
            self._emit(number, "syncing", what, self._tokens)
        if call.ends and call.thread in self._syncing:
            number, token = self._syncing.pop(call.thread)
            self._emit(number, "synced", token)

    _on_fdatasync = _on_fsync

    def _refuse(self, call: Call) -> None:
        raise NotModelledError(f"{call.name}({', '.join(call.arguments)})")

    _on_sync = _on_syncfs = _on_io_uring_setup = _refuse

    def _refuse_if_ours(self, call: Call) -> None:
        numbers = [text for text in call.arguments[:3] if text.isdecimal()]
        if any(self._file(text) is not None for text in numbers):
            self._refuse(call)

    _on_sendfile = _on_splice = _on_copy_file_range = _refuse_if_ours

    def _refuse_below(self, call: Call) -> None:
        if any(self._locate("AT_FDCWD", text) for text in call.arguments if text.startswith('"')):
            self._refuse(call)

    _on_symlink = _on_symlinkat = _refuse_below


def _pieces(text: str) -> bytes:
    assert "..." not in text, "strace cut a list short"
    return b"".join(bytes.fromhex(found.replace("\\x", "")) for found in _IOV.findall(text))
