"""Errors over a connection: the same types with the same facts on the other side. Pure.

Only errors of :mod:`walstore.errors`, and ValueError, TypeError and RuntimeError of a wrong call, are made
from what arrives, never a class that the other side names freely.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import walstore.errors
from walstore.errors import OutcomeUnknownError, WalError

_PLAIN: Final[dict[str, type[Exception]]] = {
    kind.__name__: kind for kind in (ValueError, TypeError, RuntimeError)
}
_WAL: Final[dict[str, type[WalError]]] = {
    name: kind
    for name, kind in vars(walstore.errors).items()
    if isinstance(kind, type) and issubclass(kind, WalError)
}
_MOST_DEPTH: Final = 4
_MOST_CHARS: Final = 4096
_MOST_ITEMS: Final = 256
"""Of what an error says: arguments that a client sent come back in it, and may have any size."""


def pack_error(error: BaseException) -> list[Any]:
    """Return an error as values of msgpack.

    Anything that is no error of a caller is a defect of the server: OutcomeUnknownError.
    """
    if isinstance(error, WalError):
        kind = next(found for found in type(error).__mro__ if found.__name__ in _WAL)
        return [kind.__name__, _text(str(error)), _plain(error.__dict__), _text(_cause(error))]
    for name, plain in _PLAIN.items():
        if type(error) is plain:
            return [name, _text(str(error)), {}, ""]
    return [OutcomeUnknownError.__name__, _text(f"the server failed: {error!r}"), {}, ""]


def unpack_error(packed: object) -> Exception:
    """Return the error that was packed; an OutcomeUnknownError if it is malformed."""
    match packed:
        case [str(name), str(message), dict(state), str(cause)] if name in _WAL:
            kind = _WAL[name]
            error = kind.__new__(kind, message)
            error.args = (message,)
            error.__dict__.update({str(key): value for key, value in state.items()})
            if cause:
                error.__cause__ = WalError(cause)
            return error
        case [str(name), str(message), *_] if name in _PLAIN:
            return _PLAIN[name](message)
    return OutcomeUnknownError(f"the server sent an error that is none: {packed!r:.200}")


def unpack_problem(packed: object) -> WalError:
    """Return what is wrong with a part of a log, as :func:`unpack_error`."""
    error = unpack_error(packed)
    return error if isinstance(error, WalError) else OutcomeUnknownError(str(error))


def _cause(error: WalError) -> str:
    return "" if error.__cause__ is None else str(error.__cause__) or repr(error.__cause__)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value without anything that msgpack lacks."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, bytes):
        return value[:_MOST_CHARS]
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 64 else str(value)
    if depth < _MOST_DEPTH and isinstance(value, dict):
        items = islice(value.items(), _MOST_ITEMS)
        return {_text(str(key)): _plain(item, depth + 1) for key, item in items}
    if depth < _MOST_DEPTH and isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value[:_MOST_ITEMS]]
    return _text(str(value))


def _text(text: str) -> str:
    """Return text that is UTF-8, as a path may be anything, and that is not too long."""
    if len(text) > _MOST_CHARS:
        text = f"{text[: _MOST_CHARS // 2]} … {text[-_MOST_CHARS // 4 :]}"
    return text.encode(errors="replace").decode()
