"""Deleting goes by rules, and nobody deletes past them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import uploader
from uploader.chain.pruning import KEPT_SLOTS, prunable
from uploader.format import layout
from uploader.format.inventory import goes_with_its_log
from uploader.format.layout import FragmentName, manifest_key
from uploader.format.link import Link
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.partitioned.partitions import PARTITIONS
from uploader.partitioned.write_id import WriteId, hold_of, is_passing, job_name
from uploader.stores import MemoryStore
from uploader.stores.port import remove
from walstore.errors import CollectionRefusedError

ROOT = Path(uploader.__file__).parent
JOB = job_name(1_750_000_000_000_000, "0123456789abcdef")
EXEMPT = {
    "uploader/positions/cursors/object_backend.py",  # a cursor's owner names it
    "uploader/care/admin/forking.py",  # a pin is one
    "uploader/positions/groups/group_place.py",  # and that of a group
    "uploader/partitioned/partitions.py",  # a store
    "uploader/iceberg/",  # files of a table, and rows of it: no object of a log or collection
    "uploader/versioned/collection.py",  # its own method
    "uploader/stores/",
    "uploader/testing/",
}
"""Where deletes may be called by name."""


def deletes(path: Path) -> Iterator[int]:
    """Yield the lines on which something is told to delete."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "delete"
            and "deleter" not in ast.unparse(node.func.value)
        ):
            yield node.lineno


@pytest.mark.slow
def test_nobody_deletes_past_the_gate() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT.parent).as_posix()
        if not any(name.startswith(exempt) for exempt in EXEMPT):
            found += [f"{name}:{line}" for line in deletes(path)]
    assert found == []


async def test_one_key_that_is_not_admitted_keeps_all() -> None:
    store = MemoryStore()
    for key in ("a", "b"):
        await store.put_if_absent(key, b"x")
    with pytest.raises(CollectionRefusedError, match="b in "):
        await remove(store, ["a", "b"], rule=lambda key: key == "a")
    assert [listed.key async for listed in store.list("")] == ["a", "b"]
    await remove(store, iter(["a"]), rule=lambda key: key == "a")
    assert [listed.key async for listed in store.list("")] == ["b"]


def test_what_goes_with_a_destroyed_log() -> None:
    assert goes_with_its_log(layout.MANIFEST)
    assert goes_with_its_log(layout.fragment_path(7))
    assert not goes_with_its_log(layout.TOMBSTONE)
    assert not goes_with_its_log("readme")
    assert not goes_with_its_log("other/" + layout.MANIFEST)


def test_what_pruning_may_take() -> None:
    """Links that are old and not kept, and slots that the head left out; never anything else."""
    begun = Link.root(Manifest.initial("w"), author="a", alpha=3, slot=2 * KEPT_SLOTS)
    head = begun.successor(begun.manifest, author="b", alpha=3, base=begun.slot, now_us=1)
    rule = prunable(head)
    assert rule(manifest_key(1))
    assert rule(manifest_key(head.slot + 1))
    for slot in (0, head.slot - KEPT_SLOTS, head.slot, head.next):
        assert not rule(manifest_key(slot))
    fragment = FragmentName(1, 1, 2, Setsum()).key(shards=1)
    for key in (layout.MANIFEST, fragment, "manifest/x", layout.cursor_path("x")):
        assert not rule(key)


def test_what_is_over_with_a_write() -> None:
    once = WriteId.once(JOB)
    assert is_passing(once.record_key)
    staged = once.staging + "0-0/12-3.parquet"
    assert is_passing(staged)
    assert hold_of(staged) == "12/" + layout.hold_path(JOB)
    assert is_passing("12/" + layout.hold_path(JOB))
    assert hold_of(once.record_key) is None
    assert hold_of(once.staging + "0-0/x") is None
    for key in (
        WriteId("query", 3, JOB).record_key,
        "sink/jobs/query",
        PARTITIONS,
        "0/" + layout.MANIFEST,
        layout.hold_path(JOB),
        "0/" + layout.hold_path("x"),
    ):
        assert not is_passing(key)
