"""What a run of pytest wrote down about itself: one JSON object a line, so that a killed run can be read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

NOT_RUN: Final = "not run"
"""The outcome of a test that was skipped because the time of its step had passed."""


@dataclass
class TestRun:
    """One test of a run. ``outcome`` is None while it runs."""

    __test__ = False

    node: str
    outcome: str | None = None
    seconds: float = 0.0
    worker: str = ""
    message: str = ""
    phase: str = ""
    """Of a test that failed: ``setup``, ``call`` or ``teardown``."""

    @property
    def selector(self) -> str:
        """What runs it again: with its file, if what failed may be what the file leaves behind."""
        return self.file if self.phase == "teardown" else self.plain_node

    @property
    def is_finished(self) -> bool:
        """Whether it ran to its end."""
        return self.outcome not in (None, NOT_RUN)

    @property
    def plain_node(self) -> str:
        """Its id without the group that pytest-xdist appends."""
        return self._node_and_group()[0]

    @property
    def group(self) -> str:
        """The group whose tests run on one worker; empty if it is in none."""
        return self._node_and_group()[1]

    def _node_and_group(self) -> tuple[str, str]:
        node, at, group = self.node.rpartition("@")
        # A parameter, or the path of a file, may have the character, too.
        is_group = at and not any(mark in group for mark in ("]", "/", "::"))
        return (node, group) if is_group else (self.node, "")

    @property
    def file(self) -> str:
        """The path of its file, relative to the root."""
        return self.node.partition("::")[0]


@dataclass
class Record:
    """One run of pytest."""

    has_begun: bool = False
    """Whether pytest ran at all."""
    collected: list[str] = field(default_factory=list)
    """The tests that were to run."""
    tests: dict[str, TestRun] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """What a second run of its tests needs."""
    broken: list[str] = field(default_factory=list)
    """What failed outside of tests, with the reason: modules that could not be collected, workers."""
    exit_status: int | None = None
    """What pytest ended with; None if it did not end by itself."""

    def by_outcome(self, outcome: str | None) -> list[TestRun]:
        """Return the tests that ended so; None: those that had begun and did not end."""
        return [test for test in self.tests.values() if test.outcome == outcome]

    def never_begun(self) -> list[str]:
        """Return the collected tests that did not even begin."""
        return [node for node in self.collected if node not in self.tests]

    def counts(self) -> Counter[str]:
        """Return how many tests ended how."""
        return Counter(test.outcome or "stopped" for test in self.tests.values())

    def seconds_by_file(self) -> dict[str, float]:
        """Return the seconds of each file's tests, setting up and tearing down included."""
        sums: Counter[str] = Counter()
        for test in self.tests.values():
            sums[test.file] += test.seconds  # type: ignore[assignment]
        return dict(sums)


class RecordWriter:
    """Writes a record while the tests run."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, kind: str, **facts: Any) -> None:
        """Write one line, at once."""
        print(json.dumps({"kind": kind, **facts}), file=self._file, flush=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_record(path: Path) -> Record:
    """Return what a run wrote; an empty record if it wrote nothing."""
    record = Record()
    for line in _lines(path):
        match line:
            case {"kind": "run", "environment": environment}:
                record.has_begun, record.environment = True, environment
            case {"kind": "collected", "nodes": nodes}:
                record.collected = nodes
            case {"kind": "start", "node": node}:
                record.tests.setdefault(node, TestRun(node))
            case {"kind": "end", "node": node, **facts}:
                # pytest-xdist may run a test again whose worker died: that is not forgotten.
                if record.tests.setdefault(node, TestRun(node)).outcome != "failed":
                    record.tests[node] = TestRun(node, **facts)
            case {"kind": "broken", "what": what, "message": message}:
                record.broken.append(f"{what}: {message}")
            case {"kind": "finish", "exit_status": status}:
                record.exit_status = status
    return record


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # the last one of a run that was killed
            return
