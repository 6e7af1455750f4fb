"""walstore prove as its users see it: verdict, page, exit code, what it refuses and what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests import programs
from tests.waiting import wait_until
from tests.walstore.cli.conftest import Cli

ROOT = Path(__file__).parents[4]
LOSES_WRITES = """
import os
pwritev, calls = os.pwritev, [0]
def lose(descriptor, pieces, position):
    calls[0] += 1
    if calls[0] % 9 == 0 and position >= 4096:
        return sum(memoryview(piece).nbytes for piece in pieces)
    return pwritev(descriptor, pieces, position)
os.pwritev = lose
"""
"""A system that reports success for a write that it does not make."""


def _prove(*arguments: object, **environment: str) -> tuple[int, str, str]:
    done = programs.run(
        programs.WALSTORE,
        "prove",
        *arguments,
        imports=programs.COMMANDS,
        environment=environment,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.kill
def test_a_directory(tmp_path: Path) -> None:
    mine = tmp_path / "disk" / "mine"
    mine.parent.mkdir()
    mine.write_text("untouched")
    code, out, err = _prove(
        *(mine.parent, "--minutes", 0.001, "--only", "full,kills", "--seed", 3),
        *("--page", tmp_path / "page.html", "--json"),
    )
    assert (code, err) == (0, "walstore: prove: ok\n")
    report = json.loads(out)
    assert report["ok"]
    assert report["rounds"] == {"full": 1}
    assert (report["seed"], report["last_seed"]) == (3, 3)
    assert report["counts"]["full"]["full_disks"] > 0
    assert {"what": "rounds of kills", "why": "no time"} in report["not_tried"]
    assert {"what": "rounds of flips", "why": "left out"} in report["not_tried"]
    assert "p99" in report["environment"]["write + fdatasync"]
    assert [path.name for path in mine.parent.iterdir()] == ["mine"]
    page = (tmp_path / "page.html").read_text()
    assert "All rules held: 1 rounds" in page
    assert not re.search(r"(?:src|href)=|url\(|@import", page)  # nothing from elsewhere


@pytest.mark.slow
@pytest.mark.kill
def test_a_store(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    code, out, err = _prove(url, "--minutes", 0.001, "--only", "faults", "--seed", 5)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[-1] == "prove: ok"
    assert any(line.startswith("lost answers") for line in lines)
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.slow
@pytest.mark.kill
def test_a_broken_rule(tmp_path: Path) -> None:
    """The processes of the rounds run on a system that loses writes."""
    (tmp_path / "lying").mkdir()
    (tmp_path / "lying" / "sitecustomize.py").write_text(LOSES_WRITES)
    place = tmp_path / "disk"
    place.mkdir()
    page = tmp_path / "page.html"
    code, out, err = _prove(
        *(place, "--only", "kills", "--seed", 2, "--page", page, "--json"),
        PYTHONPATH=f"{tmp_path / 'lying'}{os.pathsep}{ROOT}",
    )
    assert code == 2, err
    report = json.loads(out)
    assert not report["ok"]
    assert report["problems"][0].startswith(f"kills, seed {report['last_seed']}: ")
    assert report["repeat"] == (f"walstore prove {place} --only kills --seed {report['last_seed']}")
    assert any(Path(report["evidence"]).rglob("*.wal"))
    shown = page.read_text()
    assert "A rule was broken" in shown
    assert report["repeat"] in shown
    assert err.splitlines()[-3:] == [
        f"walstore: rule: {report['rule']}",
        f"walstore: repeat: {report['repeat']}",
        f"walstore: evidence: {report['evidence']}",
    ]


@pytest.mark.slow
@pytest.mark.kill
def test_a_signal_ends_it_early(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as out:
        arguments = (tmp_path, "--only", "full", "--seed", 1, "--minutes", 60, "--json")
        program = programs.start(
            programs.WALSTORE,
            *("prove", *arguments),
            imports=programs.COMMANDS,
            stdout=out.fileno(),
            stderr=out.fileno(),
        )
        wait_until(lambda: any(tmp_path.glob("walstore-prove-*/full-2/log")))
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 0
        out.seek(0)
        report = json.loads(out.readline())
    assert report["ok"]
    assert report["interrupted"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("missing",), 3, "there is no directory missing"),
        (("",), 1, "the name of the log directory is empty"),
        (("memory://x",), 1, "a memory:// store is gone when this command ends"),
        (("etcd://127.0.0.1:1",), 1, "must begin with"),
        (("tcp://127.0.0.1:1",), 1, "is the address of a server, which does not do this"),
        ((".", "--only", "kils"), 1, "no rounds of 'kils' here; --only takes kills,pauses,full"),
        (("file:///x", "--only", "flips"), 1, "no rounds of 'flips' here"),
        ((".", "--minutes", "0"), 1, "--minutes"),
        ((".", "--seed", "-1"), 1, "--seed"),
        ((".", "--page", "no/such/file"), 3, "no such file or directory: no/such/file"),
    ],
)
def test_mistakes(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("prove", *arguments)
    assert (done.code, done.out) == (code, b"")
    assert words in done.error
    assert list(tmp_path.iterdir()) == []
