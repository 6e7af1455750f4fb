"""wal3's own tests, run over a directory, and what they leave; its own fixtures through our parsers."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Final

import pytest

from tests.wal3.build import SOURCES, TESTS
from tests.wal3.ours import read, scrub
from uploader import Severity
from uploader.format import layout
from uploader.format.entries import Snapshot
from uploader.format.garbage import Garbage
from uploader.format.manifest import Manifest
from walstore.errors import CorruptionError

pytestmark = [pytest.mark.wal3, pytest.mark.timeout(900)]

BUCKETS: Final = "WALSTORE_WAL3_BUCKETS"
ARITHMETIC: Final = "s3_10_properties"
"""Tests that put nothing, and take minutes."""

HALF_DESTROYED: Final = "s3_97_destroy_wedge"
"""Ends with a manifest whose snapshots are gone."""
AHEAD: Final = "s3_91_gc_intrinsic_cursor.test_k8s_integration_91_log_reader_update"
"""Ends with a cursor behind the log's end."""


@pytest.fixture
def sources() -> Path:
    return Path(os.environ[SOURCES])


async def test_its_own_tests_pass_and_leave_sound_logs(tmp_path: Path) -> None:
    """So the directory is a store to it as good as another; and we read whatever they make."""
    process = await asyncio.create_subprocess_exec(
        os.environ[TESTS],
        f"--skip={ARITHMETIC}",
        "--test-threads=8",
        env={**os.environ, BUCKETS: str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    logs = [path.parents[1] for path in tmp_path.glob(f"*/*/{layout.MANIFEST}")]
    assert len(logs) >= 90
    seen: dict[str, list[str]] = {}
    for log in sorted(logs):
        test = log.parent.name
        if test.startswith(HALF_DESTROYED):
            with pytest.raises(CorruptionError, match="missing"):
                await read(log.as_uri())
            continue
        report = await scrub(log.as_uri())
        records = await read(log.as_uri())
        assert [each.offset for each in records] == list(
            range(records[0].offset, records[-1].offset + 1) if records else ()
        )
        serious = [str(each) for each in report.findings if each.severity is not Severity.NOTE]
        if serious:
            seen[test] = serious
    assert all(test.startswith(AHEAD) for test in seen), seen
    assert all("ahead of the log" in text for texts in seen.values() for text in texts)


@pytest.mark.parametrize("name", ["bad_manifest1.json", "s3_AA_construct_garbage/MANIFEST"])
def test_its_manifests(sources: Path, name: str) -> None:
    """Each once led its collector astray, and is sound in itself. We write them as wal3 would."""
    data = (sources / "tests" / name).read_bytes()
    manifest = Manifest.parse(data)
    manifest.scrub()
    assert json.loads(manifest.serialise()) == json.loads(data)


def test_its_snapshots(sources: Path) -> None:
    found = json.loads((sources / "tests" / "bad_snapshots1.json").read_bytes())
    assert len(found) > 10
    for one in found:
        snapshot = Snapshot.parse(json.dumps(one).encode(), path=one["path"])
        snapshot.scrub()
        assert json.loads(snapshot.serialise()) == one


def test_its_announcements_of_garbage(sources: Path) -> None:
    """What its tests hold against its format."""
    text = (sources / "src" / "gc.rs").read_text()
    found = re.findall(r'r#"(\{.*?\})"#', text, flags=re.DOTALL)
    found = [each for each in found if "fragments_to_drop_start" in each]
    assert found
    for each in found:
        again = json.loads(Garbage.parse(each.encode()).serialise())
        assert again == {"fragments_are_uuids": False, **json.loads(each)}
