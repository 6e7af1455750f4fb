"""walstore repair and rebuild: dry until confirmed, report what is lost, and one line for every mistake."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli, Held, fill, flip, make_newer


def _two_batches_and_more(log: Path) -> None:
    asyncio.run(fill(log, records=10, start=101))
    asyncio.run(fill(log, records=10, start=111))


def _damage_the_middle(log: Path) -> Path:
    """Damage the batch [101, 111) of the log."""
    _two_batches_and_more(log)
    (path,) = log.glob("*.wal")
    place = path.read_bytes().index(b"value 105")
    for position in (place, place + 3):  # one flipped bit alone would be put right
        flip(path, position)
    return path


def _files(log: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in log.iterdir() if p.is_file() and p.name != "LOCK"}


def test_a_good_log(cli: Cli, log: Path) -> None:
    for arguments in ((), ("--confirm",)):
        done = cli("repair", log, *arguments)
        assert (done.code, done.err) == (0, "")
        assert "damaged   nothing" in done.out.decode()
    found = cli("repair", log, "--json").json
    assert (found["needed"], found["applied"], found["steps"], found["lost"]) == (
        *(False, False),
        *([], []),
    )


def test_a_choice_is_asked_for(cli: Cli, log: Path) -> None:
    path = _damage_the_middle(log)
    before = _files(log)
    done = cli("repair", log)
    assert done.code == 2
    assert "--keep OFFSET in [1, 101) or [111, 121)" in done.error
    assert f"{path} at byte" in done.out.decode()
    assert "unreadable  [101, 111)" in done.out.decode()
    refused = cli("repair", log, "--confirm")
    assert refused.code == 1
    assert "several stretches" in refused.error
    assert _files(log) == before


def test_a_dry_run_and_doing_it(cli: Cli, log: Path) -> None:
    _damage_the_middle(log)
    before = _files(log)
    dry = cli("repair", log, "--keep", "before")
    assert dry.code == 2
    assert dry.error == "nothing was changed; give --confirm to do this"
    assert "lost          [101, 121)" in dry.out.decode()
    assert _files(log) == before
    done = cli("repair", log, "--keep", "before", "--confirm")
    assert done.code == 0
    assert done.error == f"repaired; what was replaced is in {log / 'damaged'}"
    assert done.out == dry.out
    assert cli("verify", log).code == 0
    assert len(cli("dump", log).lines) == 100
    assert cli("append", log, stdin=b"next\n").lines[0].split() == ["offsets", "[101,", "102)"]
    kept = {path.read_bytes() for path in (log / "damaged").iterdir()}
    assert set(before.values()) <= kept


def test_as_json(cli: Cli, log: Path) -> None:
    _damage_the_middle(log)
    found = cli("repair", log, "--keep", "115", "--json", "--confirm").json
    assert (found["needed"], found["applied"], found["keep"]) == (True, True, "115")
    assert found["lost"] == [{"start": 1, "limit": 111}]
    assert found["unreadable"] == [{"start": 101, "limit": 111}]
    assert (found["head"], found["limit"], found["reassigned"]) == (111, 121, None)
    (step,) = found["steps"]
    assert (step["kind"], step["lossy"]) == ("advance-head", True)


def test_a_flipped_bit_is_put_right(cli: Cli, damaged: Path) -> None:
    assert "correct-bit: put the flipped bit at byte" in cli("repair", damaged).out.decode()
    assert cli("repair", damaged, "--confirm").code == 0
    assert cli("verify", damaged).code == 0
    assert len(cli("dump", damaged).lines) == 100


def test_harmless_damage_needs_only_a_confirmation(cli: Cli, log: Path) -> None:
    flip(log / "CHECKPOINT", 30)
    assert cli("repair", log).code == 2
    done = cli("repair", log, "--confirm")
    assert done.code == 0
    assert "lost          nothing" in done.out.decode()
    assert cli("repair", log).code == 0


@pytest.mark.slow
def test_a_log_that_is_open(cli: Cli, log: Path, held: Held) -> None:
    flip(log / "CHECKPOINT", 30)
    with held(log):
        done = cli("repair", log)
    assert done.code == 4
    assert "open for writing elsewhere" in done.error


def test_mistakes(cli: Cli, log: Path, tmp_path: Path) -> None:
    done = cli("repair", tmp_path / "nowhere", "--confirm")
    assert (done.code, done.error) == (3, f"there is no log at {tmp_path / 'nowhere'}")
    assert not (tmp_path / "nowhere").exists()
    done = cli("repair", log, "--keep", "everything")
    assert done.code == 1
    assert "'before', 'after' or an offset" in done.error
    done = cli("repair", log, "--keep", "1000")
    assert done.code == 1
    assert "offset 1000 is not readable" in done.error


def test_a_newer_version_is_not_touched(cli: Cli, log: Path) -> None:
    make_newer(max(log.glob("*.wal")))
    done = cli("repair", log, "--confirm")
    assert done.code == 1
    assert "newer version" in done.error
    assert not (log / "damaged").exists()


def test_inspect_shows_what_is_missing_from_the_end(cli: Cli, log: Path) -> None:
    assert cli("inspect", log, "--json").json["missing_from"] is None
    asyncio.run(fill(log, records=10, start=101))
    (path,) = log.glob("*.wal")
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"value 105")])
    assert cli("inspect", log, "--json").json["missing_from"] is None, "damage is for verify"
    last = data.rindex(b"WBF1", 0, data.index(b"value 105"))
    path.write_bytes(data[:last])
    assert cli("inspect", log, "--json").json["missing_from"] == 101
    assert "101: the files end before what had been synced" in cli("inspect", log).out.decode()


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
