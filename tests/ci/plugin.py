"""A plugin for pytest: it selects files, begins no test after a set time, and writes a record of the run.

    pytest -p tests.ci.plugin --record=FILE [--only=FILE] [--stop-at=SECONDS]

With pytest-xdist the workers select, stop and count; the process that started them writes.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.ci.record import NOT_RUN, RecordWriter
from tests.spark_path import sitecustomize

NO_TIME = "not run: the time of this step has passed"
REPEATED = ("PYTHONASYNCIODEBUG", "WALSTORE_EFFORT", "WALSTORE_SEED")
"""The variables that change what a test does."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add this plugin's options."""
    group = parser.getgroup("walstore-ci")
    group.addoption("--record", type=Path, help="write a record of the run to this file")
    group.addoption(
        "--only", type=Path, help="run the test files listed in this file, in this order"
    )
    group.addoption("--stop-at", type=float, help="begin no test after this time (Unix seconds)")


def pytest_configure(config: pytest.Config) -> None:
    """Register the parts for which there is an option."""
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        # Workers have read it; it is not for the runs that tests start.
        os.environ.pop("PYTEST_ADDOPTS", None)
    path = config.getoption("record")
    if path and not is_worker:
        path.parent.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(_Recorder(RecordWriter(path.open("w", encoding="utf-8"))))
    is_counting = hasattr(sys.modules.get("sitecustomize"), "count_starts")  # as workers do
    if sitecustomize.STARTS in os.environ and not is_counting:
        sitecustomize.count_starts()
    if listed := config.getoption("only"):
        order = listed.read_text(encoding="utf-8").splitlines()
        config.pluginmanager.register(_Selection(config.rootpath, order), "walstore-ci-selection")
    if stop_at := config.getoption("stop_at"):
        config.pluginmanager.register(_Deadline(stop_at))


class _Selection:
    """Leaves out the files that are not listed, and sorts the others as they are listed."""

    def __init__(self, root: Path, order: list[str]) -> None:
        self._root = root
        self._rank = {name: rank for rank, name in enumerate(order)}

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_test_file = collection_path.match("test_*.py")
        return True if is_test_file and self._name(collection_path) not in self._rank else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def rank(item: pytest.Item) -> tuple[bool, int]:
            # A group runs on one worker, so it begins first.
            return item.get_closest_marker("xdist_group") is None, self._rank[self._name(item.path)]

        items.sort(key=rank)


class _Deadline:
    """Skips each test that would begin too late."""

    def __init__(self, stop_at: float) -> None:
        self._stop_at = stop_at

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.time() > self._stop_at:
            pytest.skip(NO_TIME)


class _Recorder:
    """Writes what happens to each test."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._reports: defaultdict[str, list[pytest.TestReport]] = defaultdict(list)
        self._is_collected = False
        self._deaths = 0
        """Workers that died, and no test is known to have killed them."""
        environment = {name: os.environ[name] for name in REPEATED if name in os.environ}
        writer.write("run", environment=environment)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # else workers collect
            self._note_collected([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._note_collected(ids)

    def _note_collected(self, nodes: list[str]) -> None:
        if not self._is_collected:  # the workers have all the same
            self._is_collected = True
            self._writer.write("collected", nodes=nodes)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._writer.write("start", node=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports[report.nodeid].append(report)
        if report.when == "teardown":
            self._write_end(report.nodeid)
        elif report.when not in (
            "setup",
            "call",
        ):  # pytest-xdist reports that the worker died in it
            self._deaths -= 1
            self._write_end(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        self._deaths += bool(error)

    def _write_end(self, node: str) -> None:
        reports = self._reports.pop(node)
        worst = next((one for one in reports if one.failed), None)
        skipped = next((one for one in reports if one.skipped), None)
        self._writer.write(
            "end",
            node=node,
            outcome=_outcome(worst, skipped),
            seconds=round(sum(one.duration for one in reports), 3),
            worker=getattr(reports[0], "worker_id", ""),
            message=_message(worst) if worst else "",
            phase=worst.when if worst else "",
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._writer.write("broken", what=report.nodeid, message=_message(report))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        try:
            yield
        finally:
            if self._deaths > 0:
                self._writer.write(
                    "broken", what="pytest-xdist", message="a worker died at its end"
                )
            self._writer.write("finish", exit_status=int(session.exitstatus))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_unconfigure(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            self._writer.write("broken", what="pytest_unconfigure", message=repr(error))
            raise
        finally:
            self._writer.close()


def _outcome(worst: pytest.TestReport | None, skipped: pytest.TestReport | None) -> str:
    if worst:
        return "failed"
    if skipped:
        return NOT_RUN if NO_TIME in str(skipped.longrepr) else "skipped"
    return "passed"


def _message(report: Any) -> str:
    """Return the line that says what went wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    lines = text.strip().splitlines()
    return (lines[0] if crash else lines[-1])[:300] if lines else ""
