"""walstore serve --cluster in a directory that was the one of a machine that runs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.walstore.topology import fake_etcd
from walstore.topology.documents import Member
from walstore.topology.memory import MemoryKeyValues

pytestmark = pytest.mark.timeout(60)

OTHER = "tls://10.0.0.1:7430"


@asynccontextmanager
async def started(directory: Path, lease_seconds: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the verb in a copied directory, and yield it once it waits for the end of the other machine."""
    store = MemoryKeyValues()
    entry = Member(OTHER, "00", home="h1:/srv/walstore").encode()
    store.swap(f"walstore/members/{OTHER}", entry, 0, 0)
    last = {"version": 1, "address": OTHER, "host": "h1"}
    await asyncio.to_thread((directory / ".machine").write_text, json.dumps(last))
    async with fake_etcd.serving(fake_etcd.FakeEtcd(store)) as (place,):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "walstore", "serve", str(directory)),
            *("--cluster", place.replace("http", "etcd")),
            *("--lease-seconds", str(lease_seconds)),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            said = await process.stderr.readline()
            if b"walstore.audit" in said:  # the machine has looked whether it reaches itself
                said = await process.stderr.readline()
            assert b"waits for its end" in said
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.mark.slow
async def test_it_ends_with_code_4_if_the_other_machine_stays(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as process:
        _, said = await process.communicate()
        assert process.returncode == 4
        assert f"the directory of the machine at {OTHER}, on h1".encode() in said
        assert b"h1:/srv/walstore" in said
        assert len(said.splitlines()) == 1


async def test_a_signal_ends_it_while_it_waits(tmp_path: Path) -> None:
    async with started(tmp_path, 3600) as process:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
