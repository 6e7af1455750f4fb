from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ci import selection
from tests.ci.dependencies import make_graph
from tests.ci.selection import FAR, Reason, Selection, select

FILES = {
    "docs/log.md": "",
    "tests/test_house.py": "",
    "tests/cli/test_cli.py": 'run("-m", "walstore")',
    "tests/cli/test_docs.py": 'PAGE = ROOT / "docs" / "log.md"',
    "tests/log/test_wal.py": "from tests.wals import write",
    "tests/log/test_errors.py": "from walstore.errors import WalError",
    "tests/wals.py": "from walstore import Wal",
    "walstore/__init__.py": "from walstore.log import Wal",
    "walstore/__main__.py": "from walstore.errors import WalError",
    "walstore/errors.py": "",
    "walstore/log.py": "from walstore.errors import WalError",
}


def reached(*changed: str) -> dict[str, int]:
    found = select(changed, make_graph(FILES))
    assert found.left_out | found.reached.keys() == {
        path for path in FILES if path.rpartition("/")[2].startswith("test_")
    }
    assert not found.left_out & found.reached.keys()
    return {path: why.distance for path, why in found.reached.items()}


def test_tests_that_need_a_changed_module_are_reached() -> None:
    assert reached("walstore/log.py") == {"tests/log/test_wal.py": 2, "tests/test_house.py": FAR}
    assert reached("walstore/errors.py") == {
        "tests/cli/test_cli.py": 2,
        "tests/log/test_errors.py": 1,
        "tests/log/test_wal.py": 3,
        "tests/test_house.py": FAR,
    }


def test_a_test_that_changed_itself_is_reached() -> None:
    assert reached("tests/cli/test_cli.py")["tests/cli/test_cli.py"] == 0


def test_a_page_reaches_the_tests_that_read_it() -> None:
    assert reached("docs/log.md") == {"tests/cli/test_docs.py": 1, "tests/test_house.py": FAR}


def test_a_package_is_far_from_the_users_of_its_modules() -> None:
    assert reached("walstore/__init__.py")["tests/log/test_errors.py"] == FAR


@pytest.mark.parametrize("path", ["pyproject.toml", "tests/conftest.py", "tests/ci/rotation.py"])
def test_what_concerns_all_tests_reaches_all(path: str) -> None:
    assert len(reached(path)) == 5


def test_nothing_changed() -> None:
    assert reached() == {}


def test_a_reason_is_the_way_to_the_change() -> None:
    found = select(["walstore/errors.py"], make_graph(FILES)).reached["tests/log/test_wal.py"]
    assert str(found) == (
        "tests/log/test_wal.py < tests/wals.py < walstore/log.py < walstore/errors.py"
    )


def test_the_tests_of_the_changed_package_come_first_then_the_nearest() -> None:
    change = "walstore/log/wal.py"
    distances = {
        "tests/a/test_a.py": 2,
        "tests/b/test_b.py": 1,
        "tests/walstore/log/test_wal.py": 4,
        "tests/c/test_c.py": 3,
    }
    reasons = {name: Reason(steps, (name, change)) for name, steps in distances.items()}
    assert Selection(reasons, frozenset()).nearest() == [
        "tests/walstore/log/test_wal.py",
        "tests/b/test_b.py",
        "tests/a/test_a.py",
    ]


# Random trees: what is reached, compared with a walk over what was written into the files.

FORMS = (
    "from {package}.{module} import value",
    "from {package} import {module}",
    "import {package}.{module}",
    "import {package}.{module} as other",
    "from {package} import {module}_value",
    "import {package}\n{package}.{module}_value",
    "def late():\n    from {package}.{module} import (\n        value,  # noqa (late)\n    )",
    'def start():\n    program = "import os\\nfrom {package}.{module} import value"',
    'NAME = "{package}.{module}.value"',
    'run("-m", "{package}.{module}")',
)
PACKAGES = ("walstore", "tests.help")
MODULES = tuple((package, f"m{number}") for package in PACKAGES for number in range(6))


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return files, and which others each of them refers to."""
    files: dict[str, str] = {}
    for package in PACKAGES:
        names = [name for owner, name in MODULES if owner == package]
        exports = [f"from {package}.{name} import value as {name}_value\n" for name in names]
        files[f"{package.replace('.', '/')}/__init__.py"] = "".join(exports)
    references: dict[str, set[str]] = {}
    users = [f"{package.replace('.', '/')}/{name}.py" for package, name in MODULES]
    users += [f"tests/deep/test_{number}.py" for number in range(6)]
    for user in users:
        # What the product refers to by text alone, it does not run.
        forms = FORMS[:-3] if user.startswith("walstore/") else FORMS
        uses = draw(
            st.lists(st.tuples(st.sampled_from(MODULES), st.sampled_from(forms)), max_size=2)
        )
        files[user] = "\n".join(form.format(package=p, module=m) for (p, m), form in uses) + "\n"
        references[user] = {f"{p.replace('.', '/')}/{m}.py" for (p, m), _ in uses}
    return files, references


@given(trees(), st.sampled_from(MODULES))
def test_no_test_is_left_out_that_needs_a_changed_module(
    tree: tuple[dict[str, str], dict[str, set[str]]], module: tuple[str, str]
) -> None:
    files, references = tree
    changed = f"{module[0].replace('.', '/')}/{module[1]}.py"
    found = select([changed], make_graph(files))
    for test in (path for path in files if "/test_" in path):
        needed, waiting = set(), [test]
        while waiting:
            path = waiting.pop()
            if path not in needed:
                needed.add(path)
                waiting += references[path]
        assert (test in found.reached) == (changed in needed)


# The repository itself.


@pytest.fixture(scope="module")
def own() -> selection.Graph:
    return selection.read_graph()


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("walstore/core/format/frame.py", "tests/walstore/core/format/test_frame.py"),
        ("walstore/log/engine.py", "tests/scenarios/test_12_local_kill.py"),
        ("tests/scenarios/kill_child.py", "tests/scenarios/test_12_local_kill.py"),
        ("walstore/cli/app.py", "tests/scenarios/test_78_served_and_killed.py"),
        ("walstore/spark/source.py", "tests/scenarios/test_70_spark_exactly_once.py"),
        ("walstore/spark/versioned/source.py", "tests/scenarios/test_75_spark_compaction.py"),
        ("tests/spark_path/sitecustomize.py", "tests/walstore/spark/sink/test_sink_spark.py"),
        ("walstore/core/runtime/extras.py", "tests/walstore/core/runtime/test_extras.py"),
        ("tests/golden/log_v1/CHECKPOINT", "tests/golden/test_golden_log.py"),
        ("tests/golden/wal3_garbage/cursor.json", "tests/uploader/format/test_cloud_cursor.py"),
        ("docs/format.md", "tests/walstore/core/format/test_frame.py"),
        ("docs/cli.md", "tests/walstore/cli/test_docs.py"),
        ("examples/order_book.py", "tests/examples/test_examples.py"),
        ("bench/report/figures.py", "tests/bench/test_report.py"),
        ("tools/grafana.py", "tests/test_grafana.py"),
        ("Makefile", "tests/test_docs.py"),
    ],
)
def test_tests_that_a_change_of_this_repository_reaches(
    own: selection.Graph, changed: str, test: str
) -> None:
    assert changed in own
    assert test in select([changed], own).reached


def test_a_change_of_the_command_line_leaves_most_tests_out(own: selection.Graph) -> None:
    found = select(["walstore/cli/append.py"], own)
    assert len(found.reached) < len(found.left_out)
    assert "tests/walstore/core/format/test_frame.py" in found.left_out


# What git knows.


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two commits a day apart."""
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    monkeypatch.delenv("WALSTORE_BASE", raising=False)
    for key in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(key, "test")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for number in range(3):
        (tmp_path / f"file{number}.py").write_text(f"x = {number}\n")
        git(tmp_path, "add", "--all")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{1_700_000_000 + number * 40_000} +0000")
        git(tmp_path, "commit", "--quiet", "--message", f"commit {number}")
    return tmp_path


def git(directory: Path, *arguments: str) -> str:
    command = ("git", *arguments)
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout


def test_what_changed_since_a_commit(repository: Path) -> None:
    (repository / "new.py").write_text("")
    (repository / "link").symlink_to(repository.parent)
    (repository / "file0.py").unlink()
    assert selection.changed_since("HEAD") == {"new.py", "file0.py"}
    assert selection.changed_since("HEAD~1") == {"new.py", "file0.py", "file2.py"}


def test_the_last_change_is_what_is_not_committed_or_the_last_commit(repository: Path) -> None:
    assert selection.last_base() == "HEAD~1"
    (repository / "file0.py").write_text("x = 5\n")
    assert selection.last_base() == "HEAD"


def test_a_deleted_module_reaches_its_importers(repository: Path) -> None:
    tests = repository / "tests" / "deep"
    tests.mkdir(parents=True)
    (tests / "test_it.py").write_text("from helpers.one import value\n")
    found = select(["helpers/one.py"], selection.read_graph(["helpers/one.py"]))
    assert found.reached.keys() == {"tests/deep/test_it.py"}


def test_the_base_of_ci(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = git(repository, "log", "--format=%H").split()
    assert selection.ci_base() == commits[2]  # the second is 11 hours older than the last
    git(repository, "update-ref", "refs/remotes/origin/main", commits[0])
    assert selection.ci_base() == commits[2]
    git(repository, "update-ref", "refs/remotes/origin/main", commits[1])
    assert selection.ci_base() == commits[1]
    monkeypatch.setenv("WALSTORE_BASE", "v1")
    assert selection.ci_base() == "v1"


def test_the_command_prints_files_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    selection.main(["--since", "HEAD", "--why"])
    printed = capsys.readouterr()
    assert "test files" in printed.err
    assert all(" < " in line or " tests/" in line for line in printed.out.splitlines())
