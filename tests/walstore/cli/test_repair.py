"""walstore repair: dry until confirmed, says what is lost, and one line for every mistake."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.walstore.cli.conftest import Cli, fill, flip, make_newer
from walstore import Wal


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


def test_a_log_that_is_open(log: Path) -> None:
    flip(log / "CHECKPOINT", 30)

    async def hold() -> tuple[int | None, bytes]:
        async with Wal.open(log):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "walstore.cli", "repair", str(log)),
                stderr=asyncio.subprocess.PIPE,
            )
            _, err = await process.communicate()
            return process.returncode, err

    code, err = asyncio.run(hold())
    assert code == 4
    assert b"open for writing elsewhere" in err
    assert len(err.splitlines()) == 1


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
