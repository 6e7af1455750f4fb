"""Who may import whom: the contracts of pyproject.toml, checked with every test run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

IMPORT_CORE = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # importing one of these now fails
import walstore
for name in walstore.__all__:
    getattr(walstore, name)
"""


def test_the_import_contracts_hold() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_core_runs_without_cloud_tier_and_extras() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    absent = next(item["forbidden_modules"] for item in contracts if item["id"] == "core")
    assert {"uploader", "pyarrow"} <= set(absent)
    command = [sys.executable, "-c", IMPORT_CORE, *absent]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


PARSERS = {
    "loads",
    "unpackb",
    "read_document",
    "inspect_fragment",
    "parse_marker",
    "read_metadata",
    "ParquetFile",
}
DOCUMENTS = {
    "CloudCursor",
    "CommitRecord",
    "Fields",
    "Garbage",
    "Hold",
    "Link",
    "Manifest",
    "Snapshot",
}


def test_whole_objects_are_read_with_a_limit_and_parsed_aside() -> None:
    """Of what lies in a bucket: ``uploader/root/stored_document.py`` says why, and does both."""
    found = []
    for path in sorted((ROOT / "uploader").rglob("*.py")):
        place = path.relative_to(ROOT / "uploader")
        if place.parts[0] in {"stores", "testing"} or place.name == "stored_document.py":
            continue
        for call in _calls_on_the_loop(ast.parse(path.read_text(encoding="utf-8"))):
            if _reads_whole(call) or _parses(call):
                found.append(f"{place}:{call.lineno} {ast.unparse(call)}")
    assert found == []


def _calls_on_the_loop(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that coroutines make themselves, and those that they pass on unmade: ``partial``."""
    for function in ast.walk(tree):
        if isinstance(function, ast.AsyncFunctionDef):
            waiting: list[ast.AST] = list(function.body)
            while waiting:
                node = waiting.pop()
                if isinstance(node, ast.Call):
                    yield node
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                    waiting += ast.iter_child_nodes(node)


def _reads_whole(call: ast.Call) -> bool:
    """Return whether a store is asked for an object, at once or by ``partial`` and ``map``."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "get"
        and _last_name(node.value) in {"store", "inner", "source", "target", "log"}
        for node in (call.func, *call.args)
    )


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_")
    return ""


def _parses(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id=name):
            return name in PARSERS
        case ast.Attribute(value=ast.Name(id=owner), attr="parse"):
            return owner in DOCUMENTS
        case ast.Attribute(attr=name):
            return name in PARSERS
    return False


def test_no_group_of_errors_reaches_a_caller() -> None:
    """``task_group`` raises one of their errors. Code that makes a TaskGroup itself also takes it apart."""
    found = []
    for path in sorted((ROOT / "uploader").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        makes_groups = re.search(
            r"(asyncio\.|Loop)TaskGroup\(\)|\(asyncio\.TaskGroup\):", path.read_text()
        )
        if "/testing/" not in place and makes_groups:
            found.append(place)
    assert found == [
        "uploader/runtime/task_groups.py",
        "uploader/write/commit_loop.py",
        "uploader/write/fragment_cutter.py",
    ]


TASKS_WITHOUT_A_GROUP = {
    # Owners. The object keeps the task, ends it and waits for its end.
    "uploader/positions/groups/job_records.py DeadLetters.begin": "aclose() ends it",
    "uploader/read/fragment_reader.py FragmentReader.spawn": "aclose() ends it",
    "uploader/runtime/task_groups.py BackgroundTask.start": "aclose() ends it",
    "walstore/positions/cursors/cursor_keeper.py CursorKeeper.start": "stop() ends it",
    "walstore/positions/groups/coordinator.py GroupCoordinator.load": "aclose() ends it",
    "walstore/positions/groups/coordinator.py GroupCoordinator.lose": "aclose() ends it",
    "walstore/positions/groups/coordinator.py GroupCoordinator.retire": "the next one of its name waits",
    "walstore/positions/groups/numbered_letters.py NumberedLetters.start": "aclose() waits for it",
    "walstore/positions/groups/journal_writer.py JournalWriter.write": "aclose() waits for it",
    "walstore/core/read/log_watch.py LogWatch.wait": "the last waiter ends it",
    "walstore/cluster/replication/confirmations.py Confirmations.wait": "aclose() ends it",
    "walstore/cluster/replication/healing.py Healer.heal": "it repairs once for all; aclose() ends it",
    "walstore/cluster/replication/primary.py Primary._confirm": "it waits for them",
    "walstore/cluster/replication/node.py ReplicaNode._look_soon": "it looks once; aclose() waits for it",
    "walstore/cluster/replication/primary.py Primary._spawn": "aclose() ends it",
    # Work that goes on when the caller that began it is cancelled, so no block can hold it.
    "uploader/write/cloud_writer.py CloudWriter._start": "the supervisor; aclose() waits for it",
    "walstore/positions/queue.py RequestQueue._spawn": "ends with the change; aclose() waits for it",
    "walstore/positions/queue.py RequestQueue._wake": "ends when the queue is empty; aclose() waits for it",
    "walstore/http/http_server.py HttpServer._finish": "it waits for it",
    "walstore/http/http_server.py HttpServer._listen": "aclose() ends it",
    "walstore/http/metrics_server.py serve_metrics": "its block ends it",
    "walstore/http/proxy.py Proxy._while": "its block ends it",
    "walstore/http/http_server.py HttpServer.aclose": "the closing itself; aclose() waits for it",
    "walstore/log/engine.py Engine._start": "the supervisor; aclose() waits for it",
    "walstore/net/remote/client.py Client._reconnect": "aclose() ends it",
    "walstore/net/remote/client.py Client.connect": "aclose() ends it",
    "walstore/net/remote/server_search.py find_server": "ended in place",
    "walstore/cluster/member.py ClusterMember.join": "aclose() waits for it",
    "walstore/cluster/replication/claim.py LeaderClaim.take": "aclose() ends it",
    "walstore/cluster/replication/primary.py Primary.drain": "ended in place",
    "walstore/http/answers.py Answers._large": "its last client cancels it",
    "walstore/http/sending.py Sending._is_taken": "it ends with the connection",
    "walstore/core/runtime/tasks.py run_to_end": "it waits for it",
    "walstore/core/runtime/time_limit.py within": "it waits for both",
    "walstore/core/runtime/tasks.py start_task": "its callers have it",
    "walstore/topology/session.py Session.__init__": "aclose() ends it",
    "walstore/serve/client_connection.py ClientConnection._lead_to": "connection_lost() ends it",
    "walstore/serve/running_requests.py RunningRequests.abandon": "the server waits for it when it stops",
    "walstore/serve/running_requests.py RunningRequests.start": "the server waits for it when it stops",
    "walstore/serve/server.py Server.__init__": "aclose() ends it",
    "walstore/serve/server.py Server.aclose": "the closing itself; aclose() waits for it",
    "walstore/store/wal_store.py WalStore.__init__": "aclose() ends it",
    "walstore/store/wal_store.py WalStore._begin_to_close": "the closing itself; aclose() waits for it",
    # The supervisor's own tasks. It waits for each, however often it is cancelled; the failure of one
    # must not cancel the others, as it does in a group.
    "walstore/log/engine.py Engine._close_through": "waited for in place",
    "walstore/log/engine.py Engine._start_writer": "_supervise waits for it",
    "walstore/log/engine.py Engine._supervise": "waited for in place",
    # An async generator must not hold a group across a yield.
    "walstore/cli/reloading.py reloading": "ended in place",
    "walstore/cli/running.py until_stopped": "ended in place",
    # Tests of what a cancelled call leaves behind.
    "uploader/testing/suite.py ConditionTests.test_cancelled_reads_disturb_nobody": (
        "ended in place"
    ),
    "uploader/testing/suite.py ConditionTests.test_a_cancelled_put_is_whole_or_not_there": (
        "ended in place"
    ),
}
"""Functions that start a task outside of a TaskGroup, and what ends the task."""


def test_every_task_has_an_owner() -> None:
    """Ruff bans ``asyncio.create_task`` but does not see the methods of an event loop."""
    found = set()
    for package in ("walstore", "uploader"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not re.search("create_task|ensure_future|start_task", text):
                continue  # most files: parsing is slow
            tree = ast.parse(text)
            groups = set(_task_groups(tree))
            found |= {
                f"{path.relative_to(ROOT).as_posix()} {name}"
                for name, call in _calls_by_function(tree, ())
                if _starts_task(call, groups)
            }
    assert sorted(found) == sorted(TASKS_WITHOUT_A_GROUP)


def test_a_task_that_is_kept_begins_after_it_is_kept() -> None:
    """Also on a loop whose tasks begin at once; see ``walstore/core/runtime/tasks.py``. Groups of tasks keep
    theirs themselves."""
    kept = re.compile(r"self\.\w+ = [\w.()]*\bcreate_task\(")
    found = {
        f"{path.relative_to(ROOT)}: {line}"
        for package in ("walstore", "uploader")
        for path in (ROOT / package).rglob("*.py")
        for line in kept.findall(path.read_text())
    }
    assert found <= {
        "uploader/write/publish_pipeline.py: self._last_publishing = self._tasks.create_task("
    }


LOGS = {"Wal", "ReadonlyWal", "RemoteWal", "RemoteReadonlyWal", "CopyLog", "StoredLog", "CloudLog"}


def test_no_log_is_asked_for_its_class() -> None:
    """What a log can do is asked of the log: a new kind of log is then served and read like the others."""
    found = set()
    for package in ("walstore", "uploader"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if re.search(rf"isinstance\([^)]*\b(?:{'|'.join(LOGS)})\b", text):
                found |= {
                    f"{path.relative_to(ROOT).as_posix()} {name}"
                    for name, call in _calls_by_function(ast.parse(text), ())
                    if _asks_for_a_log(call)
                }
    assert found == set()


def _asks_for_a_log(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
            return any(isinstance(kind, ast.Name) and kind.id in LOGS for kind in ast.walk(kinds))
    return False


def _starts_task(call: ast.Call, groups: set[str]) -> bool:
    match call.func:
        case ast.Attribute(value=owner, attr="create_task"):
            return _last_name(owner) not in groups
        case (
            ast.Attribute(attr="ensure_future")
            | ast.Name(id="create_task" | "ensure_future" | "start_task")
        ):
            return True
    return False


def _task_groups(tree: ast.AST) -> Iterator[str]:
    """Yield the names that an ``async with`` block binds or that are annotated as a TaskGroup."""
    for node in ast.walk(tree):
        match node:
            case ast.AsyncWith(items=items):
                for item in items:
                    if isinstance(item.optional_vars, ast.Name):
                        yield item.optional_vars.id
            case ast.arg(arg=name, annotation=ast.expr() as kind) if "TaskGroup" in ast.unparse(
                kind
            ):
                yield name
            case ast.AnnAssign(target=target, annotation=kind) if "TaskGroup" in ast.unparse(kind):
                yield _last_name(target)


def _calls_by_function(node: ast.AST, outer: tuple[str, ...]) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call with the qualified name of the function that makes it."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(child, ast.Call):
            yield ".".join(outer), child
        yield from _calls_by_function(child, (*outer, child.name) if named else outer)
