"""What the tests of stores share: another process that holds a store or a log."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]


SEGMENT = "[0n]*"
"""Segment files, by their own names and by the one under which they are made."""


HOLDER = """
import asyncio, sys
from walstore import Wal, WalLockedError, WalStore

async def main():
    kind, path = sys.argv[1:3]
    try:
        if kind == "store":
            async with WalStore.open(path) as store:
                if len(sys.argv) > 3:
                    await (await store.wal(sys.argv[3])).append(b"by the store")
                print("open", flush=True)
                sys.stdin.readline()
        else:
            async with Wal.open(path) as wal:
                await wal.append(b"by itself")
                print("open", flush=True)
                sys.stdin.readline()
    except WalLockedError:
        print("locked", flush=True)

asyncio.run(main())
"""


class Holder:
    """A real process that opens a store or a log and holds it."""

    def __init__(self, kind: str, path: Path, *more: str) -> None:
        self._arguments = [sys.executable, "-c", HOLDER, kind, str(path), *more]
        self.said = b""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        assert self._process.stdout is not None
        self.said = (await self._process.stdout.readline()).strip()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._process.communicate(b"end\n")
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
