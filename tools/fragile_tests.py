"""Find tests that measure real time, which a busy machine makes fail: ``python -m tools.fragile_tests``.

Prints ``path:line: what it is and what to do instead``; the exit status is 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

ROOT: Final = Path(__file__).parents[1]

EXCEPTIONS: Final = {
    "tests/ci/__main__.py": "the limits of CI itself",
    "tests/ci/plugin.py _Deadline.pytest_runtest_setup": "the limits of CI itself",
    "tests/ci/step.py run_step": "the limits of CI itself",
    "tests/cut_cluster.py": "leases in a real etcd; the order of calls is noted",
    "tests/cluster_demo.py": "a program for people: it shows how long a takeover takes",
    "tests/crash/__main__.py run": "prints how long it took",
    "tests/etcd.py EtcdCluster.wait": "asks a process that tells nobody when it is ready",
    "tests/fuzz/__main__.py _run": "prints how long it took",
    "tests/fuzz/frames.py main": "prints how long it took",
    "tests/fuzz/doors.py Inspection.door": "processor time; what it finds takes minutes",
    "tests/nightly.py run": "prints how long it took",
    "tests/s3/rgw.py": "asks processes that tell nobody when they are ready, prints how long it took",
    "tests/scenarios/test_79_groups_killed.py": "leases of killed processes; only a lower bound is asserted",
    "tests/scenarios/test_86_jepsen_of_jetstream.py test_one_damaged_copy_loses_nothing": (
        "a patience that is to run out"
    ),
    "tests/scenarios/test_88_groups_taken_over.py": "as in test_79",
    "tests/sim/__main__.py run_many": "prints how long it took",
    "tests/storm/__main__.py main": "prints how long it took",
    "tests/uploader/stores/test_obstore_faults.py hasty": "a limit of the HTTP client that is to run out",
    "tests/uploader/stores/test_s3_faults.py hasty": "a limit of the HTTP client that is to run out",
    "tests/uploader/stores/test_s3_faults.py test_a_request_that_trickles_ends_with_its_time_limit": (
        "a limit of the HTTP client that is to run out"
    ),
    "tests/wal3/build.py main": "prints how long it took",
    "tests/waiting.py until": "looks at what threads do, which wake no event loop",
    "tests/waiting.py wait_until": "looks at what processes do, which wake nobody",
}
"""What may look at real time: a file, or a function in it, and why."""

LEAST_SECONDS: Final = 10
"""A limit below it may pass while a busy machine does nothing wrong."""

VIRTUAL: Final = re.compile(r"\bVirtualLoop\b")
"""What a module outside of ``tests/sim`` names if its event loop runs on virtual time."""

_CLOCKS: Final = {
    f"time.{name}{unit}"
    for name in ("time", "monotonic", "perf_counter", "process_time")
    for unit in ("", "_ns")
}
_SLEEPS: Final = {"time.sleep", "asyncio.sleep"}
_LOOPS: Final = re.compile(r"(^|_)loop$|^get_(running|event)_loop$")
_LIMITS: Final = {"asyncio.timeout": 0, "asyncio.wait_for": 1, "pytest.mark.timeout": 0}
"""Calls that take a limit, and its place among their arguments."""
_WAITS: Final = {"wait", "join", "result", "exception"}
"""Methods of threads, their events, processes and futures whose first argument is a limit."""
_BLOCKING: Final = {"concurrent.futures", "multiprocessing", "subprocess", "threading"}
"""Where these come from."""
_NAMES: Final = (
    "timeout|patience|lease|heartbeat|session|ttl|ack_wait"
    "|connect|request|replace|stall|idle|body|drain"
)
_SETTING: Final = re.compile(rf"(?:^|_)(?:{_NAMES})(?:_\w*)?_seconds$", re.IGNORECASE)
"""Names of settings that say how long something may take before it counts as lost."""
_SHORT: Final = r"(?!0\b(?!\.))(?:\d\b|\.\d|[A-Z])"
"""A number below ten, which is not 0, or a constant."""
_SUSPECT: Final = [
    re.compile(pattern)
    for pattern in (
        r"sleep\b(?!\(0\))",
        r"time\.(?:time|monotonic|perf_c|process_)",
        r"\.time\(\)",
        r"from (?:time|asyncio) import",
        rf"\.timeout\({_SHORT}",
        r"wait_for\(",
        rf"timeout(?:: \w+)? ?= ?{_SHORT}",
        r"Event\(\)\.wait\([^)]",
        rf"\.(?:wait|join|result|exception)\(\s*{_SHORT}",
        rf"seconds(?:\"|: \w+)? ?[=:] ?{_SHORT}",
        rf"_SECONDS(?:: \w+)? = {_SHORT}",
    )
]
"""What most modules have none of: parsing is slow."""


@dataclass(frozen=True, order=True)
class Finding:
    """A place that depends on how fast the machine is."""

    path: str
    line: int
    function: str
    """Its name in the module, with those around it; empty outside of functions."""
    text: str

    def __str__(self) -> str:
        """Return what is printed."""
        return f"{self.path}:{self.line}: {self.text}"

    @property
    def exception(self) -> str | None:
        """Return the entry of ``EXCEPTIONS`` that allows it."""
        names = (self.path, f"{self.path} {self.function}")
        return next((name for name in names if name in EXCEPTIONS), None)


def main() -> int:
    """Print what is found in the tests; return the exit status."""
    found = [finding for finding in find_all() if finding.exception is None]
    for finding in found:
        sys.stdout.write(f"{finding}\n")
    return 1 if found else 0


def find_all() -> Iterator[Finding]:
    """Yield what is found in the tests, exceptions, too."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        yield from find(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))


def find(path: str, text: str) -> list[Finding]:
    """Return what is found in the module at ``path``, in the order of lines."""
    if not any(pattern.search(text) for pattern in _SUSPECT):
        return []
    module = _Module(path, is_virtual=path.startswith("tests/sim/") or bool(VIRTUAL.search(text)))
    module.visit(ast.parse(text))
    return sorted(set(module.found))


class _Module(ast.NodeVisitor):
    def __init__(self, path: str, *, is_virtual: bool) -> None:
        self.found: list[Finding] = []
        self._path = path
        self._is_virtual = is_virtual
        self._imported: dict[str, str] = {}
        self._constants: dict[str, ast.expr] = {}
        self._names: list[str] = []
        self._scopes: list[ast.AST] = []
        self._awaited: set[ast.expr] = set()
        self._called: set[ast.expr] = set()

    # -- where it is -------------------------------------------------------------------------

    def visit_Module(self, node: ast.Module) -> None:
        self._scopes.append(node)
        for statement in node.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._constants[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._constants[name] = value
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self._imported.update({one.asname or one.name: one.name for one in node.names})

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        self._imported.update(names)

    def _visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._scopes.append(node)
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        self._scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_scope  # noqa: N815

    @property
    def _has_clock(self) -> bool:
        """Whether what is visited, or a function or class around it, is on virtual time."""
        inner = self._scopes[1:] or self._scopes
        return self._is_virtual or any(_names_clock(scope) for scope in inner)

    @property
    def _blocks(self) -> bool:
        """Whether it has threads or processes to wait for."""
        return any(name.startswith(tuple(_BLOCKING)) for name in self._imported.values())

    def _add(self, node: ast.AST, text: str) -> None:
        line = cast("ast.expr", node).lineno
        self.found.append(Finding(self._path, line, ".".join(self._names), text))

    # -- what it is --------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        self._see_clock(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._see_clock(node)
        self.generic_visit(node)

    def _see_clock(self, node: ast.Name | ast.Attribute) -> None:
        name = self._full_name(node)
        if name == "time.sleep" and node not in self._called:
            self._add(node, f"{name} waits for time: await the event itself, or a ManualClock")
        if name in _CLOCKS and isinstance(node.ctx, ast.Load):
            self._add(node, f"{name} reads a real clock: take a ManualClock, or count what happens")

    def visit_Call(self, node: ast.Call) -> None:
        self._called.add(node.func)
        name = self._full_name(node.func)
        last = name.rpartition(".")[2]
        if name in _SLEEPS and not self._is_free(node):
            self._add(node, f"{name} waits for time: await the event itself, or a ManualClock")
        elif last == "time" and not self._is_virtual and _is_of_loop(node.func):
            self._add(node, "loop.time() reads a real clock: take a ManualClock")
        elif last == "wait" and (node.args or node.keywords) and _is_new_event(node.func):
            self._add(node, "a pause: wait for the event itself, with a limit of a minute")
        else:
            self._see_limits(node, name, last)
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        self._awaited.add(node.value)
        self.generic_visit(node)

    def _see_limits(self, node: ast.Call, name: str, last: str) -> None:
        place = _LIMITS.get(name)
        if last in _WAITS and node not in self._awaited and self._blocks:
            place = 0
        if place is not None and len(node.args) > place:
            self._see_limit(node, name, node.args[place])
        for keyword in node.keywords:
            if keyword.arg == "timeout" or (keyword.arg == "seconds" and _may_wait(last)):
                self._see_limit(keyword.value, f"{last}({keyword.arg}=…)", keyword.value)
            elif keyword.arg and _SETTING.search(keyword.arg):
                self._see_setting(keyword.value, keyword.arg, keyword.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name) and _SETTING.search(target.id):
                self._see_setting(node, target.id, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name) and _SETTING.search(node.target.id) and node.value:
            self._see_setting(node, node.target.id, node.value)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            match key:
                case ast.Constant(value=str(name)) if _SETTING.search(name):
                    self._see_setting(value, name, value)
        self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> None:
        positional = [*node.posonlyargs, *node.args]
        pairs = [
            *zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True),
            *zip(node.kwonlyargs, node.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            if default is None:
                continue
            if (
                argument.arg in {"timeout", "seconds"}
                and self._names
                and _may_wait(self._names[-1])
            ):
                self._see_limit(default, f"{argument.arg}=…", default)
            elif _SETTING.search(argument.arg):
                self._see_setting(default, argument.arg, default)
        self.generic_visit(node)

    def _see_limit(self, node: ast.AST, what: str, value: ast.expr) -> None:
        seconds = self._seconds(value)
        if not self._is_virtual and 0 < seconds < LEAST_SECONDS:
            self._add(node, f"{what} ends after {seconds:g} s: wait for the event, for a minute")

    def _see_setting(self, node: ast.AST, name: str, value: ast.expr) -> None:
        seconds = self._seconds(value)
        if 0 < seconds < LEAST_SECONDS and not self._has_clock:
            text = f"{name} is {seconds:g} s of real time: take a ManualClock, or a minute"
            self._add(node, text)

    # -- what it says ------------------------------------------------------------------------

    def _is_free(self, sleep: ast.Call) -> bool:
        """Whether a sleep only lets others run, or its time is virtual."""
        if self._is_virtual:
            return True
        match sleep.args:
            case [ast.Constant(value=seconds), *_]:
                return not seconds
        return False

    def _seconds(self, value: ast.expr) -> float:
        """Return a number that stands there, or in a constant of the module; else infinity."""
        match value:
            case ast.Name(id=name) if name in self._constants:
                return _number(self._constants[name])
        return _number(value)

    def _full_name(self, node: ast.expr) -> str:
        """Return a dotted name as it is imported; parts that are no names are ``?``."""
        match node:
            case ast.Name(id=name):
                return self._imported.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                return f"{self._full_name(value)}.{attr}"
        return "?"


def _number(value: ast.expr) -> float:
    match value:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
    return float("inf")


def _may_wait(name: str) -> bool:
    return bool(re.search(r"wait|until|within|timeout", name))


def _is_of_loop(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return bool(_LOOPS.search(name))
        case ast.Attribute(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return bool(_LOOPS.search(name))
    return False


def _is_new_event(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="Event") | ast.Attribute(attr="Event"))):
            return True
    return False


def _names_clock(node: ast.AST) -> bool:
    """Whether another clock than the real one is handed over in it: its settings are counted on that."""
    names: Mapping[type[ast.AST], str] = {ast.Name: "id", ast.arg: "arg", ast.keyword: "arg"}
    return any(
        getattr(part, names.get(type(part), ""), None) in {"clock", "ManualClock"}
        or (isinstance(part, ast.Attribute) and part.attr in {"clock", "ManualClock"})
        for part in ast.walk(node)
        if not _is_real_clock(part)
    )


def _is_real_clock(node: ast.AST) -> bool:
    """Whether it is the argument ``clock=SystemClock()``."""
    match node:
        case ast.keyword(value=ast.Call(func=ast.Name(id="SystemClock"))):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
