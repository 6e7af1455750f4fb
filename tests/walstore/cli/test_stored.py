"""Verbs for logs in a store: looking at one, copying it, ending it; and what they have in common."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.walstore.cli.conftest import Cli, fill, flip
from tests.walstore.cli.test_copying import fragment_files
from walstore.cli.app import run

LINES = [
    ("manifest",),
    ("fragments",),
    ("scrub",),
    ("gc", "plan"),
    ("gc", "apply", "--confirm"),
    ("seal", "--confirm"),
    ("destroy", "--confirm"),
    ("cursors",),
    ("cursors", "--set", "a", "5", "--confirm"),
]
LINE_IDS = [" ".join(line) for line in LINES]


def path_of(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def manifest_file(url: str) -> Path:
    return path_of(url) / "manifest" / "MANIFEST"


def grow(log: Path, url: str) -> None:
    """Ship ten records more, twice."""
    for start in (101, 111):
        asyncio.run(fill(log, records=10, start=start))
        assert run(["upload", str(log), url]) == 0


@pytest.fixture
def shipped(log: Path, stored: str) -> str:
    """The URL of a store with three fragments of 100, 10 and 10 records of that log."""
    grow(log, stored)
    return stored


@pytest.fixture(scope="module")
def made(made_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a store, made once: tests that need no log of it have copies."""
    folder = tmp_path_factory.mktemp("made")
    log, store = shutil.copytree(made_log, folder / "log"), folder / "store"
    assert run(["upload", str(log), store.as_uri()]) == 0
    grow(log, store.as_uri())
    return store


@pytest.fixture
def grown(made: Path, tmp_path: Path) -> str:
    """The URL of a copy of that store."""
    return shutil.copytree(made, tmp_path / "store").as_uri()


# -- in common ---------------------------------------------------------------------------------


@pytest.mark.parametrize("line", LINES, ids=LINE_IDS)
def test_nothing_there(cli: Cli, line: tuple[str, ...], tmp_path: Path) -> None:
    done = cli(*line, (tmp_path / "none").as_uri())
    assert (done.code, done.out) == (3, b"")
    assert "there is no log at" in done.error
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("line", LINES, ids=LINE_IDS)
def test_a_directory_is_no_store(cli: Cli, line: tuple[str, ...], log: Path) -> None:
    if line[0] == "cursors":
        return  # takes either
    done = cli(*line, log)
    assert done.code == 1
    assert f"{line[0]} needs a store URL" in done.error


@pytest.mark.parametrize("line", LINES, ids=LINE_IDS)
def test_a_damaged_manifest(cli: Cli, line: tuple[str, ...], stored: str) -> None:
    manifest_file(stored).write_bytes(b"{}")
    done = cli(*line, stored)
    assert done.code == 2
    assert "MANIFEST" in done.err


@pytest.mark.parametrize("line", LINES, ids=LINE_IDS)
def test_a_secret_in_a_url_is_not_repeated(cli: Cli, line: tuple[str, ...]) -> None:
    done = cli(*line, "s3://me:secret@bucket/x")
    assert done.code == 1
    assert "secret" not in done.err


# -- looking -----------------------------------------------------------------------------------


def test_manifest(cli: Cli, grown: str) -> None:
    done = cli("manifest", grown)
    assert (done.code, done.err) == (0, "")
    text = done.out.decode()
    assert "[1, 121)" in text
    assert text.count("FragmentSeqNo=") == 3
    assert cli("manifest", grown, "--raw").out == manifest_file(grown).read_bytes()
    assert cli("manifest", grown, "--raw", "--json").code == 1


def test_manifest_json(cli: Cli, grown: str) -> None:
    found = cli("manifest", grown, "--json").json
    raw = json.loads(manifest_file(grown).read_bytes())
    assert (found["location"], found["sealed"]) == (grown, False)
    assert (found["head"], found["tail"], found["next_fragment"]) == (1, 121, 4)
    for name, raw_name in [("appended_bytes", "acc_bytes"), ("setsum", "setsum")]:
        assert found[name] == raw[raw_name]
    assert [one["path"] for one in found["fragments"]] == [one["path"] for one in raw["fragments"]]
    assert [(one["start"], one["limit"]) for one in found["fragments"]] == [
        (1, 101),
        (101, 111),
        (111, 121),
    ]


def test_fragments(cli: Cli, grown: str) -> None:
    done = cli("fragments", grown)
    assert (done.code, done.err) == (0, "")
    names, *rows = [line.split() for line in done.lines]
    assert names == ["fragment", "start", "limit", "records", "bytes", "path"]
    sizes = [str(path.stat().st_size) for path in fragment_files(grown)]
    assert [row[:5] for row in rows] == [
        ["1", "1", "101", "100", sizes[0]],
        ["2", "101", "111", "10", sizes[1]],
        ["3", "111", "121", "10", sizes[2]],
    ]
    assert "oldest" in cli("fragments", grown, "--times").lines[0]


def test_fragments_json(cli: Cli, log: Path, shipped: str) -> None:
    rows = cli("fragments", shipped, "--json").rows
    assert [row["seq_no"] for row in rows] == [1, 2, 3]
    assert {len(row["setsum"]) for row in rows} == {64}
    assert "min_timestamp_us" not in rows[0]
    times = [row["timestamp_us"] for row in cli("dump", log).rows]
    timed = cli("fragments", shipped, "--times", "--json").rows
    assert [(row["min_timestamp_us"], row["max_timestamp_us"]) for row in timed] == [
        (times[row["start"] - 1], times[row["limit"] - 2]) for row in rows
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "100"), [1, 2, 3]),
        (("--from", "101"), [2, 3]),
        (("--from", "-1"), [3]),
        (("--to", "101"), [1]),
        (("--from", "105", "--to", "106"), [2]),
        (("--from", "latest"), []),
        (("--from", "2999-01-01"), []),
        (("--to", "2001-01-01"), []),
    ],
)
def test_some_fragments(
    cli: Cli, grown: str, options: tuple[str, ...], expected: list[int]
) -> None:
    rows = cli("fragments", grown, *options, "--json").rows
    assert [row["seq_no"] for row in rows] == expected


# -- cursors -----------------------------------------------------------------------------------


def test_cursors(cli: Cli, grown: str) -> None:
    done = cli("cursors", grown, "--set", "billing", "50")
    assert done.code == 0
    assert "give --confirm to set cursor 'billing' to 50 (there is none yet)" in done.err
    assert cli("cursors", grown, "--json").json["cursors"] == []
    cli("cursors", grown, "--set", "billing", "50", "--confirm")
    found = cli("cursors", grown, "--json").json
    assert (found["location"], found["head"], found["tail"]) == (grown, 1, 121)
    (cursor,) = found["cursors"]
    assert (cursor["name"], cursor["position"], cursor["behind"]) == ("billing", 50, 71)
    assert (cursor["pins"], cursor["expires_us"]) == (True, None)
    cli("cursors", grown, "--set", "billing", "20", "--confirm")
    assert "billing        20" in cli("cursors", grown).out.decode()
    assert "it stands at 20" in cli("cursors", grown, "--delete", "billing").err
    assert cli("cursors", grown, "--delete", "billing", "--confirm", "--json").json["cursors"] == []
    assert cli("cursors", grown, "--delete", "billing", "--confirm").code == 3


def test_a_cursor_for_some_time(cli: Cli, grown: str) -> None:
    line = ("cursors", grown, "--set", "report", "5", "--lease", "3600", "--confirm", "--json")
    (cursor,) = cli(*line).json["cursors"]
    assert cursor["expires_us"] - cursor["updated_us"] == pytest.approx(3600e6, rel=0.01)


def test_a_cursor_that_is_over_is_set_again(cli: Cli, grown: str) -> None:
    """What it held is collected meanwhile: it begins as a new one, where it is set to."""
    cli("cursors", grown, "--set", "report", "5", "--lease", "1e-6", "--confirm")
    cli("cursors", grown, "--set", "billing", "115", "--confirm")
    line = ("gc", "apply", grown, "--interval", "0", "--confirm", "--json")
    assert cli(*line).json["new_head"] > 5
    lower = cli("cursors", grown, "--set", "report", "6", "--confirm")
    assert (lower.code, "was removed from the log" in lower.error) == (1, True)
    done = cli("cursors", grown, "--set", "report", "116", "--confirm", "--json")
    assert {one["name"]: one["position"] for one in done.json["cursors"]} == {
        "billing": 115,
        "report": 116,
    }


@pytest.mark.parametrize("content", [b"{", b"x" * (2 << 20)], ids=["torn", "too long"])
def test_a_damaged_cursor_is_removed(cli: Cli, grown: str, content: bytes) -> None:
    """Nothing is collected before, and it cannot be read to be moved."""
    path = path_of(grown) / "cursor" / "billing.json"
    path.parent.mkdir()
    path.write_bytes(content)
    done = cli("cursors", grown, "--delete", "billing")
    assert done.code == 0
    assert "cursor 'billing' is damaged" in done.err
    assert path.read_bytes() == content
    done = cli("cursors", grown, "--delete", "billing", "--confirm", "--json")
    assert done.code == 0
    assert "cursor 'billing' was damaged" in done.err
    assert done.json["cursors"] == []
    assert cli("gc", "plan", grown).code == 0
    assert cli("cursors", grown, "--delete", "billing", "--confirm").code == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "a/b", "5"), "a cursor's name"),
        (("--set", "a", "122"), "has not reached the store"),
        (("--set", "a", "0"), "removed from the log"),
        (("--set", "a", "5", "--delete", "b"), "not both"),
        (("--lease", "5"), "--lease goes with --set"),
        (("--set", "a", "5", "--lease", "0", "--confirm"), "more than 0 seconds"),
        (("--set", "a", "5", "--lease", "inf", "--confirm"), "must be a finite number of seconds"),
        (("--set", "a", "5", "--lease", "1e300", "--confirm"), "100 years at most"),
    ],
)
def test_cursors_that_cannot_be(
    cli: Cli, grown: str, options: tuple[str, ...], message: str
) -> None:
    done = cli("cursors", grown, *options)
    assert done.code == 1
    assert message in done.error


def test_a_lease_is_for_stores(cli: Cli, log: Path) -> None:
    done = cli("cursors", log, "--set", "a", "5", "--lease", "5")
    assert done.code == 1
    assert "with a store" in done.error


# -- seal, fork, destroy -----------------------------------------------------------------------


def test_seal(cli: Cli, log: Path, shipped: str) -> None:
    done = cli("seal", shipped)
    assert (done.code, done.error) == (0, "nothing was changed; give --confirm to do this")
    assert cli("seal", shipped, "--json").json["sealed"] is False
    found = cli("seal", shipped, "--confirm", "--json").json
    assert found == {"location": shipped, "applied": True, "head": 1, "tail": 121, "sealed": True}
    assert cli("manifest", shipped, "--json").json["sealed"] is True
    assert (cli("seal", shipped, "--confirm").code, cli("seal", shipped).err) == (0, "")
    asyncio.run(fill(log, records=1, start=121))
    for line in (("upload", log, shipped), ("append", shipped)):
        done = cli(*line, stdin=b"x\n")
        assert done.code == 4, done.err
        assert "sealed" in done.err


@pytest.mark.slow
def test_fork(cli: Cli, log: Path, shipped: str, tmp_path: Path) -> None:
    target = (tmp_path / "fork").as_uri()
    found = cli("fork", shipped, target, "--json").json
    assert (found["source"], found["target"]) == (shipped, target)
    assert (found["start"], found["limit"], found["records"]) == (1, 121, 120)
    assert found["setsum"] == cli("manifest", shipped, "--json").json["setsum"]
    assert cli("dump", target).out == cli("dump", log).out
    assert cli("fork", shipped, target).code == 0
    done = cli("fork", shipped, target, "--to", "50")
    assert done.code == 4
    assert "another fork" in done.error
    assert cli("append", target, stdin=b"x\n").code == 0
    assert len(cli("dump", shipped).lines) == 120


def test_a_fork_of_a_part(cli: Cli, grown: str, tmp_path: Path) -> None:
    target = (tmp_path / "fork").as_uri()
    done = cli("fork", grown, target, "--from", "105", "--to", "-5")
    assert (done.code, done.err) == (0, "")
    assert "[101, 116)" in done.out.decode()
    rows = cli("dump", target).rows
    assert [row["offset"] for row in rows] == list(range(101, 116))


def test_forks_that_cannot_be(cli: Cli, grown: str, tmp_path: Path) -> None:
    target = (tmp_path / "fork").as_uri()
    assert cli("fork", grown, target, "--from", "500").code == 1
    assert cli("fork", grown, tmp_path / "fork").code == 1
    assert cli("fork", target, grown).code == 3
    other = (tmp_path / "other").as_uri()
    assert cli("append", other, stdin=b"x\n").code == 0
    done = cli("fork", grown, other)
    assert done.code == 4
    assert "already" in done.error
    flip(fragment_files(grown)[1], 100)
    assert cli("fork", grown, target).code == 2


def test_destroy(cli: Cli, grown: str) -> None:
    done = cli("destroy", grown, "--confirm")
    assert done.code == 1
    assert "is not sealed" in done.error
    cli("seal", grown, "--confirm")
    done = cli("destroy", grown)
    assert done.error == "nothing was changed; give --confirm to do this"
    dry = cli("destroy", grown, "--json").json
    assert (dry["applied"], dry["head"], dry["tail"], dry["objects"]) == (False, 1, 121, None)
    assert len(fragment_files(grown)) == 4  # with the one that the seal put
    found = cli("destroy", grown, "--confirm", "--json").json
    assert (found["location"], found["applied"], found["left"]) == (grown, True, [])
    assert found["objects"] >= 4
    assert fragment_files(grown) == []
    assert cli("manifest", grown).code == 3
    again = cli("destroy", grown, "--confirm", "--json").json
    assert (again["objects"], again["head"]) == (0, None)
    done = cli("append", grown, stdin=b"x\n")
    assert done.code == 3
    assert "was destroyed" in done.error
    assert cli("destroy", grown, "--confirm").code == 0


def test_destroy_without_sealing_first(cli: Cli, grown: str) -> None:
    (path_of(grown) / "log" / "notes.txt").write_text("mine")
    found = cli("destroy", grown, "--unsealed", "--confirm")
    assert found.code == 0
    assert "log/notes.txt" in found.out.decode()
    assert (path_of(grown) / "log" / "notes.txt").exists()


# -- gc ----------------------------------------------------------------------------------------


def test_without_a_cursor_nothing_is_collected(cli: Cli, grown: str) -> None:
    found = cli("gc", "plan", grown, "--json").json
    assert (found["records"], found["fragments"], found["held_by"]) == (0, 0, "no cursor")
    assert cli("gc", "apply", grown, "--confirm", "--interval", "0").code == 0
    assert len(fragment_files(grown)) == 3


def test_gc(cli: Cli, grown: str, tmp_path: Path) -> None:
    cli("cursors", grown, "--set", "billing", "115", "--confirm")
    size = sum(path.stat().st_size for path in fragment_files(grown)[:2])
    plan = cli("gc", "plan", grown, "--json").json
    assert (plan["applied"], plan["head"], plan["new_head"], plan["tail"]) == (False, 1, 111, 121)
    assert (plan["cutoff"], plan["held_by"]) == (115, "cursor billing")
    assert (plan["records"], plan["fragments"], plan["bytes"]) == (110, 2, size)
    assert plan["cursors"] == [{"name": "billing", "position": 115}]
    dry = cli("gc", "apply", grown)
    assert (dry.code, dry.error) == (0, "nothing was changed; give --confirm to do this")
    assert cli("manifest", grown, "--json").json["head"] == 1
    audit = tmp_path / "audit.jsonl"
    line = ("gc", "apply", grown, "--confirm", "--interval", "0", "--audit", audit, "--json")
    found = cli(*line).json
    assert (found["applied"], found["new_head"], found["due_us"]) == (True, 111, None)
    assert [one["kind"] for one in found["deleted"]] == ["fragment", "fragment"]
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert lines == [{name: one[name] for name in lines[0]} for one in found["deleted"]]
    assert len(fragment_files(grown)) == 1
    assert cli("verify", grown).code == 0
    assert [row["offset"] for row in cli("dump", grown).rows] == list(range(111, 121))


def test_gc_refuses_an_audit_file_that_cannot_be_written(
    cli: Cli, grown: str, tmp_path: Path
) -> None:
    cli("cursors", grown, "--set", "billing", "115", "--confirm")
    before = fragment_files(grown)
    line = ("gc", "apply", grown, "--confirm", "--interval", "0", "--audit")
    for audit in (tmp_path, tmp_path / "none" / "audit.jsonl"):
        done = cli(*line, audit)
        assert (done.code, f"--audit {audit} cannot be written" in done.error) == (1, True)
        assert "nothing was removed" in done.error
        assert (fragment_files(grown), cli("manifest", grown, "--json").json["head"]) == (before, 1)


def test_gc_tells_what_its_audit_file_does_not_take(cli: Cli, grown: str) -> None:
    cli("cursors", grown, "--set", "billing", "115", "--confirm")
    done = cli("gc", "apply", grown, "--confirm", "--interval", "0", "--audit", "/dev/full")
    assert done.code == 1
    assert "the audit file /dev/full cannot be written: No space left on device" in done.error
    assert '"kind":"fragment"' in done.error.replace(" ", "")
    assert cli("gc", "apply", grown, "--confirm", "--interval", "0").code == 0
    assert len(fragment_files(grown)) == 1


def test_gc_in_two_runs(cli: Cli, grown: str) -> None:
    """The first takes the records out of the log, a later one deletes the objects."""
    cli("cursors", grown, "--set", "billing", "111", "--confirm")
    done = cli("gc", "apply", grown, "--confirm")
    assert done.code == 0
    assert "run this again" in done.error
    assert cli("manifest", grown, "--json").json["head"] == 111
    assert len(fragment_files(grown)) == 3
    plan = cli("gc", "plan", grown, "--json").json
    assert plan["pending"] is True
    assert plan["due_us"] is not None
    again = cli("gc", "apply", grown, "--confirm", "--json").json
    assert (again["due_us"], again["deleted"]) == (plan["due_us"], [])


def test_gc_that_waits(cli: Cli, grown: str) -> None:
    cli("cursors", grown, "--set", "billing", "111", "--confirm")
    line = ("gc", "apply", grown, "--confirm", "--interval", "1", "--wait", "--json")
    assert len(cli(*line).json["deleted"]) == 2
    assert len(fragment_files(grown)) == 1


def test_a_refused_collection(cli: Cli, grown: str) -> None:
    cli("cursors", grown, "--set", "billing", "121", "--confirm")
    plan = cli("gc", "plan", grown, "--max-fraction", "0.1")
    assert plan.code == 0
    assert plan.err.startswith("walstore: refused: ")
    done = cli("gc", "apply", grown, "--max-fraction", "0.1", "--confirm", "--interval", "0")
    assert done.code == 1
    assert len(fragment_files(grown)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("bogus", "file:///x"), "invalid value for 'ACTION'"),
        (("plan", "file:///x", "--max-fraction", "2"), "max_drop_fraction must be"),
        (
            ("plan", "file:///x", "--keep-bytes", "-1"),
            "keep_bytes must be a whole number of bytes, 0 or more",
        ),
        (
            ("plan", "file:///x", "--interval", "inf"),
            "interval_seconds must be a number of seconds",
        ),
        (
            ("plan", "file:///x", "--keep-seconds", "inf"),
            "keep_seconds must be a number of seconds",
        ),
    ],
)
def test_gc_mistakes(cli: Cli, options: tuple[str, ...], message: str) -> None:
    done = cli("gc", *options)
    assert done.code == 1
    assert message in done.error


# -- scrub -------------------------------------------------------------------------------------


def test_scrub(cli: Cli, grown: str) -> None:
    done = cli("scrub", grown)
    assert (done.code, done.err) == (0, "")
    found = cli("scrub", grown, "--json").json
    assert (found["ok"], found["complete"], found["next_start"]) == (True, True, None)
    assert (found["fragments"], found["records"], found["limit"]) == (3, 120, 121)
    assert found["setsum"] == cli("manifest", grown, "--json").json["setsum"]
    assert found["findings"] == []


def test_scrub_names_all_damage(cli: Cli, grown: str) -> None:
    first, second, _ = fragment_files(grown)
    flip(first, 100)
    second.unlink()
    done = cli("scrub", grown)
    assert done.code == 2
    assert first.name in done.err
    assert second.name in done.err
    found = cli("scrub", grown, "--json")
    assert (found.code, found.json["ok"]) == (2, False)
    errors = [one for one in found.json["findings"] if one["severity"] == "error"]
    assert {Path(one["key"]).name for one in errors} >= {first.name, second.name}
    assert all(one["what"] and one["advice"] for one in errors)


def test_scrub_in_parts(cli: Cli, grown: str) -> None:
    done = cli("scrub", grown, "--max-fragments", "1")
    assert done.code == 0
    assert done.error == "not all of it was looked at; continue with --start 101"
    found = cli("scrub", grown, "--start", "101", "--json").json
    assert (found["fragments"], found["complete"]) == (2, True)


# -- append ------------------------------------------------------------------------------------


def test_append_to_a_store(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    found = cli("append", url, "--key", "k", "--stream", "s", "--json", stdin=b"one\ntwo\n").json
    assert found == {"url": url, "start": 1, "limit": 3, "records": 2, "bytes": 6}
    done = cli("append", url, "--length-prefixed", stdin=b"\0\0\0\1x")
    assert (done.code, done.err) == (0, "")
    assert "[3, 4)" in done.out.decode()
    rows = cli("dump", url).rows
    assert [(row["value"], row["key"], row["stream"]) for row in rows] == [
        ("one", "k", "s"),
        ("two", "k", "s"),
        ("x", None, None),
    ]
    assert cli("append", url, "--json").json["records"] == 0


def test_append_to_where_a_local_log_ships(cli: Cli, stored: str) -> None:
    done = cli("append", stored, stdin=b"x\n")
    assert done.code == 4
    assert "belongs to a local log" in done.error


def test_append_what_cannot_be(cli: Cli, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    done = cli("append", url, "--durability", "disk", stdin=b"x\n")
    assert done.code == 1
    assert "for log directories" in done.error
    assert cli("append", url, "--tier", url, stdin=b"x\n").code == 1
    done = cli("append", url, "--length-prefixed", stdin=b"\0\0\0\1x\0\0\0\\9x")
    assert done.code == 1
    assert "(1 records before this are committed: [1, 2); none behind it)" in done.error
    assert len(cli("dump", url).lines) == 1
    shutil.rmtree(path_of(url))
