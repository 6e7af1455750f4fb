"""Arguments: whether a call has as many as it takes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import CO_VARARGS
from types import FunctionType, MethodType
from typing import Any

from walstore.net.wire.message import ProtocolViolationError


def check_arguments(
    name: str, call: Callable[..., Any], arguments: Sequence[Any], *, after: int
) -> None:
    """Check what a client sent for the parameters of a function that follow the first ``after``.

    ProtocolViolationError names those that the protocol has, not what the function is called here.
    """
    function = call
    if isinstance(call, MethodType):
        function, after = call.__func__, after + 1
    assert isinstance(function, FunctionType)
    code = function.__code__
    wanted = code.co_varnames[after : code.co_argcount]
    least = len(wanted) - len(function.__defaults__ or ())
    takes_more = bool(code.co_flags & CO_VARARGS)
    if len(arguments) < least or (len(arguments) > len(wanted) and not takes_more):
        listed = ", ".join(wanted) or "none"
        raise ProtocolViolationError(
            f"a call of {name[:100]!r} with {len(arguments)} arguments; it takes {listed}"
        )
