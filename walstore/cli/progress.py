"""A bar on stderr for verbs that take long. There is none unless stderr is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from walstore.cli.output import terminal


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
