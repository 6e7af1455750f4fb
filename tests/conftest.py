"""What every test gets: a watched event loop, and an eye on what asyncio complains about."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import guard, missing_extras
from tests.effort import EFFORT, SEED, again
from tests.spark_classes import java_options, python_path
from walstore.core.files.posix import PosixFileSystem
from walstore.testing import FaultyFileSystem, ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark_jvm import SparkJvm

# A shell starts its background jobs with Ctrl-C ignored, and what tests start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests start inherits this.
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, java_options())
_given = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = python_path(*([_given] if _given else []))

# Where CI is set, Hypothesis would try the same examples every time.
settings.register_profile(
    "walstore", deadline=None, max_examples=50, print_blob=True, derandomize=False
)
settings.load_profile("walstore")


SLOW_TEST_SECONDS = 300
"""Time limit of a slow test that has none of its own: it shall find what hangs, not a busy machine."""


MORE_TIME = max(1.0, EFFORT / 0.1)
"""How often a slow test may take its limit: these hold for the effort of CI."""


GARBAGE_OBJECTS = 20_000
"""After so many new objects garbage is collected."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let another Python have fewer extras than development has."""
    parser.addoption(
        "--skip-missing-extras", action="store_true", help="skip tests of what is not installed"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let examples follow from the seed, unless ``--hypothesis-seed`` is given.

    Skip what is not installed only where that was asked for.
    """
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED
    if config.getoption("skip_missing_extras"):
        config.pluginmanager.register(missing_extras)


def pytest_report_header() -> str:
    """Say what random tests follow from."""
    return f"seed {SEED}, effort {EFFORT:g}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show how to repeat a test that failed."""
    report = yield
    if report.failed:
        report.sections.append(("again", again(item.nodeid)))
    return report


LANES = {"spark_cluster": "cluster", "spark_jvm": "spark"}
"""Fixtures whose tests run in one process with ``--dist=loadgroup``, and the name of their group."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time, and those that share what is long to start one process."""
    for item in items:
        lanes = [lane for name, lane in LANES.items() if name in getattr(item, "fixturenames", ())]
        if lanes:
            _put_in_lane(item, lanes[0])
        if item.get_closest_marker("slow"):
            own = item.get_closest_marker("timeout")
            seconds = own.args[0] if own else SLOW_TEST_SECONDS
            item.add_marker(pytest.mark.timeout(seconds * MORE_TIME), append=False)


def _put_in_lane(item: pytest.Item, lane: str) -> None:
    """Make an item one of a group.

    pytest-xdist reads the group from the item's id. Until 3.8 it writes it into an attribute that pytest does
    not use since 9.2, so it is written into the id here.
    """
    item.add_marker(pytest.mark.xdist_group(lane))
    if getattr(item.config.option, "loadgroup", False) and hasattr(item, "id"):
        item._id = type(item.id).parse(f"{item.nodeid}@{lane}")


@functools.cache
def _spark_problem() -> str | None:
    """Ask Java once, and not before a test needs it."""
    from walstore.spark import problem

    return problem()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests that need Spark where it cannot run."""
    if item.get_closest_marker("spark") and (missing := _spark_problem()):
        pytest.skip(missing)


def pytest_collection() -> None:
    """Collect no garbage while modules and tests are made, all of which stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays: modules and tests. It took a sixth of the quick suite.

    Of what is made later most is gone by itself before it looks, if it looks seldom: that took another 6 %.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 10, 10)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _watched_event_loop() -> Iterator[None]:
    with guard.watched_event_loop():
        yield


@pytest.fixture(autouse=True)
def _no_blocking_calls(_watched_event_loop: None) -> Iterator[None]:
    """Fail the test for a blocking call on the loop even if the error was swallowed on its way."""
    guard.violations.clear()
    yield
    if guard.violations:
        pytest.fail(f"blocked the event loop: {guard.violations}")


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(self.format(record))


@contextmanager
def _no_complaints() -> Iterator[None]:
    handler = _Complaints()
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    if handler.messages:
        pytest.fail("asyncio complained:\n" + "\n".join(handler.messages))


@pytest.fixture(autouse=True)
def _no_asyncio_errors() -> Iterator[None]:
    """Fail the test for what asyncio can only log: lost tasks, exceptions that nobody saw."""
    with _no_complaints():
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_asyncio_errors_in_garbage() -> Iterator[None]:
    """Fail the last test for what only the garbage collector would find after it."""
    yield
    with _no_complaints():
        gc.collect()


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    """Where a log may be made; not there yet."""
    return tmp_path / "log"


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: for tests that open thousands of logs."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="walstore-test-") as found:
        yield Path(found)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still."""
    return ManualClock()


@pytest.fixture
def faulty() -> FaultyFileSystem:
    """The real file system, failing when told to."""
    return FaultyFileSystem(PosixFileSystem())


@pytest.fixture(scope="session")
def spark_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkJvm]:
    """The JVM that Spark's tests in this process share."""
    if missing := _spark_problem():
        pytest.skip(missing)
    from tests.spark_jvm import SparkJvm

    jvm = SparkJvm(tmp_path_factory.mktemp("spark"))
    yield jvm
    jvm.stop()


@pytest.fixture
def spark(spark_jvm: SparkJvm) -> Iterator[SparkSession]:
    """The session of that JVM; a test leaves it as it was."""
    from tests.spark_jvm import unchanged

    with unchanged(spark_jvm) as session:
        yield session


@pytest.fixture
def spark_directory(spark_jvm: SparkJvm) -> Iterator[Path]:
    """Where programs run that have that JVM; empty."""
    yield spark_jvm.directory
    spark_jvm.clear()
