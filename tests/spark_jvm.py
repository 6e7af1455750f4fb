"""One JVM for many Spark tests: it starts once, and has one context after the other.

A program that a test starts can have the JVM, too, as what ``spark-submit`` runs has one: the environment
names its port. Spark allows a JVM one context. So the session of the tests stops before the program starts,
and what the program leaves behind is stopped after it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tests.spark_classes import python_path
from walstore.spark import local_session

ROOT = Path(__file__).parents[1]
STOP_SECONDS = 30.0


class SparkJvm:
    """A JVM that runs in ``directory``: what it resolves relative paths against."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start it; what it starts inherits its environment: that of this process and ``environment``."""
        self.directory = directory
        given = {
            "PYTHONPATH": python_path(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # No setting but the heap's size: what is given here would be a default of each context.
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell",
        }
        with _environment({**given, **(environment or {})}):
            self._gateway: Any = launch_gateway(popen_kwargs={"cwd": str(directory)})
        java = self._gateway.java_parameters
        self._address = {
            "PYSPARK_GATEWAY_PORT": str(java.port),
            "PYSPARK_GATEWAY_SECRET": java.auth_token,
        }
        self._session: SparkSession | None = None

    @property
    def session(self) -> SparkSession:
        """The session of the tests in this process."""
        if self._session is None:
            config = {"spark.sql.shuffle.partitions": "2"}
            with _environment(self._address):
                self._session = local_session(threads=2, config=config)
        return self._session

    def end_session(self) -> None:
        """Stop the session of the tests; the next one that asks has a new one."""
        if self._session is not None:
            self._session.stop()
            self._session = None

    @contextlib.contextmanager
    def lend(self) -> Iterator[dict[str, str]]:
        """Return what the environment of a program adds that is to use this JVM, one at a time."""
        self.end_session()
        try:
            yield dict(self._address)
        finally:
            self._stop_context()
            _call_here()

    def clear(self) -> None:
        """Remove the files of the directory."""
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def stop(self) -> None:
        """End the JVM."""
        self.end_session()
        if SparkContext._gateway is not None:
            SparkContext._gateway.shutdown()
            SparkContext._gateway = SparkContext._jvm = None
        java = self._gateway.proc
        java.stdin.close()  # Java ends when its input does
        java.wait(STOP_SECONDS)
        self._gateway.close()

    def _stop_context(self) -> None:
        """Stop the context of a program that ended without doing so."""
        contexts = getattr(self._gateway.jvm.org.apache.spark, "SparkContext$")
        active = getattr(contexts, "MODULE$").getActive()
        if active.isDefined():
            active.get().stop()


def _call_here() -> None:
    """Let the JVM call the functions of this process again, if it did so before."""
    gateway: Any = SparkContext._gateway
    if gateway is not None and gateway.__dict__.get("_callback_server") is not None:
        java = gateway.java_gateway_server
        java.resetCallbackClient(
            java.getCallbackClient().getAddress(), gateway.get_callback_server().port
        )


@contextlib.contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Add to the environment; afterwards it is as it was, whatever the block changed."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def state_of(session: SparkSession) -> dict[str, object]:
    """Return what tests may change in a session that they share."""
    return {
        **session.conf.getAll,
        "queries": [query.id for query in session.streams.active],
        "tables": sorted(table.name for table in session.catalog.listTables()),
        "cached": session._jsc.getPersistentRDDs().size(),
    }


@contextlib.contextmanager
def unchanged(jvm: SparkJvm) -> Iterator[SparkSession]:
    """Return the session; fail if it is not the same afterwards, and end it then."""
    session = jvm.session
    before = state_of(session)
    yield session
    after = state_of(session)
    if after != before:
        for query in session.streams.active:
            query.stop()
        jvm.end_session()
    if after != before:
        names = before.keys() | after.keys()
        changed = {name: after.get(name) for name in names if after.get(name) != before.get(name)}
        pytest.fail(f"the test left something in the session: {changed}")
