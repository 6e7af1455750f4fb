"""walstore rebuild: a stored log's manifest made again; nothing changes without --confirm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli


@pytest.fixture
def chain(cli: Cli, log: Path, tmp_path: Path) -> Path:
    """The directory of a store with a log of 100 records, laid out as a chain."""
    directory = tmp_path / "chain"
    done = cli("upload", log, directory.as_uri(), "--layout", "chain")
    assert done.code == 0, done.err
    return directory


def fragment_keys(chain: Path) -> list[str]:
    found = chain.glob("shard*/**/*.parquet")
    return sorted(str(path.relative_to(chain)) for path in found)


def test_manifests_that_are_lost(cli: Cli, chain: Path) -> None:
    records = cli("dump", chain.as_uri()).out
    shutil.rmtree(chain / "manifest")
    assert cli("dump", chain.as_uri()).code == 3
    done = cli("rebuild", chain.as_uri())
    assert done.code == 0
    assert "[1, 101)" in done.out.decode()
    assert done.error == "nothing was changed; give --confirm to do this"
    assert not (chain / "manifest").exists()
    told = cli("rebuild", chain.as_uri(), "--confirm", "--json").json
    assert (told["applied"], told["start"], told["limit"]) == (True, 1, 101)
    assert told["left_out"] == []
    assert cli("dump", chain.as_uri()).out == records
    done = cli("append", chain.as_uri(), "--json", stdin=b"more\n")
    assert (done.json["start"], done.json["limit"]) == (101, 102)


def test_a_directory_goes_on_shipping_there(cli: Cli, chain: Path, log: Path) -> None:
    shutil.rmtree(chain / "manifest")
    log_id = cli("inspect", log, "--json").json["log_id"]
    done = cli("rebuild", chain.as_uri(), "--log-id", log_id, "--confirm")
    assert done.code == 0
    assert cli("append", chain.as_uri(), stdin=b"more\n").code == 4
    cli("append", log, stdin=b"more\n")
    assert cli("upload", log, chain.as_uri()).code == 0
    assert cli("dump", chain.as_uri()).out == cli("dump", log).out


def test_an_identity_that_is_none(cli: Cli, chain: Path) -> None:
    done = cli("rebuild", chain.as_uri(), "--log-id", "orders")
    assert done.code == 1
    assert "--log-id takes the 32 hex digits" in done.error


def test_two_fragments_in_one_place(cli: Cli, chain: Path, log: Path, tmp_path: Path) -> None:
    for url in (chain.as_uri(), (tmp_path / "other").as_uri()):
        if url != chain.as_uri():
            cli("append", url, "--layout", "chain", stdin=b"another\n" * 100)
    (other,) = fragment_keys(tmp_path / "other")
    (chain / other).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(tmp_path / "other" / other, chain / other)
    done = cli("rebuild", chain.as_uri())
    assert (done.code, done.out) == (2, b"")
    assert "exclude one of them" in done.error
    done = cli("rebuild", chain.as_uri(), "--exclude", other)
    assert done.code == 0
    assert other not in done.out.decode()


def test_nothing_there(cli: Cli, tmp_path: Path) -> None:
    done = cli("rebuild", (tmp_path / "none").as_uri(), "--confirm")
    assert (done.code, done.out) == (3, b"")
    assert "there are no fragments at" in done.error


def test_a_sound_log(cli: Cli, stored: str) -> None:
    done = cli("rebuild", stored, "--confirm")
    assert (done.code, done.err) == (0, "")
    assert "nothing" in done.out.decode()
    told = cli("rebuild", stored, "--confirm", "--json").json
    assert (told["layout"], told["needed"], told["applied"]) == ("swap", False, False)


@pytest.mark.slow
def test_a_damaged_log(cli: Cli, stored: str) -> None:
    manifest = to_path(stored) / "manifest" / "MANIFEST"
    records = cli("dump", stored).out
    manifest.write_bytes(manifest.read_bytes()[:-40])
    assert cli("dump", stored).code == 2
    before = tree(stored)
    done = cli("rebuild", stored)
    assert done.code == 2
    assert "[1, 101)" in done.out.decode()
    assert done.error == "nothing was changed; give --confirm to do this"
    assert tree(stored) == before
    done = cli("rebuild", stored, "--confirm")
    assert done.code == 0
    assert done.error.startswith("rebuilt; what was replaced or given up is in rebuilt/")
    assert cli("dump", stored).out == records
    assert cli("scrub", stored).code == 0
    assert cli("rebuild", stored).code == 0


@pytest.mark.slow
def test_a_hole(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "holes").as_uri()
    for value in (b"one\n", b"two\n", b"three\n"):
        assert cli("append", url, stdin=value).code == 0
    second = next(to_path(url).glob("log/*/*0002.parquet"))
    second.unlink()
    done = cli("rebuild", url)
    assert done.code == 2
    assert done.error.endswith("; --keep says which stretch is kept")
    told = cli("rebuild", url, "--keep", "3", "--json").json
    assert told["choices"] == [{"start": 1, "limit": 2}, {"start": 3, "limit": 4}]
    assert told["lost"] == [{"start": 1, "limit": 2}, {"start": 2, "limit": 3}]
    assert (told["applied"], told["start"], told["limit"]) == (False, 3, 4)
    assert cli("rebuild", url, "--keep", "2").code == 1
    assert cli("rebuild", url, "--keep", "all").code == 1
    told = cli("rebuild", url, "--confirm", "--json").json
    assert (told["applied"], told["limit"], told["reassigned"]) == (
        True,
        2,
        {"start": 2, "limit": 4},
    )
    assert cli("append", url, "--json", stdin=b"again\n").json["start"] == 2


def tree(url: str) -> dict[Path, bytes]:
    """Return all files of a store in a directory."""
    return {path: path.read_bytes() for path in to_path(url).rglob("*") if path.is_file()}


def to_path(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def test_a_directory_is_no_store(cli: Cli, log: Path) -> None:
    done = cli("rebuild", log)
    assert done.code == 1
    assert "rebuild needs a store URL" in done.error
