"""What a run of the demo does: times, sizes, places. A value; crosses to the child as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from walstore.settings import MIB, Settings

SAMPLE_STREAMS = ("cpu", "memory", "disk", "network", "processes")
TEXT_STREAM = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """One run."""

    directory: str
    """Where the log lies."""
    store_url: str
    """Where it is shipped to."""
    life: int = 1
    """1 until the process is killed, 2 after its restart."""
    life_seconds: float = 6.0
    """How long each life appends."""
    samplers_per_stream: int = 1
    """Tasks that append samples, for each kind of sample."""
    text_producers: int = 3
    """Tasks that append text."""
    lines_per_append: int = 256
    backlog_records: int = 200_000
    """How far the store may be behind before the text producers wait for it."""
    segment_bytes: int = 4 * MIB
    """Small, so that segments rotate often."""
    retention_bytes: int = 24 * MIB
    """Small, so that uploaded segments leave the disk while the demo runs."""
    fragment_bytes: int = 4 * MIB

    @property
    def log_path(self) -> Path:
        """Directory of the log."""
        return Path(self.directory)

    def settings(self) -> Settings:
        """Return the settings of the log."""
        return Settings(
            segment_bytes=self.segment_bytes,
            retention_bytes=self.retention_bytes,
            checkpoint_bytes=self.segment_bytes,
        )

    def second_life(self) -> DemoRun:
        """Return the plan of the restarted process."""
        return dataclasses.replace(self, life=self.life + 1)

    def to_json(self) -> str:
        """Return the plan as an argument for the child."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DemoRun:
        """Rebuild from :meth:`to_json`."""
        return cls(**json.loads(text))
