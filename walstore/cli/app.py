"""The typer application: its commands, and how errors become one line and an exit code."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from inspect import Parameter, signature
from typing import Annotated, Any, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import walstore
from walstore.cli import (
    append,
    bench,
    check,
    cluster,
    cluster_scrub,
    collection,
    collection_content,
    collection_materialize,
    collection_upkeep,
    copying,
    cursors,
    demo,
    group,
    histories,
    inspect,
    prove,
    records,
    removal,
    repair,
    rotate,
    serve,
    sidecar,
    soak,
    stored,
    table,
    top,
    verify,
)
from walstore.cli.errors import (
    FAILED,
    OK,
    OutputError,
    UsageError,
    described,
    exit_code,
    explain,
    is_expected,
    unwrap,
)
from walstore.cli.logs import send_warnings_to_stderr
from walstore.cli.options import AsJson
from walstore.cli.output import (
    complain,
    forget_stdout,
    prepare_streams,
    writing,
)
from walstore.cli.report import Report
from walstore.cli.running import run_async
from walstore.location import is_url

PROGRAM: Final = "walstore"
_INTERRUPTED: Final = 130
"""What typer makes of a KeyboardInterrupt."""

# Root of the errors about the command line itself; its module differs between versions.
_COMMAND_LINE_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[2]

RECORDS: Final = "Records"
LOOKING: Final = "Looking at logs"
CHECKING: Final = "Checking and repairing"
MOVING: Final = "Copying logs"
ENDING: Final = "Removing and ending"
TRYING: Final = "Trying it out"
GROUPS: Final = "Groups of verbs"


class _Grouped(TyperGroup):
    """Lists the commands under headings, in the order in which they were added."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            text = command.get_short_help_str(_HELP_CHARS)
            rows.setdefault(_headings[name], []).append((name, text))
        width = max(map(len, self.commands))
        for heading, commands in rows.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands])


class _CheckedCommand(TyperCommand):
    """Refuses values that are not UTF-8, before anything is opened; paths may be any bytes."""

    def invoke(self, ctx: Any) -> Any:
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            for text in value if isinstance(value, list | tuple) else (value,):
                if not isinstance(text, str) or _is_utf8(text):
                    continue
                if parameter.metavar not in _PATHS or is_url(text):
                    name = parameter.metavar if parameter.opts[0][0] != "-" else parameter.opts[0]
                    raise UsageError(f"{name} must be UTF-8, not {os.fsencode(text)!r}")
        return super().invoke(ctx)


def _is_utf8(text: str) -> bool:
    """Return whether an argument of this process was UTF-8: what was not became surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_PATHS: Final = frozenset(("LOCATION", "LOG", "DIRECTORY", "DIR", "FILE", "TABLE", "PATH"))
_HELP_CHARS: Final = 68
_headings: dict[str, str] = {}
_AS_JSON: Final = Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)

_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name=PROGRAM,
    cls=_Grouped,
    help="A write-ahead log. LOCATION: data/log, s3://bucket/log or unix:///w.sock.",
    epilog="Exit codes: 0 ok, 1 usage or operation, 2 corruption, 3 not found, 4 locked or fenced.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


class _ReaderGoneError(Exception):
    """Whoever read stdout had enough. Not an OSError, which typer would make an exit code of."""


Command: TypeAlias = Callable[..., Coroutine[Any, Any, Report | None] | Report | None]
"""A function whose parameters are arguments and options. It returns what is printed, or prints itself."""


def _add(heading: str, command: Command, about: str) -> None:
    """Add a command with its examples; ``about`` describes it in fewer words than its help."""
    _headings[command.__name__] = heading
    _add_to(app, command, about)


def _add_to(group: typer.Typer, command: Command, about: str, *, name: str | None = None) -> None:
    """Add a command to the program or to a group. Each gets --json, also one that returns a report."""
    examples = getattr(sys.modules[command.__module__], f"{command.__name__.upper()}_EXAMPLES")
    taken = signature(command, eval_str=True)
    prints_itself = _AS_JSON.name in taken.parameters

    @functools.wraps(command)
    def guarded(*, as_json: bool, **options: Any) -> None:
        if prints_itself:
            options[_AS_JSON.name] = as_json
        try:
            done = command(**options)
            report = run_async(done) if isinstance(done, Coroutine) else done
            if report is not None:
                report.print(as_json=as_json)
        except Exception as error:
            if isinstance(unwrap(error), BrokenPipeError):
                raise _ReaderGoneError from None
            raise

    if not prints_itself:
        parameters = [*taken.parameters.values(), _AS_JSON]
        guarded.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]
    group.command(name, cls=_CheckedCommand, epilog=f"\b\nExamples:\n{examples}", short_help=about)(
        guarded
    )


_add(RECORDS, append.append, "append records from stdin to a log")
_add(RECORDS, records.tail, "print the last records of a log, and new ones")
_add(RECORDS, records.dump, "print records as JSON lines")
_add(RECORDS, serve.serve, "serve a log to other processes")
_add(LOOKING, top.ls, "list the logs of a directory")
_add(LOOKING, top.top, "show a live view of one log or many")
_add(LOOKING, inspect.inspect, "show the state of a log on one screen")
_add(LOOKING, inspect.segments, "list the files of a log")
_add(LOOKING, stored.fragments, "list the objects that contain a stored log's records")
_add(LOOKING, stored.manifest, "show the root of a stored log")
_add(LOOKING, cursors.cursors, "list, move or remove the cursors of a log")
_add(LOOKING, group.group, "list or remove groups of a log, or redrive their dead letters")
_add(CHECKING, check.check, "health check with exit codes for monitoring")
_add(CHECKING, verify.verify, "check every stored byte")
_add(CHECKING, verify.scrub, "report all damage to a stored log")
_add(CHECKING, repair.repair, "report damage to a log directory, and repair it")
_add(
    CHECKING,
    repair.rebuild,
    "rebuild the manifest of a stored log from its fragments",
)
_add(MOVING, copying.upload, "ship a directory's durable records to object storage")
_add(MOVING, copying.restore, "rebuild a log directory from object storage")
_add(MOVING, copying.fork, "copy a stored log, or a part of it")
_add(MOVING, sidecar.sidecar, "copy a log continuously into a table or a collection")
_add(MOVING, table.table, "register a stored log's fragments in an Iceberg table")
_add(ENDING, rotate.rotate, "seal the active segment of a log now")
_add(ENDING, removal.trim, "remove the oldest records of a log")
_add(ENDING, removal.gc, "remove fragments that no cursor of a stored log needs")
_add(ENDING, removal.seal, "close a stored log to new records permanently")
_add(ENDING, removal.destroy, "remove a stored log permanently")
_add(TRYING, bench.bench, "measure a disk, and a log on it")
_add(TRYING, demo.demo, "run the whole path once, with a kill in the middle")
_add(TRYING, prove.prove, "try to break logs on a disk or bucket, and check each")
_add(TRYING, soak.soak, "run a load with kills and collections, and check every record")

_collections = typer.Typer(
    help="Tables in object storage that change over time; docs/versioned_collections.md explains them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_add_to(_collections, collection.create, "create a collection")
_add_to(_collections, collection.show, "show batches, frontiers and readers")
_add_to(_collections, collection_content.read, "print the content at a time, or the changes")
_add_to(
    _collections, collection_content.write, "append rows from a Parquet file or stdin as one batch"
)
_add_to(
    _collections, collection_materialize.materialize, "bring a collection up to date with a log"
)
_add_to(
    _collections, collection_upkeep.compact, "merge batches, and times that no reader distinguishes"
)
_add_to(_collections, collection_upkeep.gc, "remove objects that no reader needs")
_add_to(_collections, collection_upkeep.expire, "remove a reader and its hold")
_add_to(_collections, collection_upkeep.delete, "remove a collection permanently")
app.add_typer(_collections, name="collection", short_help="tables that change over time")
_headings["collection"] = GROUPS

_logs = typer.Typer(
    help="The logs of a cluster: machines that share etcd; docs/cluster.md explains them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_add_to(_logs, cluster.list_logs, "list logs, their leaders and copies", name="list")
_add_to(_logs, cluster.apply, "create a log, or change its spec")
_add_to(_logs, cluster.edit, "change specs in an editor")
_add_to(_logs, cluster.move, "let another machine lead a log")
_add_to(_logs, cluster.suspend, "close a log until it is resumed")
_add_to(_logs, cluster.resume, "resume a suspended log")
_add_to(_logs, cluster_scrub.scrub, "check all copies of a log now, and replace damage")
_add_to(_logs, cluster.remove, "remove a log from the cluster; its files stay")
_add_to(_logs, histories.reset_head, "make this machine's copy the log, after a loss")
_add_to(_logs, histories.give_up, "give up this machine's copy, of two histories")
app.add_typer(_logs, name="logs", short_help="the logs of a cluster")
_headings["logs"] = GROUPS


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        print(f"{PROGRAM} {walstore.__version__}")
        raise typer.Exit(OK)


@app.callback()
def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options that stand before the command."""


@functools.cache
def _command() -> Any:
    """Return the program. Built once: typer looks at each parameter of each command, which takes 30 ms."""
    return get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Mistakes of users never show a traceback."""
    send_warnings_to_stderr()
    try:
        prepare_streams()
    except OutputError as error:
        complain(str(error))
        return FAILED
    code = _run(arguments)
    try:
        with writing():
            pass  # flushes stdout, since Python would show a traceback
    except BrokenPipeError:
        forget_stdout()
    except OutputError as error:
        if code == OK:
            complain(str(error))
            return FAILED
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        code = _command().main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except _ReaderGoneError:
        forget_stdout()
        return OK
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except _COMMAND_LINE_ERROR as error:
        return _refuse(error, as_json=_is_json(arguments))
    except Exception as error:
        cause = unwrap(error)
        if not is_expected(cause):
            raise
        code = exit_code(cause)
        complain(explain(cause), described(cause, code) if _is_json(arguments) else None)
        return code
    if code == _INTERRUPTED:
        complain("interrupted")
        return FAILED
    return code if isinstance(code, int) else OK


def _is_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON; also one that is wrong otherwise."""
    return "--json" in itertools.takewhile(lambda argument: argument != "--", arguments)


def _refuse(error: Any, *, as_json: bool) -> int:
    """Say in one line what is wrong with the command line; its help alone if nothing was given."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    message = error.format_message()
    if message.startswith("Usage:"):
        print(message)
        return FAILED
    message = message.replace("\n\t", " ")  # choices come a line each
    text = f"{message[:1].lower()}{message[1:].rstrip('.')}; see '{path} --help'"
    complain(text, described(UsageError(text), FAILED) if as_json else None)
    return FAILED
