"""walstore top and ls: logs as they are now, and what happens to them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from typing import Annotated, Any, Final, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from walstore.cli.location import to_directory
from walstore.cli.options import AsJson, argument, option
from walstore.cli.output import (
    cell,
    format_bytes,
    format_count,
    format_time,
    output_console,
    print_json,
    visible,
    writing,
)
from walstore.cli.report import Listing, Report
from walstore.cli.running import stop_on_signal
from walstore.cli.samples import Look, Sample, look_at, open_samples
from walstore.core.runtime.clock import SystemClock

TOP_EXAMPLES = """\
  walstore top data/orders
  walstore top data --sort lag
  walstore top unix:///run/orders.sock
  walstore top s3://bucket/orders --interval 10
  walstore top data/orders --count 1 --json
"""

LS_EXAMPLES = """\
  walstore ls data
  walstore ls data --json | jq -r '.logs[] | select(.writer == null) | .name'
"""

_HISTORY: Final = 60
_BARS: Final = " ▁▂▃▄▅▆▇█"
_AXIS: Final = 60
Sort = Literal["name", "rate", "records", "bytes", "lag"]


class History:
    """The samples of one log, and what they say of its pace."""

    def __init__(self) -> None:
        self.last: Sample | None = None
        self.records_rate = 0.0
        """Records a second, lately."""
        self.bytes_rate = 0.0
        """Bytes a second, lately."""
        self.rates: deque[float] = deque(maxlen=_HISTORY)
        """Records a second between samples, the newest last."""
        self._at = 0.0

    def add(self, sample: Sample, now: float) -> None:
        """Take a sample of this moment."""
        before, seconds = self.last, now - self._at
        if before is not None and seconds > 0:
            self.records_rate = max(0, sample.limit - before.limit) / seconds
            self.bytes_rate = _grown(before, sample) / seconds
            self.rates.append(self.records_rate)
        self.last, self._at = sample, now


def _grown(before: Sample, after: Sample) -> int:
    """Return how many bytes came between two samples, whatever retention removed meanwhile."""
    if after.files:
        return sum(max(0, size - before.files.get(name, 0)) for name, size in after.files.items())
    return max(0, after.size_bytes - before.size_bytes)


async def top(
    location: Annotated[
        str,
        argument(
            "LOCATION",
            "A log directory, a directory of logs, a store URL, or the address of a server.",
        ),
    ],
    *,
    interval: Annotated[
        float, option("--interval SECONDS", "Time between updates.", min=0.1, max=3600)
    ] = 1.0,
    count: Annotated[
        int | None, option("--count N", "Stop after this many updates.", min=1)
    ] = None,
    sort: Annotated[Sort, option("--sort", "Order of several logs.", show_default=True)] = "name",
    as_json: AsJson = False,
) -> None:
    """Show live figures of a log, or of all logs of a directory, until SIGINT. Takes no lock.

    Shows records and bytes per second, the lag of cursors, groups and shipping, and the cursor that holds
    retention back. For a directory it reads the files next to the writer, so it sees synced records; a served
    log also reports its groups and waiting work. An update of a store costs a read and a listing. On a
    terminal the screen is redrawn; otherwise each update follows the last one, with --json as a line.
    """
    clock, histories = SystemClock(), dict[str, History]()
    console = output_console()
    async with open_samples(location, "top") as look:
        with stop_on_signal() as stop:
            screen = Live(console=console, screen=True, auto_refresh=False, transient=False)
            is_live = console.is_terminal and not as_json and count is None
            if is_live:
                screen.start()
            try:
                looks = 0
                while not stop.is_set() and looks != count:
                    shown = await _look(look, histories, clock.monotonic())
                    looks += 1
                    if as_json:
                        await asyncio.to_thread(print_json, _to_json(location, shown))
                    elif is_live:
                        screen.update(draw(location, shown, sort), refresh=True)
                    else:
                        await asyncio.to_thread(_print, console, draw(location, shown, sort))
                    if looks != count:
                        await _pause(stop, interval)
            finally:
                screen.stop()


def _print(console: Console, drawn: RenderableType) -> None:
    """Blocking, as long as the reader of stdout likes."""
    with writing():
        console.print(drawn)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def _look(look: Look, histories: dict[str, History], now: float) -> list[History]:
    """Look once; return the histories of the logs that are there."""
    samples = await look()
    for sample in samples:
        histories.setdefault(sample.name, History()).add(sample, now)
    return [histories[sample.name] for sample in samples]


def draw(location: str, shown: list[History], sort: Sort) -> RenderableType:
    """Return a picture of one log, or a table of several."""
    if len(shown) == 1:
        return _draw_one(location, shown[0])
    return _draw_many(location, shown, sort)


# -- one log ---------------------------------------------------------------------------------


def _draw_one(location: str, history: History) -> RenderableType:
    sample = history.last
    assert sample is not None
    figures = Table(box=None, show_header=False, pad_edge=False)
    figures.add_column(style="bold")
    figures.add_column()
    for name, text in _figures(history, sample):
        figures.add_row(cell(name), cell(text))
    parts: list[RenderableType] = [Text(visible(location), style="bold"), figures, _axis(sample)]
    if sample.cursors:
        parts.append(_cursors(sample))
    if sample.groups:
        parts.append(_groups(sample))
    return Group(*parts)


def _figures(history: History, sample: Sample) -> list[tuple[str, str]]:
    figures = [
        ("offsets", f"[{sample.head}, {sample.limit})  {format_count(sample.records)} records"),
        ("records/s", f"{format_count(history.records_rate):>9}  {sparkline(history.rates)}"),
        ("bytes/s", f"{format_bytes(history.bytes_rate):>9}"),
        ("size", f"{format_bytes(sample.size_bytes)} in {sample.segments} files"),
    ]
    if sample.not_shipped is not None:
        where = f" to {sample.tier_url}" if sample.tier_url else ""
        figures.append(("not shipped", f"{format_count(sample.not_shipped)} records{where}"))
    if sample.free_bytes is not None:
        figures.append(("free", format_bytes(sample.free_bytes)))
    figures.append(("writer", sample.writer or "none"))
    return figures + [(name, text) for name, text in sample.notes]


def sparkline(rates: deque[float]) -> str:
    """Return a bar for each rate, the highest of them full."""
    most = max(rates, default=0.0)
    if not most:
        return _BARS[1] * len(rates)
    return "".join(_BARS[1 + round(rate / most * (len(_BARS) - 2))] for rate in rates)


def _axis(sample: Sample) -> Text:
    """Return the offsets as a line: what is shipped, what is on disk only, and where cursors stand."""
    line = Text()
    if not sample.records:
        return line
    cells = ["━"] * _AXIS
    shipped = sample.uploaded_limit
    styles = ["cyan"] * _AXIS
    if shipped is not None:
        styles = ["green" if _offset(sample, at) < shipped else "yellow" for at in range(_AXIS)]
    for _, position, is_pin in sample.cursors:
        if position is not None:
            at = _cell(sample, position)
            cells[at], styles[at] = ("▼", "bold red" if is_pin else "bold")
    line.append(f"{sample.head} ")
    for mark, style in zip(cells, styles, strict=True):
        line.append(mark, style)
    line.append(f" {sample.limit}")
    return line


def _offset(sample: Sample, cell: int) -> int:
    return sample.head + sample.records * cell // _AXIS


def _cell(sample: Sample, offset: int) -> int:
    reached = (offset - sample.head) * _AXIS // sample.records
    return min(max(reached, 0), _AXIS - 1)


def _cursors(sample: Sample) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("cursor", "position", "behind", ""):
        table.add_column(name, justify="left" if name in ("cursor", "") else "right")
    pins = [at for _, at, is_pin in sample.cursors if is_pin and at is not None]
    for name, position, is_pin in sorted(sample.cursors, key=lambda one: (one[1] or 0, one[0])):
        if position is None:
            table.add_row(cell(name), "-", "-", "cannot be read; holds everything back")
            continue
        is_first = is_pin and position == min(pins)
        role = "holds retention back" if is_first else "" if is_pin else "its lease ended"
        table.add_row(cell(name), str(position), format_count(sample.limit - position), role)
    return table


def _groups(sample: Sample) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("group", "floor", "lag", "pending", "unsettled", "delivered", "again", "dead"):
        table.add_column(name, justify="left" if name == "group" else "right")
    for one in sample.groups:
        figures = (one.floor, one.lag, one.pending, one.unsettled)
        counts = (one.delivered, one.redelivered, one.dead)
        table.add_row(cell(one.name), *map(format_count, (*figures, *counts)))
    return table


# -- several logs ----------------------------------------------------------------------------


def _draw_many(location: str, shown: list[History], sort: Sort) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    names = (
        "log",
        "records",
        "records/s",
        "bytes/s",
        "size",
        "cursor lag",
        "not shipped",
        "writer",
    )
    for name in names:
        table.add_column(name, justify="left" if name in ("log", "writer") else "right")
    for history in sorted(shown, key=lambda one: _key(one, sort)):
        sample = history.last
        assert sample is not None
        lags = [_or_dash(sample.lag), _or_dash(sample.not_shipped)]
        table.add_row(
            cell(sample.name),
            format_count(sample.records),
            format_count(history.records_rate),
            format_bytes(history.bytes_rate),
            format_bytes(sample.size_bytes),
            *lags,
            cell(dict(sample.notes).get("problem") or sample.writer or "none"),
        )
    total = sum(history.records_rate for history in shown)
    return Group(
        Text(f"{visible(location)}: {len(shown)} logs, {format_count(total)} records/s"), table
    )


def _key(history: History, sort: Sort) -> tuple[float, str]:
    sample = history.last
    assert sample is not None
    by: dict[str, float] = {
        "name": 0,
        "rate": history.records_rate,
        "records": sample.records,
        "bytes": sample.size_bytes,
        "lag": sample.lag or 0,
    }
    return -by[sort], sample.name


def _or_dash(count: int | None) -> str:
    return "-" if count is None else format_count(count)


def _to_json(location: str, shown: list[History]) -> dict[str, Any]:
    return {"location": location, "logs": [_fields(one) for one in shown]}


def _fields(history: History) -> dict[str, Any]:
    sample = history.last
    assert sample is not None
    return {
        **_sample_fields(sample),
        "records_per_second": round(history.records_rate, 1),
        "bytes_per_second": round(history.bytes_rate),
    }


def _sample_fields(sample: Sample) -> dict[str, Any]:
    return {
        "name": sample.name,
        "head": sample.head,
        "limit": sample.limit,
        "records": sample.records,
        "bytes": sample.size_bytes,
        "segments": sample.segments,
        "uploaded_limit": sample.uploaded_limit,
        "tier_url": sample.tier_url,
        "writer": sample.writer,
        "free_bytes": sample.free_bytes,
        "cursors": [
            {"name": name, "position": position, "pins": pins}
            for name, position, pins in sample.cursors
        ],
        "groups": [dataclasses.asdict(one) for one in sample.groups],
        "problem": dict(sample.notes).get("problem"),
    }


# -- ls --------------------------------------------------------------------------------------


def ls(
    directory: Annotated[str, argument("DIRECTORY", "A store, or a directory of logs.")] = ".",
) -> Report:
    """List the logs of a store, or of a directory that holds log directories. Takes no lock."""
    samples = look_at(to_directory(directory, "ls"))
    names = ("log", "records", "size", "files", "cursors", "not shipped", "sealed until", "writer")
    rows = [
        (
            one.name,
            format_count(one.records),
            format_bytes(one.size_bytes),
            one.segments,
            len(one.cursors),
            _or_dash(one.not_shipped),
            format_time(one.newest_us),
            dict(one.notes).get("problem") or one.writer or "none",
        )
        for one in samples
    ]
    logs = [_sample_fields(one) for one in samples]
    return Report({"location": directory, "logs": logs}, Listing(names, rows))
