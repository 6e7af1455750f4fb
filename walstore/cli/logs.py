"""Messages of the library on stderr: a line each, in the words of a verb, or as a server logs them."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeAlias

from walstore.cli.options import option
from walstore.cli.output import complain, escape_controls, visible, write_line

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["text", "json"]

LogLevel = Annotated[
    Level, option("--log-level LEVEL", "The least level of the messages on stderr.")
]
LogFormat = Annotated[
    Format,
    option("--log-format FORMAT", "Messages on stderr as text, or as JSON, an object a line."),
]

_LOGGER: Final = logging.getLogger("walstore")


def send_warnings_to_stderr() -> None:
    """Let warnings of the library appear on stderr, one line each, after the name of the program."""
    _send(_Warnings(logging.WARNING), logging.NOTSET)


def send_logs_to_stderr(level: Level, form: Format) -> None:
    """Let messages of a level and above appear on stderr, each with its time, level and logger."""
    number = logging.getLevelNamesMapping()[level.upper()]
    _send(_JsonMessages(number) if form == "json" else _TextMessages(number), number)


def _send(handler: _Handler, level: int) -> None:
    for other in [one for one in _LOGGER.handlers if isinstance(one, _Handler)]:
        _LOGGER.removeHandler(other)
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(level)


class _Handler(logging.Handler):
    """Looks for stderr at each message: it may be another one by then."""


class _Warnings(_Handler):
    def emit(self, record: logging.LogRecord) -> None:
        complain(f"{record.levelname}: {self.format(record)}")


class _TextMessages(_Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, and one for each line of a traceback."""
        message = record.getMessage()
        write_line(f"{_time(record)} {record.levelname} {record.name}: {visible(message)}")
        if record.exc_info:
            for line in logging.Formatter().formatException(record.exc_info).splitlines():
                write_line(f"    {visible(line)}")


class _JsonMessages(_Handler):
    def emit(self, record: logging.LogRecord) -> None:
        message = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            message["exception"] = logging.Formatter().formatException(record.exc_info)
        write_line(escape_controls(json.dumps(message, ensure_ascii=False)))


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
