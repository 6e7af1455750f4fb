"""The application: help, versions, mistakes on the command line, missing extras, pipes and signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import walstore
from tests import programs
from tests.cases import case
from tests.walstore.cli.conftest import Cli

VERBS = (
    *("append", "tail", "dump", "serve"),
    *("ls", "top", "inspect", "segments", "fragments", "manifest", "cursors", "group"),
    *("check", "verify", "scrub", "repair", "upload", "restore", "fork", "rotate"),
    *("trim", "gc", "seal"),
    "destroy",
    *("bench", "demo", "prove", "soak", "collection", "logs"),
)
COLLECTION_VERBS = (
    *("create", "show", "read", "write", "materialize"),
    *("compact", "gc", "expire", "delete"),
)
LOGS_VERBS = (
    "list",
    "apply",
    "edit",
    "move",
    "suspend",
    "resume",
    "scrub",
    "remove",
    "reset-head",
    "give-up",
)
GROUPS = {"collection": COLLECTION_VERBS, "logs": LOGS_VERBS}


def test_version(cli: Cli) -> None:
    done = cli("--version")
    assert (done.code, done.lines) == (0, [f"walstore {walstore.__version__}"])


def test_without_a_verb_the_help_is_shown(cli: Cli) -> None:
    done = cli()
    assert done.code == 1
    assert done.lines[0].startswith("Usage: walstore")
    assert done.err == ""


def test_help_names_every_verb_and_the_exit_codes(cli: Cli) -> None:
    done = cli("--help")
    text = " ".join(done.out.decode().split())
    assert done.code == 0
    assert all(verb in text for verb in VERBS)
    assert "0 ok, 1 usage or operation, 2 corruption, 3 not found, 4 locked or fenced" in text


def test_help_is_one_tidy_screen(cli: Cli) -> None:
    """A line for each verb, under headings; nothing is cut off."""
    lines = cli("--help").lines
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert "..." not in "".join(lines[1:])
    verbs = [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].islower()]
    assert [verb for verb in verbs if verb in VERBS] == list(VERBS)


def test_every_verb_has_help_with_examples_and_json(cli: Cli) -> None:
    verbs = [verb for verb in VERBS if verb not in GROUPS]
    verbs += [f"{group} {verb}" for group, found in GROUPS.items() for verb in found]
    for verb in verbs:
        with case(verb):
            done = cli(*verb.split(), "--help")
            text = done.out.decode()
            assert done.code == 0
            assert "Examples:" in text
            assert text.count(f"walstore {verb}") >= 3
            assert "--json" in text


def test_help_of_a_group_names_its_verbs(cli: Cli) -> None:
    for group, verbs in GROUPS.items():
        for arguments, code in (([group, "--help"], 0), ([group], 1)):
            done = cli(*arguments)
            assert (done.code, done.err) == (code, "")
            lines = done.lines[done.lines.index("Commands:") + 1 :]
            assert [line.split()[0] for line in lines] == list(verbs)
            assert "..." not in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["xyzzy"], "no such command 'xyzzy'; see 'walstore --help'"),
        (["dump"], "missing argument 'LOCATION'; see 'walstore dump --help'"),
        (["dump", "x", "--bogus"], "no such option: --bogus; see 'walstore dump --help'"),
        (["dump", "x", "--limit", "-1"], "invalid value for '--limit'"),
        (["dump", "x", "--value", "rot13"], "invalid value for '--value'"),
        (["tail", "x", "y"], "got unexpected extra argument"),
    ],
)
def test_bad_usage_is_one_line_and_code_1(cli: Cli, arguments: list[str], message: str) -> None:
    done = cli(*arguments)
    assert done.code == 1
    assert message in done.error
    assert done.out == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["upload", "file:///x", "file:///y"], "upload needs a log directory"),
        (["upload", "x", "y"], "upload needs a store URL"),
        (["inspect", ""], "the name of the log directory is empty"),
        (["dump", "gopher://x"], "a store URL must begin with"),
        (["dump", "s3://user:secret@bucket/x"], "a store URL must not hold credentials"),
        (["dump", "file:relative"], "a store URL begins with file://"),
    ],
)
def test_locations_that_make_no_sense(cli: Cli, arguments: list[str], message: str) -> None:
    done = cli(*arguments)
    assert done.code == 1
    assert message in done.error
    assert "secret" not in done.err


@pytest.mark.slow
def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    program = "import sys; sys.modules[{!r}] = None; from walstore.__main__ import main; main()"
    url = tmp_path.as_uri()
    done = programs.run(program.format("pyarrow"), "dump", url)
    assert done.returncode == 1
    assert done.stderr == (
        "walstore: the cloud tier needs the extra 'cloud' (pyarrow cannot be imported by "
        f'{sys.executable}): pip install "walstore[cloud]"\n'
    )
    for package in ("typer", "rich", "aiofiles"):
        done = programs.run(program.format(package), "dump", url)
        assert done.returncode == 1
        assert done.stderr == (
            f"walstore: the command line needs the extra 'cli' ({package} cannot be imported by "
            f'{sys.executable}): pip install "walstore[cli]"\n'
        )


@pytest.mark.slow
def test_verbs_on_directories_need_no_cloud_extra(log: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = sys.modules['aioboto3'] = sys.modules['pyspark'] = None\n"
        "from walstore.cli.app import run\n"
        "print([run([verb, sys.argv[1]]) for verb in ('dump', 'tail', 'inspect', 'verify')])"
    )
    assert programs.run(program, log).stdout.splitlines()[-1] == "[0, 0, 0, 0]"


@pytest.mark.slow
def test_a_reader_of_stdout_that_goes_away_is_no_error(log: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "walstore.cli", "tail", "-f", str(log), "--from", "earliest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"value 1\n"
    process.stdout.close()
    # It learns of that with the next record.
    appended = subprocess.run(
        [sys.executable, "-m", "walstore.cli", "append", str(log)],
        input=b"more\n" * 1000,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert appended.returncode == 0
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_mistakes_of_ours_show_a_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from walstore.cli import records

    monkeypatch.setattr(records, "open_location", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("dump", "somewhere")
