"""Update, rollback and mixed versions: this one, and an earlier one from the history of the repository.

Each side is a process with its own walstore on the path; both use the packages of this environment.
What docs/handbook.md says of versions follows from here.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

EARLIER: Final = "7c02238c71c60183a824e8431334efe60ecf2df8"
"""Of 2026-11-30, before the packages moved. Once there is a release, its commit is here."""
BEFORE: Final = "acbcf5df"
"""Of 2026-11-26. The protocol of that day has the same number as ours, and is another one."""
ROOT: Final = Path(__file__).parents[2]
CHILD: Final = Path(__file__).with_name("version_child.py")
VALUES: Final = ("{}", "{} of a group", "{} of a group", "{} of a transaction", "{} of a producer")


class Version:
    """One walstore, below a directory."""

    def __init__(self, path: Path) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(path)}
        self._path = path  # and the working directory, which comes first for ``python -m``

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self._path,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def use(self, *arguments: object) -> dict[str, Any]:
        done = self.run(CHILD, *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def command(self, *arguments: object) -> str:
        done = self.run("-m", "walstore", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def serving(self, directory: Path) -> Iterator[str]:
        """Serve a log until the block ends; yield its address."""
        with subprocess.Popen(
            [sys.executable, "-m", "walstore", "serve", str(directory), "--json"],
            cwd=self._path,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())["addresses"][0]
            finally:
                process.terminate()
            assert process.wait(60) == 0


def checkout(commit: str, path: Path) -> Version:
    """Return the version of a commit, unpacked below ``path``; skip where history does not reach back."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "walstore", "uploader"],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no commit {commit[:8]} here: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(path, filter="data")
    return Version(path)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return checkout(EARLIER, tmp_path_factory.mktemp("earlier"))


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return checkout(BEFORE, tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def ours() -> Version:
    return Version(ROOT)


def check(found: dict[str, Any], tags: list[str]) -> None:
    """It sees all of those before it, and then itself."""
    assert found["values"] == [value.format(tag) for tag in tags for value in VALUES]
    assert found["cursor"] == 1 + len(VALUES) * (len(tags) - 1)
    assert found["job"] == tags[-1], "jobs of those before are acknowledged"


def test_the_earlier_one_is_another(earlier: Version, ours: Version) -> None:
    where = ("-c", "import walstore; print(walstore.__file__)")
    assert earlier.run(*where).stdout != ours.run(*where).stdout


def test_a_directory_is_updated_and_rolled_back(
    earlier: Version, ours: Version, tmp_path: Path
) -> None:
    """Each continues the log of the other, with its cursors and groups; nobody finds damage."""
    log, tags = tmp_path / "log", list[str]()
    for version in (earlier, ours, earlier):
        tags.append(f"v{len(tags)}")
        check(version.use(log, tags[-1]), tags)
    ours.command("verify", log)


def test_a_tier_is_updated_and_rolled_back(earlier: Version, ours: Version, tmp_path: Path) -> None:
    log, url, tags = tmp_path / "log", (tmp_path / "bucket").as_uri(), list[str]()
    for version in (earlier, ours, earlier):
        tags.append(f"v{len(tags)}")
        check(version.use(log, tags[-1], url), tags)
    for version in (earlier, ours):
        done = json.loads(version.command("verify", url, "--json"))
        assert (done["ok"], done["records"]) == (True, len(VALUES) * len(tags))


@pytest.mark.parametrize("server_is_ours", [True, False])
def test_clients_of_both_share_a_server(
    earlier: Version, ours: Version, tmp_path: Path, *, server_is_ours: bool
) -> None:
    tags = list[str]()
    with (ours if server_is_ours else earlier).serving(tmp_path / "log") as address:
        for version in (earlier, ours, earlier):
            tags.append(f"v{len(tags)}")
            check(version.use(address, tags[-1]), tags)


def test_a_client_names_a_server_of_another_protocol(
    before: Version, ours: Version, tmp_path: Path
) -> None:
    with before.serving(tmp_path / "log") as address:
        done = ours.run(CHILD, address, "v0")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("FormatVersionError: ")


def test_files_of_a_version_before_that_are_read(
    before: Version, ours: Version, tmp_path: Path
) -> None:
    write = (
        "import asyncio, sys; from walstore import Wal\n"
        "async def main():\n"
        "    async with Wal.open(sys.argv[1]) as wal: await wal.append(b'old')\n"
        "asyncio.run(main())"
    )
    done = before.run("-c", write, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    assert ours.use(tmp_path / "log", "new")["values"][:2] == ["old", "new"]
