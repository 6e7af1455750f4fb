"""The typer application: its verbs, and how errors become one line and an exit code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

import walstore
from walstore.cli import (
    append,
    bench,
    cursors,
    dump,
    inspect,
    repair,
    segments,
    tail,
    trim,
    upload,
    verify,
)
from walstore.cli.demo import verb as demo
from walstore.cli.errors import FAILED, OK, exit_code, explain, is_expected, unwrap
from walstore.cli.output import complain, forget_stdout, send_logs_to_stderr

PROGRAM: Final = "walstore"
_INTERRUPTED: Final = 130
"""What typer makes of a KeyboardInterrupt."""

# Root of the errors about the command line itself; where its module lies differs between versions.
_COMMAND_LINE_ERROR: Final[type[Exception]] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name=PROGRAM,
    help="A write-ahead log for asyncio programs, in a directory and in object storage.",
    epilog="Exit codes: 0 ok, 1 usage or operation, 2 corruption, 3 not found, 4 locked or fenced.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class _ReaderGoneError(Exception):
    """Whoever read stdout had enough. Not an OSError, which typer would make an exit code of."""


def _add(verb: Callable[..., None], examples: str) -> None:
    @functools.wraps(verb)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            verb(*arguments, **options)
        except Exception as error:
            if isinstance(unwrap(error), BrokenPipeError):
                raise _ReaderGoneError from None
            raise

    app.command(epilog=examples)(guarded)


_add(append.append, append.EXAMPLES)
_add(tail.tail, tail.EXAMPLES)
_add(dump.dump, dump.EXAMPLES)
_add(inspect.inspect, inspect.EXAMPLES)
_add(segments.segments, segments.EXAMPLES)
_add(cursors.cursors, cursors.EXAMPLES)
_add(verify.verify, verify.EXAMPLES)
_add(repair.repair, repair.EXAMPLES)
_add(trim.trim, trim.EXAMPLES)
_add(upload.upload, upload.EXAMPLES)
_add(bench.bench, bench.EXAMPLES)
_add(demo.demo, demo.EXAMPLES)


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
    """Take the options that stand before the verb."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Mistakes of users never show a traceback."""
    send_logs_to_stderr()
    try:
        code = get_command(app).main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except _ReaderGoneError:
        forget_stdout()
        return OK
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except _COMMAND_LINE_ERROR as error:
        return _refuse(error)
    except Exception as error:
        cause = unwrap(error)
        if not is_expected(cause):
            raise
        complain(explain(cause))
        return exit_code(cause)
    if code == _INTERRUPTED:
        complain("interrupted")
        return FAILED
    return code if isinstance(code, int) else OK


def _refuse(error: Any) -> int:
    """Say in one line what is wrong with the command line; its help alone if nothing was given."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    message = error.format_message()
    if message.startswith("Usage:"):
        print(message)
        return FAILED
    complain(f"{message[:1].lower()}{message[1:].rstrip('.')}; see '{path} --help'")
    return FAILED
