"""The machine: every fact has a text, and a directory belongs to the deepest mount."""

from __future__ import annotations

from pathlib import Path

import walstore
from walstore.cli.machine import describe_machine, find_mount

MOUNTS = r"""22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 254:1 / /mnt rw shared:1 - xfs /dev/vdb rw
29 28 254:2 / /mnt/big\040disk rw - btrfs /dev/my\134disk rw
30 27 254:3 / /mnt rw - tmpfs tmpfs rw

broken
"""


def test_the_deepest_mount_and_the_last_one_there() -> None:
    found = {
        "/var/lib": "ext4 on /dev/vda",
        "/mnt": "tmpfs on tmpfs",
        "/mnt2": "ext4 on /dev/vda",
        "/mnt/big disk/log": "btrfs on /dev/my\\disk",
    }
    assert {path: find_mount(MOUNTS, Path(path)) for path in found} == found
    assert find_mount("", Path("/")) == "unknown"


def test_facts(tmp_path: Path) -> None:
    facts = describe_machine(tmp_path)
    assert list(facts) == ["processor", "cores", "system", "file system", "Python", "walstore"]
    assert all(facts.values())
    assert facts["walstore"] == walstore.__version__
