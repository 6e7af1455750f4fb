"""Deliberate bugs: does the quick suite catch them? ``make mutants`` says how many of the fifty it does.

Each mutant is one line changed in a copy of the tree. The named tests run on the copy until one fails.
tests/test_mutants.py checks that each line is still there, exactly once.

    python -m tests.mutants             all of them
    python -m tests.mutants tail cas    those whose file has such a word in its path
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
COPIED: Final = ("walstore", "uploader", "tests", "docs", "pyproject.toml", "README.md")
TIMEOUT_SECONDS: Final = 600
TESTS_FAILED: Final = (1, 2)
"""What pytest ends with: a test failed, or its module did."""
NO_TESTS: Final = 5
"""What pytest ends with: no test has the mark."""


class Mutant(NamedTuple):
    """One bug."""

    file: str
    old: str
    """Occurs once in the file."""
    new: str


FRAME = "walstore/core/format/frame.py"
SEGMENT = "walstore/core/format/segment.py"
CHECKPOINT = "walstore/core/format/checkpoint.py"
RECOVERY = "walstore/core/format/recovery.py"
STATE = "walstore/core/append/log_state.py"
ACTIVE = "walstore/core/append/active_segment.py"
TAIL = "walstore/core/append/tail.py"
WRITER = "walstore/core/append/writer.py"
CAS = "uploader/root/cas.py"
CUTOFF = "uploader/care/gc/planner.py"
HOLDS = "uploader/root/holds.py"
GARBAGE_PLAN = "uploader/care/gc/garbage_plan.py"
HEADS = "uploader/care/gc/observed_heads.py"
APPLY = "uploader/care/gc/apply.py"
DELETER = "uploader/care/gc/deleter.py"

TESTS: Final = {
    FRAME: ("tests/walstore/core/format", "tests/golden/test_golden_frames.py"),
    SEGMENT: ("tests/walstore/core/format", "tests/walstore/core/files/test_segment_file.py"),
    CHECKPOINT: ("tests/walstore/core/format",),
    RECOVERY: (
        "tests/walstore/core/format/test_recovery.py",
        "tests/scenarios/test_03_local_recovery.py",
    ),
    STATE: ("tests/walstore/core/append", "tests/scenarios/test_15_what_became_of_it.py"),
    TAIL: (
        "tests/walstore/core/append/test_tail.py",
        "tests/walstore/core/append/test_writer.py",
        "tests/walstore/log/test_opening.py",
        "tests/walstore/log/test_retention.py",
        "tests/scenarios/test_15_what_became_of_it.py",
        "tests/scenarios/test_18_building_on_what_was_found.py",
        "tests/scenarios/test_10_a_full_disk.py",
    ),
    ACTIVE: ("tests/walstore/core/append", "tests/walstore/log/test_opening.py"),
    WRITER: (
        "tests/walstore/core/append/test_writer.py",
        "tests/walstore/log",
        "tests/scenarios/test_15_what_became_of_it.py",
    ),
    CAS: ("tests/uploader/root/test_cas.py",),
    CUTOFF: ("tests/uploader/care/gc",),
    HOLDS: ("tests/uploader/care/gc",),
    GARBAGE_PLAN: ("tests/uploader/care/gc",),
    HEADS: ("tests/uploader/care/gc",),
    APPLY: ("tests/uploader/care/gc",),
    DELETER: ("tests/uploader/care/gc",),
}
"""Which tests should catch the mutants of a file; the quick ones among them are run."""

MUTANTS: Final = (
    Mutant(FRAME, "return self.start + self.count", "return self.start + max(self.count, 1)"),
    Mutant(FRAME, "return self.position + self.length", "return self.position + self.length - 8"),
    Mutant(FRAME, "if len(packed) < body_bytes:", "if packed:"),
    Mutant(FRAME, "_U32.pack((salt + position) & _MASK)", "_U32.pack(salt)"),
    Mutant(FRAME, "if not has_trailer(buffer, header):", "if False:"),
    Mutant(FRAME, "return (crc32c(at, crc) if at else crc) == header.crc", "return True"),
    Mutant(FRAME, "if position + HEADER_BYTES > len(buffer):", "if position > len(buffer):"),
    Mutant(SEGMENT, "position - self.positions[-1] < INDEX", "position - self.positions[-1] <= INDEX"),
    Mutant(SEGMENT, "bisect_right(self.starts, offset) - 1", "bisect_right(self.starts, offset)"),
    Mutant(SEGMENT, "bisect_left(self.timestamps_us", "bisect_right(self.timestamps_us"),
    Mutant(SEGMENT, "if version > FORMAT_VERSION:", "if version > FORMAT_VERSION + 1:"),
    Mutant(SEGMENT, "return position if magic == SEAL_MAGIC else None", "return position"),
    Mutant(SEGMENT, "if found != crc or len(data) != end + SEAL.size:", "if found != crc:"),
    Mutant(CHECKPOINT, "or _crc(version, body) != crc:", "or False:"),
    Mutant(CHECKPOINT, 'if data[PREFIX.size + size :].strip(b"\\0"):', "if False:"),
    Mutant(CHECKPOINT, "or found.head > found.next_offset:", "or False:"),
    Mutant(CHECKPOINT, '"own_epoch": checkpoint.own_epoch,', '"own_epoch": checkpoint.epoch,'),
    Mutant(RECOVERY, "and header.previous_crc == self.previous_crc", "and True"),
    Mutant(RECOVERY, "and header.epoch >= self.epoch", "and header.epoch > self.epoch"),
    Mutant(RECOVERY, "self.timestamp_us = header.max_", "self.timestamp_us = header.base_"),
    Mutant(RECOVERY, "evidence.durable_limit > chain.next_", "evidence.durable_limit >= chain.next_"),
    Mutant(RECOVERY, "later.synced_position > position", "later.synced_position >= position"),
    Mutant(RECOVERY, "if testified or is_noted:", "if is_noted:"),
    Mutant(RECOVERY, "if header is not None and header.reuses_blocks", "if header is not None"),
    Mutant(STATE, "if limit <= self.durable_limit:", "if limit < self.durable_limit:"),
    Mutant(STATE, "if limit <= self.written_limit else", "if limit < self.written_limit else"),
    Mutant(STATE, "self.durable_serial = self.written_serial", "pass"),
    Mutant(TAIL, "if summary.limit <= limit]", "if summary.start <= limit]"),
    Mutant(ACTIVE, "return end + size_bytes > most and", "return end > most and"),
    Mutant(TAIL, "chain.next_offset, chain.previous_crc, chain.timestamp_us = before", "pass"),
    Mutant(TAIL, "if self._segment.file.is_dirty or not is_full(error):", "if not is_full(error):"),
    Mutant(TAIL, "if is_known and reached.durable_serial == reached.attempted_serial:", "if is_known:"),
    Mutant(TAIL, "            raise self._failure", "            pass"),
    Mutant(TAIL, "reached if is_known else reached.in_doubt())", "reached)"),
    Mutant(WRITER, "if self._linger_seconds and not self._stopping", "if self._linger_seconds"),
    Mutant(WRITER, "while self._tail.written_limit < limit:", "while self._tail.written_limit < limit - 1:"),
    Mutant(WRITER, 'return to_wal_error(cause, "unknown")', "return None"),
    Mutant(WRITER, '"unknown" if outcome == "durable" and may_be_cut else outcome', "outcome"),
    Mutant(CAS, "if found.data == self._data:", "if found.etag == self._data:"),
    Mutant(CAS, "self._was_open or (self._may_have_happened and is_old)", "self._was_open"),
    Mutant(CAS, 'if error.outcome == "not_written":', "if error.retriable:"),
    Mutant(CAS, "if not self._may_have_happened:", "if True:"),
    Mutant(HOLDS, "if not cursor.is_expired(now_us)]", "if True]"),
    Mutant(CUTOFF, "if offset < found.offset:", "if True:"),
    Mutant(GARBAGE_PLAN, "elif entry.limit <= self._cutoff:", "elif entry.start <= self._cutoff:"),
    Mutant(GARBAGE_PLAN, "limit_seq_no=dropped[-1].seq_no + 1,", "limit_seq_no=dropped[-1].seq_no,"),
    Mutant(HEADS, "max(self.interval_us, interval_us)", "min(self.interval_us, interval_us)"),
    Mutant(HEADS, "if head.offset >= offset and head.since_us <= now_us]", "if head.offset >= offset]"),
    Mutant(APPLY, "if found.etag is None or found.value != garbage:", "if found.etag is None:"),
    Mutant(DELETER, "[item.key for item in batch]", "[item.key for item in batch[1:]]"),
)  # fmt: skip


def copy_tree(target: Path) -> None:
    """Copy what the tests need."""
    skipped = shutil.ignore_patterns("__pycache__", "target")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=skipped)
        else:
            shutil.copy(ROOT / name, target / name)


def is_caught(tree: Path, mutant: Mutant) -> bool:
    """Apply a mutant to a copy of the tree, run its tests, the quick ones first, and take it back."""
    file = tree / mutant.file
    sound = file.read_text()
    file.write_text(sound.replace(mutant.old, mutant.new))
    try:
        return any(_fails(tree, mutant, mark) for mark in ("not slow", "slow"))
    finally:
        file.write_text(sound)


def _fails(tree: Path, mutant: Mutant, mark: str) -> bool:
    options = ("-x", "-q", "-m", mark, "-n", "0", "-p", "no:cacheprovider")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *TESTS[mutant.file]],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in {0, NO_TESTS, *TESTS_FAILED}:
        raise SystemExit(f"{mutant}: pytest ended with {done.returncode}\n{done.stdout[-3000:]}")
    return done.returncode in TESTS_FAILED


def main(words: list[str]) -> int:
    """Try mutants and print what became of each; 1 if one survived."""
    chosen = [m for m in MUTANTS if not words or any(word in m.file for word in words)]
    caught = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copy_tree(Path(scratch))
        for mutant in chosen:
            found = is_caught(Path(scratch), mutant)
            caught += found
            print(
                "caught  " if found else "SURVIVED",
                f"{mutant.file}: {mutant.old} → {mutant.new}",
                flush=True,
            )
    print(f"{caught} of {len(chosen)} mutants were caught")
    return caught < len(chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
