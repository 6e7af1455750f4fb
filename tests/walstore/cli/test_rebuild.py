"""walstore rebuild: a chain's manifests made again; nothing changes without --confirm."""

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


def test_no_chain_there(cli: Cli, stored: str, tmp_path: Path) -> None:
    for url in (stored, (tmp_path / "none").as_uri()):
        done = cli("rebuild", url, "--confirm")
        assert (done.code, done.out) == (3, b"")
        assert "there are no fragments of a chain at" in done.error


def test_a_directory_is_no_store(cli: Cli, log: Path) -> None:
    done = cli("rebuild", log)
    assert done.code == 1
    assert "rebuild needs a store URL" in done.error
