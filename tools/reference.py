"""Writes the pages of docs/ that are made from code: ``python -m tools.reference``.

docs/reference/*.md from signatures and docstrings, docs/errors.md from the error classes, and docs/llms.txt
from the titles of all pages. tests/test_docs_reference.py checks that they are current.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from uploader.stores import ObjectStore
from walstore.core.ports import FileSystem
from walstore.core.runtime.old_names import unrenamed
from walstore.errors import WalError

DOCS = Path(__file__).parent.parent / "docs"
MARK = "<!-- Made by python -m tools.reference; do not edit. -->"
PACKAGES = ("walstore", "uploader")


class Page(NamedTuple):
    """A page of the reference: which public names of a module it shows, in this order."""

    name: str
    title: str
    summary: str
    names: dict[str, str]
    """Module, and its names, with spaces between them."""


PAGES = [
    Page(
        "wal",
        "A local log",
        "Opening, appending, reading; records and batches.",
        {
            "walstore": "Wal Reader ReadonlyWal Record Batch Start OneOf NoneOf Durability Statistics "
            "CopyStatistics ScrubRound CopyScrub StreamInfo Transaction Producer Fence Log ReadableLog open"
        },
    ),
    Page(
        "cursors",
        "Cursors and consumers",
        "Named, durable positions.",
        {"walstore": "Cursor CursorInfo Consumer"},
    ),
    Page(
        "settings",
        "Settings",
        "Every settings class with its fields, ranges and defaults.",
        {
            "walstore": "Settings StoreSettings",
            "uploader": "UploadSettings WriterSettings CollectorSettings ChainSettings RollUpSettings",
        },
    ),
    Page(
        "store",
        "Many logs in one process",
        "`WalStore`.",
        {"walstore": "WalStore StoreStatistics"},
    ),
    Page(
        "sync",
        "Threads and scripts",
        "`walstore.sync`: the same log without an event loop.",
        {
            "walstore.sync": "open connect BlockingLog BlockingReader BlockingCursor BlockingTransaction "
            "BlockingGroup BlockingJob",
            "walstore.log_handler": "LogHandler",
        },
    ),
    Page(
        "groups",
        "Groups",
        "`Group` and `Job`. [work_queue.md](../work_queue.md) explains them.",
        {"walstore": "Group Job GroupStatistics GroupInfo"},
    ),
    Page(
        "serving",
        "Serving a log, and connecting to it",
        "`connect`, `connect_readonly`, and servers. [serving.md](../serving.md) and [http.md](../http.md) "
        "explain them.",
        {
            "walstore": "connect RemoteWal connect_readonly RemoteReadonlyWal list_logs ServedLog "
            "Replication",
            "walstore.serve": "Server ServeSettings ReplicaNode ClusterMember",
            "walstore.topology.key_values": "KeyValues",
            "walstore.topology.etcd": "EtcdKeyValues",
            "walstore.topology.memory": "MemoryKeyValues",
            "walstore.http": "HttpServer HttpSettings",
        },
    ),
    Page(
        "messages",
        "Transactions over several logs",
        "`walstore.messages`.",
        {
            "walstore.messages": "Coordinator CoordinatedTransaction CoordinatorState RegisterStore "
            "StateStore CommittedReader ReadCheckpoint Publisher AckIntents send_intents abort_producers "
            "new_producer_id MessageClock time_us Outcome ProducerState Sequencer Stamp Flag HEADER"
        },
    ),
    Page(
        "cloud_tier",
        "Shipping a local log",
        "`CloudTier`, and the cache on disk.",
        {"uploader": "CloudTier FragmentCache Layout"},
    ),
    Page(
        "cloud_log",
        "Reading a log in object storage",
        "`CloudLog` and cursors in the cloud.",
        {"uploader": "CloudLog Verified CloudCursors CloudCursor PartitionedLog PartitionedGroup"},
    ),
    Page(
        "cloud_writer",
        "Writing straight to object storage",
        "`CloudWriter`.",
        {"uploader": "CloudWriter WriterStatistics"},
    ),
    Page(
        "collection",
        "Garbage collection",
        "`GarbageCollector`, its plans and results.",
        {"uploader": "GarbageCollector Plan Collected Deleted Progress"},
    ),
    Page(
        "administration",
        "Scrub, seal, fork, destroy, restore, rebuild",
        "What an operator does to a log in object storage.",
        {
            "uploader": "Scrubber ScrubReport ScrubTally Finding Severity seal fork Forked destroy Destroyed "
            "bootstrap restore Restored RestoreProgress StoredCopy rebuild Rebuilt plan_rebuild RebuildPlan "
            "apply_rebuild DirtyLog Dirty RolledUp"
        },
    ),
    Page(
        "versioned_collections",
        "Versioned collections",
        "Tables in object storage that change over time, their writers, readers and controller. "
        "[versioned_collections.md](../versioned_collections.md) explains them.",
        {
            "uploader": "Collection CollectionStatus CollectionWriter CollectionReader Controller "
            "ControllerSettings CompactionPlan Compacted Purged "
            "Materializer MaterializerSettings Materialized CollectionScan ScanFile "
            "MergeEngine MergeJob MergeResult MergedObject"
        },
    ),
    Page(
        "open_tables",
        "Open tables",
        "Logs and collections as Iceberg tables. [open_tables.md](../open_tables.md) explains them; "
        "`CollectionReader.export_iceberg` is with the [collections](versioned_collections.md).",
        {"uploader": "IcebergTarget LogTable JsonColumn Registered Released Exported"},
    ),
    Page(
        "stores",
        "Object stores",
        "The port, the stores behind it, and stores around stores.",
        {
            "uploader.stores": "open_store ObjectStore LocalStore S3Store ObstoreStore MemoryStore "
            "StoreWrapper RetryPolicy RetryingStore HedgedStore HedgeSettings HedgeStatistics "
            "MeteredStore Usage KindUsage Prices ObjectInfo StoredObject ListedObject probe_conditional_puts"
        },
    ),
    Page(
        "spark",
        "Spark",
        "Functions of `walstore.spark`. Options are in [spark.md](../spark.md).",
        {
            "walstore.spark": "register local_session read read_collection merge_engine problem "
            "partition_rows finish_commits sweep_staging"
        },
    ),
    Page(
        "testing",
        "Testing",
        "`walstore.testing` and `uploader.testing`.",
        {
            "walstore.testing": "FaultyFileSystem PowerLossFileSystem ManualClock Call Hold",
            "uploader.testing": "FaultyStore LatencyStore ShuffledStore CallCount StoreKilled",
        },
    ),
    Page(
        "metrics",
        "Metrics",
        "`PrometheusMetrics`, `OpenTelemetryMetrics`, `CollectionMetrics`. What is measured is in "
        "[metrics.md](../metrics.md).",
        {
            "walstore.metrics": "PrometheusMetrics OpenTelemetryMetrics Metrics LogObserver ObservedLog",
            "uploader": "CollectionMetrics",
        },
    ),
]

ERRORS = {
    "walstore.spark": "FastPathError",
    "uploader.stores": "ObjectNotFoundError PreconditionFailedError",
}
"""Errors with a public name other than those of the package ``walstore``."""

HIDDEN = {"open_in", "abandon", "check_home", "check_open", "of_store"}
"""Methods that only other parts of the packages call, next to those whose docstring says so."""
INSIDE = "Not for callers"
MADE_HERE = {
    "Reader",
    "ReadonlyWal",
    "RemoteWal",
    "Consumer",
    "CloudWriter",
    "CloudLog",
    "LogTable",
    "CollectionWriter",
    "CollectionReader",
    "CoordinatedTransaction",
    "Cursor",
    "Group",
}
"""Classes whose objects come from methods of others."""
PORTS = (ObjectStore, FileSystem)
"""What a class that implements one of these has from it is shown once."""

SECTIONS = {
    "Start here": "index tutorial concepts",
    "How-tos": (
        "web_application several_processes serving deploy http work_queue replication cluster "
        "transactions streams readonly consumers "
        "messages retention store cloud_writer cloud_reading collection integrity restore "
        "versioned_collections open_tables repair operations testing "
        "stores spark spark_cluster spark_streaming spark_sink spark_fast_path spark_sidecar "
        "spark_collections"
    ),
    "Reference": "api errors cli metrics format chain",
    "Explanation": "design guarantees performance decisions gazette",
}
"""Which page is of which kind."""


def pages() -> dict[str, str]:
    """Return the content of all generated pages, by their path below docs/."""
    made = {f"reference/{page.name}.md": _page(page) for page in PAGES}
    made["reference/index.md"] = _index()
    made["errors.md"] = _errors()
    made["llms.txt"] = _llms(made)
    return made


def public_errors() -> list[type[WalError]]:
    """Return the errors that have a public name, parents before their children."""
    walstore = importlib.import_module("walstore")
    named = {name: getattr(walstore, name) for name in walstore.__all__}
    for module, names in ERRORS.items():
        named |= {name: getattr(importlib.import_module(module), name) for name in names.split()}
    known = {
        kind for kind in named.values() if inspect.isclass(kind) and issubclass(kind, WalError)
    }
    return [kind for kind in _below(WalError) if kind in known]


def _below(kind: type[WalError]) -> Iterator[type[WalError]]:
    """Yield a class and those below it: ours in the order of errors.py, the others by module and name."""
    yield kind

    def place(child: type[WalError]) -> tuple[str, str]:
        is_here = child.__module__ == "walstore.errors"
        return ("", "") if is_here else (child.__module__, child.__name__)

    for child in sorted(kind.__subclasses__(), key=place):
        yield from _below(child)


# -- pages -----------------------------------------------------------------------------------


def _index() -> str:
    lines = [MARK, "# Reference", "", "| | |", "|---|---|"]
    lines += [f"| [{page.title}]({page.name}.md) | {page.summary} |" for page in PAGES]
    lines += [
        "| [Errors](../errors.md) | What each means, and the outcome for the data. |",
        "| [Command line](../cli.md) | Every verb, option and exit code. |",
    ]
    return "\n".join(lines) + "\n"


def _page(page: Page) -> str:
    lines = [MARK, f"# {page.title}", "", page.summary, ""]
    for module, names in page.names.items():
        found = importlib.import_module(module)
        for name in names.split():
            lines += _named(module, name, getattr(found, name))
    return _joined(lines)


def _named(module: str, name: str, value: Any) -> Iterator[str]:
    yield from (f"## {name}", "")
    if inspect.isclass(value):
        yield from _class(module, value)
    elif inspect.isfunction(value):
        yield from (*_code(module, f"{_prefix(value)}{name}{_signature(value)}"), "")
        yield from _text(value.__doc__)
    else:
        shown = repr(value).replace("typing.", "").replace("'", '"')
        yield from (*_code(module, f"{name} = {shown}"), "")


def _class(module: str, kind: type) -> Iterator[str]:
    is_plain = not issubclass(kind, enum.Enum) and "__init__" in vars(kind)
    settings = kind.__doc__ is not None and "\nFields:\n" in kind.__doc__
    is_made_here = kind.__name__ in MADE_HERE or INSIDE in (kind.__init__.__doc__ or "")
    is_plain &= not (dataclasses.is_dataclass(kind) or is_made_here or inspect.isabstract(kind))
    is_plain &= not getattr(kind, "_is_protocol", False)
    arguments = _signature(kind) if is_plain else ""
    yield from (*_code(module, f"class {kind.__name__}{arguments}"), "")
    yield from _text(kind.__doc__ if not _is_made(kind) else None)
    if is_plain:
        yield from _text(kind.__init__.__doc__)
    if not settings:
        yield from _attributes(kind)
    port = next((port for port in PORTS if kind is not port and _has_all(kind, port)), None)
    if port:
        yield from (f"It has the methods of `{port.__module__}.{port.__name__}`, and these:", "")
    for name, member in _members(kind):
        if port and name in vars(port):
            continue
        yield from (f"### {kind.__name__}.{name}", "")
        function, before = _function(member)
        if function is None:
            continue
        if before == "property":
            result = inspect.signature(function).return_annotation
            yield from (*_code("", f"{name}: {_annotation(result)}"), "")
        else:
            yield from (*_code("", f"{before}{_prefix(function)}{name}{_signature(function)}"), "")
        yield from _text(_doc_of(kind, name, function))


def _has_all(kind: type, port: type) -> bool:
    return all(hasattr(kind, name) for name in vars(port) if not name.startswith("_"))


def _is_made(kind: type) -> bool:
    """Whether a docstring is what dataclasses make up: the signature."""
    return (kind.__doc__ or "").startswith(f"{kind.__name__}(")


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield public methods and properties, also of mixins of ours, in the order of the source."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.split(".")[0] not in PACKAGES or issubclass(base, enum.Enum):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or name in HIDDEN:
                continue
            seen.add(name)
            function = _function(member)[0]
            if function is not None and not (function.__doc__ or "").startswith(INSIDE):
                yield name, member


def _function(member: Any) -> tuple[Any, str]:
    if isinstance(member, property):
        return member.fget, "property"
    if isinstance(member, functools.cached_property):
        return member.func, "property"
    if isinstance(member, classmethod):
        return member.__func__, "@classmethod\n"
    if isinstance(member, staticmethod):
        return member.__func__, "@staticmethod\n"
    return (member, "") if isinstance(member, types.FunctionType) else (None, "")


def _doc_of(kind: type, name: str, function: Any) -> str | None:
    if function.__doc__:
        return str(function.__doc__)
    for base in kind.__mro__[1:]:
        inherited, _ = _function(vars(base).get(name))
        if inherited is not None and inherited.__doc__:
            return str(inherited.__doc__)
    return None


def _attributes(kind: type) -> Iterator[str]:
    """Yield fields, members of enumerations, and attributes, with the strings that follow them."""
    rows = [row for base in reversed(kind.__mro__) for row in _stated(base)]
    rows = [row for row in rows if not row[2].startswith(INSIDE)]
    if rows:
        yield from ("| attribute | type | meaning |", "|---|---|---|")
        for name, annotation, meaning in {row[0]: row for row in rows}.values():
            text = " ".join(_inline(meaning).split()).replace("|", "\\|")
            shown = annotation.replace("|", "\\|")
            yield f"| `{name}` | {f'`{shown}`' if shown else ''} | {text} |"
        yield ""


def _stated(kind: type) -> Iterator[tuple[str, str, str]]:
    if kind.__module__.split(".")[0] not in PACKAGES:
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    is_value = dataclasses.is_dataclass(kind) or issubclass(kind, tuple | enum.Enum)
    makers = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    for body in (tree.body, *(maker.body for maker in makers)):
        for node, after in zip(body, [*body[1:], None], strict=True):
            name, annotation = _assigned(node)
            if not name or name.startswith("_"):
                continue
            meaning = _string(after)
            if (meaning or is_value) and not meaning.startswith(INSIDE):
                yield name, annotation, meaning


def _assigned(node: ast.stmt) -> tuple[str, str]:
    target: ast.expr | None = None
    annotation = ""
    if isinstance(node, ast.AnnAssign):
        target, annotation = node.target, ast.unparse(node.annotation)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    if isinstance(target, ast.Name):
        return target.id, annotation
    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
        return target.attr, annotation
    return "", ""


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else ""
    return ""


# -- errors ----------------------------------------------------------------------------------


_ERRORS_INTRODUCTION = """\
# Errors

All errors are `WalError`. Each has two attributes that a program can act on:

* `outcome`: the outcome for the records of the failed call. `"not_written"`: safe to submit again.
  `"durable"`: they are in the log. `"unknown"`: open the log again and read before submitting again.
* `retriable`: whether the same call may succeed later without intervention.

The table shows the values of the class; an error object may have others. Wrong arguments raise `TypeError`
or `ValueError`. [operations.md](operations.md#when-something-is-wrong) explains what to do about an error,
and [cli.md](cli.md) lists the exit codes of the command line.
"""


def _errors() -> str:
    found = public_errors()
    lines = [
        MARK,
        _ERRORS_INTRODUCTION,
        "| error | kind of | outcome | retriable | meaning |",
        "|---|---|---|---|---|",
    ]
    for kind in found:
        parents = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        first = " ".join(_inline(inspect.getdoc(kind) or "").partition("\n\n")[0].split())
        lines.append(
            f"| [{kind.__name__}](#{kind.__name__.lower()}) | {parents} | `{kind.outcome}` | "
            f"{'yes' if kind.retriable else 'no'} | {first} |"
        )
    lines.append("")
    for kind in found:
        lines += [f"## {kind.__name__}", ""]
        module = next(
            (name for name, names in ERRORS.items() if kind.__name__ in names.split()), "walstore"
        )
        lines += [*_code(module, f"class {kind.__name__}({kind.__bases__[0].__name__})"), ""]
        lines += _text(kind.__doc__)
        facts = _facts(kind)
        if facts:
            lines += [f"Attributes: {', '.join(f'`{name}`' for name in facts)}.", ""]
    return _joined(lines)


def _facts(kind: type[WalError]) -> list[str]:
    """Return the attributes that the constructor sets."""
    found: list[str] = []
    for base in reversed(kind.__mro__):
        init = vars(base).get("__init__")
        if isinstance(init, types.FunctionType):
            stores = re.findall(r"^\s+self\.([a-z]\w*) = ", inspect.getsource(init), re.MULTILINE)
            found += [name for name in stores if name not in found]
    return found


# -- llms.txt --------------------------------------------------------------------------------


_LLMS_INTRODUCTION = """\
# walstore

> A write-ahead log for asyncio programs in Python, shipped to object storage as wal3 fragments.

One process writes a local log; any number of tasks and processes read it. You choose per append what it
waits for: "memory", "disk" (the default), "replicated" or "cloud". A log can also exist in object storage
alone, with several writers. Spark reads and writes logs.
"""


def _llms(made: dict[str, str]) -> str:
    lines = [_LLMS_INTRODUCTION]
    for section, names in SECTIONS.items():
        lines += [f"## {section}", ""]
        paths = [f"{name}.md" for name in names.split()]
        if section == "Reference":
            paths += ["reference/index.md", *(f"reference/{page.name}.md" for page in PAGES)]
        for path in paths:
            text = made.get(path) or (DOCS / path).read_text()
            lines.append(f"- [{_title(text)}]({path}){_summary(text)}")
        lines.append("")
    return _joined(lines)


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert found
    return found[1]


def _summary(text: str) -> str:
    """Return the first sentence under the title, if there is one."""
    body = text.partition("\n# ")[2] if text.startswith("<!--") else text.removeprefix("# ")
    paragraph = " ".join(body.partition("\n\n")[2].partition("\n\n")[0].split())
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraph)
    found = re.match(r"[A-Z`].+?[.:](?= |$)", plain)
    return f": {found[0].rstrip(':.')}" if found else ""


# -- text ------------------------------------------------------------------------------------

_ROLE = re.compile(r":(meth|class|func|data|attr|mod|exc):`(~?)([\w.]+)`")
_HEADS = {"Args", "Returns", "Raises", "Yields", "Fields", "Attributes"}


def _inline(text: str) -> str:
    """Return text in which roles and literals of docstrings are Markdown's."""

    def role(found: re.Match[str]) -> str:
        name = found[3].rpartition(".")[2] if found[2] or found[1] != "mod" else found[3]
        return f"`{name}()`" if found[1] in {"meth", "func"} else f"`{name}`"

    text = _ROLE.sub(role, text).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([<*_])(?=\w)", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _text(doc: str | None) -> Iterator[str]:
    """Yield a docstring as Markdown, with an empty line behind each block."""
    section = ""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc or "")):
        head, _, rest = block.partition("\n")
        if head.rstrip(":") in _HEADS and head.endswith(":"):
            section, block = head, textwrap.dedent(rest)
            yield from (f"**{head}**", "")
            if not block:
                continue
        if section:
            yield from (*_items(textwrap.dedent(block)), "")
        elif block.startswith("  ") and not block.lstrip().startswith("*"):
            yield from ("```text", *textwrap.dedent(block).splitlines(), "```", "")
        elif block:
            yield from (*_paragraph(block), "")


def _paragraph(block: str) -> Iterator[str]:
    """Yield a block whose lines may turn into a list on the way, which Markdown wants apart."""
    in_list = False
    for line in block.splitlines():
        stripped = line.strip()
        if stripped.startswith("* ") and not in_list:
            in_list = True
            yield ""
        text = _inline(stripped.removeprefix("* "))
        yield f"* {text}" if stripped.startswith("* ") else (f"  {text}" if in_list else text)


def _items(block: str) -> Iterator[str]:
    """Yield ``name: meaning`` lines of a section as a list."""
    for line in block.splitlines():
        found = re.match(r"(\*{0,2}\w+):(?: (.*))?$", line)
        if found:
            yield f"* `{found[1]}`: {_inline(found[2] or '')}".rstrip()
        else:
            yield f"  {_inline(line.strip())}"


def _code(module: str, line: str) -> list[str]:
    """Return a fenced signature, with the import of what it begins with if there is a module."""
    name = re.sub(r"^(async |class )", "", line)
    before = [f"from {module} import {re.split('[ (=]', name)[0]}", ""]
    return ["```py", *(before if module else []), *line.splitlines(), "```"]


def is_coroutine(function: Any) -> bool:
    """Return whether a function is a coroutine function, also if arguments of it were renamed."""
    return inspect.iscoroutinefunction(unrenamed(function)[0])


def _prefix(function: Any) -> str:
    return "async " if is_coroutine(function) else ""


def _signature(function: Any) -> str:
    """Return arguments and result, on several lines if they are long."""
    signature = signature_of(function)
    shown: list[str] = []
    for parameter in signature.parameters.values():
        is_star = any(part.startswith("*") for part in shown)
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_star:
            shown.append("*")
        shown.append(_parameter(parameter))
    result = signature.return_annotation
    after = (
        ""
        if result is signature.empty or inspect.isclass(function)
        else f" -> {_annotation(result)}"
    )
    line = f"({', '.join(shown)}){after}"
    if len(line) <= 88:
        return line
    return "(\n" + "".join(f"    {part},\n" for part in shown) + f"){after}"


def signature_of(function: Any) -> inspect.Signature:
    """Return a signature in which options that a ``TypedDict`` lists stand one by one."""
    found = inspect.signature(function)
    parameters: list[inspect.Parameter] = []
    for parameter in found.parameters.values():
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if unpacked is None:
            parameters.append(parameter)
            continue
        options = inspect.unwrap(function).__globals__[unpacked[1]].__annotations__
        parameters += [
            inspect.Parameter(
                name, parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__
            )
            for name, kind in options.items()
        ]
    return found.replace(parameters=parameters)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        shown = str(default) if isinstance(default, enum.Enum) else repr(default)
        if isinstance(default, enum.StrEnum):
            shown = repr(default.value)
        elif callable(default):
            shown = getattr(default, "__name__", "…")
        elif " at 0x" in shown:
            shown = "…"
        text += f" = {shown}"
    return text


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _joined(lines: list[str]) -> str:
    """Return lines as a file: no more than one empty line in a row, and one end."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def main() -> None:
    """Write the pages that changed, and name them."""
    for name, text in pages().items():
        path = DOCS / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"wrote docs/{name}\n")


if __name__ == "__main__":
    main()
