"""Story: what processes append to a file, line by line, as far as it is there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.waiting import wait_until


class Story:
    """A file of lines. Only what is new in it is read."""

    def __init__(self, path: Path) -> None:
        """Make the file."""
        self.path = path
        self._lines: list[str] = []
        self._words: Counter[str] = Counter()
        self._read_bytes = 0
        path.touch()

    def look(self) -> list[str]:
        """Return the lines; a last one without an end is none."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(new)
        lines = new.decode().splitlines()
        self._lines += lines
        self._words.update(line.partition(" ")[0] for line in lines)
        return self._lines

    def count(self, word: str) -> int:
        """Return how many lines begin with a word."""
        self.look()
        return self._words[word]

    def wait(self, word: str, count: int) -> None:
        """Wait until so many lines begin with a word."""
        try:
            wait_until(lambda: self.count(word) >= count, seconds=120)
        except TimeoutError:
            raise TimeoutError(f"only {self._words[word]} of {count} times {word!r}") from None
