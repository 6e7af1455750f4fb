"""walstore.cloud is uploader under another name, and nothing that ``import walstore`` loads."""

from __future__ import annotations

import subprocess
import sys

import uploader
import uploader.stores
import uploader.testing
import walstore.cloud
import walstore.cloud.stores
import walstore.cloud.testing


def test_the_same_objects_under_both_names() -> None:
    for first, second in (
        (uploader, walstore.cloud),
        (uploader.stores, walstore.cloud.stores),
        (uploader.testing, walstore.cloud.testing),
    ):
        assert set(first.__all__) == set(second.__all__)
        for name in first.__all__:
            assert getattr(first, name) is getattr(second, name), name


def test_importing_walstore_loads_none_of_it() -> None:
    program = (
        "import sys, walstore; print({'uploader', 'walstore.cloud', 'pyarrow'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
