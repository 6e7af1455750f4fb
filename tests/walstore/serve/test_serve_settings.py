"""ServeSettings and HttpSettings: what they allow, and what a small message size means for clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walstore.serve.served import serving
from walstore import InvalidSettingsError, RecordTooLargeError, Settings
from walstore.http import HttpSettings
from walstore.serve import ServeSettings

MIB = 1 << 20


@pytest.mark.parametrize("kind", [ServeSettings, HttpSettings])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connections", 0),
        ("read_bytes", 1023),
        ("drain_seconds", -1),
        ("answer_bytes", 1.5),
        ("request_bytes", True),
        ("connections", None),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(kind: type, name: str, value: object) -> None:
    with pytest.raises(InvalidSettingsError, match=f"{name} must be"):
        kind(**{name: value})


async def test_a_record_that_no_message_holds_is_refused_alone(tmp_path: Path) -> None:
    """Before it is sent: the connection, and what others do on it, stay."""
    limits = ServeSettings(message_bytes=4 * MIB)
    log = Settings(max_record_bytes=16 * MIB)
    async with serving(tmp_path / "log", log, limits) as server, server.connect() as remote:
        with pytest.raises(RecordTooLargeError):
            await remote.append(bytes(4 * MIB))
        assert await remote.append(bytes(4 * MIB - 100)) == 1
        with pytest.raises(RecordTooLargeError, match="use transaction"):
            await remote.append_many([bytes(MIB)] * 4)
        assert server.server.figures.connected == 1
