"""Progress of the demo on stderr: bars on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from walstore.cli.demo.story import Story
from walstore.cli.output import format_count

REFRESH_SECONDS = 0.1


class Display:
    """Shows how far the demo is. Use as a context manager."""

    def __init__(self, console: Console, story: Story, append_seconds: float) -> None:
        """``append_seconds`` is how long both lives append together."""
        self._console = console
        self._story = story
        self._progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._append = self._progress.add_task("append", total=append_seconds, note="")
        self._upload = self._progress.add_task("upload", total=None, start=False, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Write a line above the bars."""
        self._console.print(text, markup=False, soft_wrap=True)

    def add(self, name: str, total: float | None, note: str = "") -> TaskID:
        """Begin a further bar; ``total`` None for one that only shows that something goes on."""
        return self._progress.add_task(name, total=total, note=note)

    def move(self, bar: TaskID, completed: float) -> None:
        """Move a bar that :meth:`add` made."""
        self._progress.update(bar, completed=completed)

    def finish(self, bar: TaskID, note: str) -> None:
        """Fill a bar; without a terminal, say that the step is done."""
        task = self._progress.tasks[bar]
        total = task.total or 1
        if not self._console.is_terminal:
            self.say(f"{task.description}: {note}, {task.elapsed or 0:.1f} s")
        self._progress.update(bar, total=total, completed=total, note=note)

    async def follow(self) -> None:
        """Show what the story tells, until cancelled."""
        while True:
            self.refresh()
            await asyncio.sleep(REFRESH_SECONDS)

    def refresh(self) -> None:
        """Show what the story tells now."""
        story = self._story
        seconds = story.append_seconds
        rate = story.acknowledged / seconds if seconds else 0.0
        self._progress.update(
            self._append,
            completed=seconds,
            note=f"{format_count(story.acknowledged)} records  "
            f"{story.appended_bytes / 1e6:.1f} MB  {format_count(rate)}/s",
        )
        durable = int(story.status.get("durable_limit", 1)) - 1
        if durable:
            self._progress.start_task(self._upload)
        self._progress.update(
            self._upload,
            total=durable or None,
            completed=story.uploaded,
            note=f"{format_count(story.uploaded)} records uploaded",
        )
