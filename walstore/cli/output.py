"""Where output goes: data to stdout, everything else to stderr, with a bar for verbs that take long."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from walstore.cli.errors import OutputError
from walstore.records import from_timestamp_us

_CONTROLS: Final = re.compile("[\x7f-\x9f\u2028\u2029]")


def print_json(value: object) -> None:
    """Write a value to stdout as one line of JSON."""
    # JSON is UTF-8 whatever the terminal's encoding; what is not UTF-8 in a path becomes \udc80 to \udcff.
    write_bytes((to_json(value) + "\n").encode(errors="backslashreplace"))


def to_json(value: object) -> str:
    """Return a value as compact JSON with its text unescaped, as far as a terminal does not obey it."""
    return escape_controls(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def escape_controls(text: str) -> str:
    """Return JSON with escapes also for what a terminal obeys or takes for the end of a line."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def visible(text: object) -> str:
    """Return text with what a terminal would obey or cannot show as escapes: names may hold anything.

    Every table, field and message passes here on its way to a terminal.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in shown)


def cell(text: object) -> Text:
    """Return text for a table of rich: visible, and brackets are no markup."""
    return Text(visible(text))


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Write names and values to stdout, a pair a line, the values in one column."""
    pairs = [(name, visible(value)) for name, value in fields]
    width = max(len(name) for name, _ in pairs)
    with writing() as stdout:
        for name, value in pairs:
            stdout.write(f"{name:<{width}}  {value}\n")


def print_table(
    names: Sequence[str], rows: Iterable[Sequence[Any]], *, below: Sequence[int] | None = None
) -> list[int]:
    """Write rows to stdout in columns under their names: numbers to the right, text to the left.

    Returns the widths of the columns. With those of an earlier table as ``below``, the rows continue it: the
    names are left out.
    """
    names = [*map(visible, names)]
    lines = [[visible(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    if below is not None:
        widths = [max(pair) for pair in zip(widths, below, strict=True)]
    numeric = [
        all(
            line[at].replace(" ", "").replace(".", "").isdigit() or line[at] == "-"
            for line in lines
        )
        for at in range(len(names))
    ]
    with writing() as stdout:
        for line in lines if below is not None else (names, *lines):
            cells = [
                cell.rjust(width) if is_number else cell.ljust(width)
                for cell, width, is_number in zip(line, widths, numeric, strict=True)
            ]
            stdout.write("  ".join(cells).rstrip() + "\n")
    return widths


def show_figures(rows: Iterable[tuple[str, str, str]], console: Console) -> None:
    """Print rows of a name, a figure and a remark."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="left", style="bold")
    table.add_column(justify="right")
    table.add_column(justify="left", style="dim")
    for row in rows:
        table.add_row(*map(cell, row))
    console.print(table)


def print_verdict(
    name: str, report: dict[str, Any], rows: Iterable[tuple[str, str, str]], *, as_json: bool
) -> bool:
    """Print a report with ``ok`` and ``problems`` as JSON or as rows, then the verdict; return ``ok``."""
    if as_json:
        print_json(report)
    else:
        show_figures(rows, output_console())
    for problem in report["problems"]:
        complain(f"{name}: {problem}")
    name = visible(name)
    verdict = f"{name}: ok" if report["ok"] else f"{name}: failed"
    if as_json:
        complain(verdict)
    else:
        print(verdict, flush=True)
    return bool(report["ok"])


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout and flush. Blocks while the reader of stdout is busy."""
    with writing() as stdout:
        stdout.buffer.write(data)


@contextlib.contextmanager
def writing() -> Iterator[TextIO]:
    """Yield stdout and flush it at the end. OutputError if it cannot be written, as on a full disk.

    BrokenPipeError passes: the reader of stdout has ended, which is no error.
    """
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget_stdout()
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"stdout cannot be written: {reason}") from error


def complain(text: str, described: Mapping[str, Any] | None = None) -> None:
    """Write a line to stderr, after the name of the program; with ``described``, that as JSON instead."""
    line = f"walstore: {visible(text)}"
    if described is not None:
        line = to_json(described)
    write_line(line)


def write_line(line: str) -> None:
    """Write a line to stderr, whatever becomes of it: there is no other place to report that."""
    with contextlib.suppress(OSError):
        print(line.encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that gets its name at the end of the block, and replaces one that had it before.

    It is made at once, with another name in the same directory: OSError if that is not possible. An exception
    in the block removes it. A device or a pipe is not replaced but written to.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        file = unfinished.open("xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Let the program end as with any other output; by itself it would exit with 1."""
        raise BrokenPipeError


def output_console() -> Console:
    """Return stdout for what rich draws. BrokenPipeError once the reader of stdout has ended."""
    return _Output(highlight=False)


def terminal() -> Console:
    """Return a console on stderr for progress; it moves only if stderr is a terminal."""
    return Console(stderr=True, highlight=False)


def format_bytes(size_bytes: float) -> str:
    """Return a size for people: ``1.5 MiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_time(timestamp_us: int | None) -> str:
    """Return a time in UTC to the second, without its zone; ``-`` for None."""
    return "-" if timestamp_us is None else f"{from_timestamp_us(timestamp_us):%Y-%m-%d %H:%M:%S}"


def format_count(count: float) -> str:
    """Return a number for people, with thin groups: ``1 234 567``."""
    return f"{count:,.0f}".replace(",", " ")


def prepare_streams() -> None:
    """Let text that stdout cannot encode appear as escapes, such as paths that are not UTF-8.

    Raises OutputError if stdout is closed: output would be lost.
    """
    if sys.stdout is None:
        raise OutputError("stdout is closed; send it to /dev/null if nobody reads it")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def forget_stdout() -> None:
    """Discard what is still buffered for stdout, which has no reader any more."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float, float, str], None]]:
    """Show a bar as long as the block lasts; call what it yields with done, total and a text."""
    console = terminal()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None, text="")

        def update(done: float, total: float, text: str) -> None:
            bar.update(task, completed=done, total=total, text=text)

        yield update
