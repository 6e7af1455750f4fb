"""Repairing a log that does not open: first a plan that names all losses, then applying it. Blocking.

For operators, through ``walstore repair`` (docs/repair.md). A repair never invents records, moves a record to
another offset, or deletes a file. Files that are replaced or given up move to the directory ``damaged`` of
the log, together with the plan.

Applying is a redo log, so that it can be killed at any call and started again. The order is fixed:

  1. batches that come from a copy become durable in a file, and then the plan as ``repair.wal``; a log that
     contains this file does not open, because its name ends like a segment's but is not one;
  2. every file that is replaced or given up moves into the directory ``damaged``;
  3. segments that consist of parts of those files are written under a temporary name, synced, and renamed;
  4. checkpoint and durable cell are written from the new segments;
  5. the plan itself moves to ``damaged``, as the record of what was done. Now the log opens.

Every step detects whether it was done already, and none needs the copy. Nothing is ever deleted except the
file with the copy's batches, and files of step 3 that a crash left unfinished.

Invariants (tests/walstore/care/repair/test_repairing.py)
  R1  A repaired log opens, and holds exactly the records of ``[plan.head, plan.limit)`` unchanged.
  R2  Whatever the log should hold and does not hold any more is in ``plan.lost``.
  R3  An interrupted repair leaves a log that does not open until the repair is finished.
  R4  Every byte that was there before is there afterwards, in the log or in ``damaged``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Final

from walstore.care.repair.heal import Copy, heal
from walstore.care.repair.overlay import Overlay, Staging
from walstore.care.repair.plan import (
    JOURNAL_NAME,
    KEPT_NAME,
    STAGED_NAME,
    Actions,
    Damage,
    Output,
    RepairKind,
    RepairPlan,
    Step,
    decode_plan,
    encode_plan,
)
from walstore.care.repair.planner import RepairPlanner
from walstore.care.repair.runs import Keep
from walstore.care.repair.survey import survey_log
from walstore.core.files.directory import write_durably, write_hints
from walstore.core.files.frame_walk import walk_file
from walstore.core.files.locks import lock_log, this_process
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import read_footer, read_header
from walstore.core.format import frame, segment
from walstore.core.format.checkpoint import Checkpoint
from walstore.core.format.frame import ColumnKind
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary
from walstore.core.ports import File, FileSystem
from walstore.errors import CorruptionError, DiskFullError, InvalidSettingsError, WalError

_SPARE_NAME: Final = "repair.tmp"
_CHUNK_BYTES: Final = 1 << 20


def plan_repair(
    directory: str | Path,
    *,
    keep: Keep | None = None,
    copy: Copy | None = None,
    fs: FileSystem | None = None,
) -> RepairPlan:
    """Read every byte of the log in ``directory`` and return a plan to repair it. Changes nothing.

    Takes no lock, but judges the writes of a live writer as unfinished: call it while no writer is open.
    ``keep`` chooses where the damage leaves several readable stretches of records, of which a
    repaired log can hold one: ``"before"`` the first, ``"after"`` the last, an offset the one that
    holds it. Without a choice the plan names the stretches and has no steps.

    ``copy`` holds records of the same log, for example ``uploader.StoredCopy``: those of them that are
    damaged or missing are restored. A batch is rebuilt bit for bit if enough of it is known; else its
    records are put into new batches with their offsets and times.

    Raises LogNotFoundError, InvalidSettingsError if ``keep`` is an offset that cannot be read,
    CorruptionError for a restore that was interrupted, which only restoring again finishes,
    FormatVersionError if a file was written by a newer version, and OSError. With a ``copy`` also WalError
    if it is of another log, and its own errors.
    """
    path, fs = Path(directory).absolute(), fs or PosixFileSystem()
    interrupted = load_interrupted(fs, path)
    if interrupted is not None:
        return _to_finish(interrupted, path)
    with contextlib.closing(Staging()) as staging:
        return _plan(path, keep, fs, copy, staging)


def apply_repair(
    plan: RepairPlan, *, copy: Copy | None = None, fs: FileSystem | None = None
) -> None:
    """Apply ``plan``, under the log's lock. If it is killed, plan and apply again to finish.

    Does nothing if nothing is needed. ``copy`` is the one used for the plan; finishing an interrupted
    repair needs none. Raises WalLockedError if the log is open for writing,
    InvalidSettingsError if the plan lacks a choice or the copy is missing, WalError if the log changed
    since the plan was made, DiskFullError before anything is changed, CorruptionError and
    OSError.
    """
    path = Path(plan.path)
    if not plan.is_needed:
        return
    if plan.actions is None:
        stretches = " or ".join(str(one) for one in plan.choices)
        raise InvalidSettingsError(
            f"the damage leaves several stretches, {stretches}: plan again with keep='before', "
            "'after', or an offset in the one to keep"
        )
    with contextlib.ExitStack() as stack:
        fs = (fs or PosixFileSystem()).anchor(path)
        stack.callback(fs.close)
        stack.callback(lock_log(fs, path, f"repair, {this_process()}").release)
        staging = stack.enter_context(contextlib.closing(Staging()))
        interrupted = load_interrupted(fs, path)
        if interrupted is not None:
            current = _to_finish(interrupted, path)
        elif plan.source is not None and copy is None:
            raise InvalidSettingsError(
                f"the plan takes records from {plan.source}: give that copy to apply it, too"
            )
        else:
            keep = _parse_keep(plan.keep)
            current = _plan(path, keep, fs, copy if plan.source else None, staging)
        if current != plan:
            raise WalError(f"the log changed since the repair was planned; plan again: {path}")
        _check_space(fs, path, plan, staging)
        _run_actions(fs, path, interrupted or plan, staging)


def _plan(
    path: Path, keep: Keep | None, fs: FileSystem, copy: Copy | None, staging: Staging
) -> RepairPlan:
    survey = survey_log(fs, path)
    kept = fs.list(path / KEPT_NAME) if KEPT_NAME in survey.names else []
    if copy is None:
        return RepairPlanner(survey, keep, kept).plan()
    healed = heal(fs, survey, copy, staging)
    return RepairPlanner(survey, keep, kept, healed=healed, source=copy.url).plan()


def _to_finish(interrupted: RepairPlan, path: Path) -> RepairPlan:
    """Return an interrupted plan as one whose only step is to finish it."""
    damage = Damage(str(path / JOURNAL_NAME), None, "a repair was interrupted")
    step = Step(
        RepairKind.FINISH, str(path / JOURNAL_NAME), "finish the repair that was interrupted"
    )
    return dataclasses.replace(
        interrupted,
        path=str(path),
        damages=(damage, *interrupted.damages),
        steps=(step, *interrupted.steps),
    )


def _parse_keep(keep: str | None) -> Keep | None:
    if keep is None or keep in ("before", "after"):
        return keep  # type: ignore[return-value]
    return int(keep)


def _check_space(fs: FileSystem, path: Path, plan: RepairPlan, staging: Staging) -> None:
    """Refuse a repair that would fill the disk."""
    assert plan.actions is not None
    needed = sum(output.end - output.position for output in plan.actions.outputs) + (1 << 20)
    needed += staging.size_bytes
    free = fs.free_bytes(path)
    if free < needed:
        raise DiskFullError(
            f"the repair writes {needed} bytes next to what is there, but {path} has {free} free"
        )


def load_interrupted(fs: FileSystem, directory: Path) -> RepairPlan | None:
    """Return the plan of a repair that was interrupted, or None; a damaged one counts as none."""
    path = directory / JOURNAL_NAME
    try:
        return decode_plan(fs.read(path), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _run_actions(fs: FileSystem, directory: Path, plan: RepairPlan, staging: Staging) -> None:
    """Carry out a plan, or the rest of it if it was interrupted. Under the log's lock; OSError.

    ``staging`` has the bytes that the plan takes from a copy, if it was not interrupted.
    """
    actions = plan.actions
    assert actions is not None
    if not actions.log_id:
        actions = dataclasses.replace(actions, log_id=os.urandom(16).hex())
        plan = dataclasses.replace(plan, actions=actions)
    kept = directory / KEPT_NAME
    fs.make_directory(kept)
    if load_interrupted(fs, directory) is None:
        if staging.size_bytes:
            _write_staged(fs, directory, staging)
        _begin(fs, directory, kept, plan)
    _set_aside(fs, directory, kept, actions)
    for output in actions.outputs:
        _write_segment(fs, directory, kept, output, actions)
    _write_hints(fs, directory, actions)
    with contextlib.suppress(FileNotFoundError):
        fs.remove(directory / STAGED_NAME)
    fs.replace(directory / JOURNAL_NAME, kept / actions.record_name)
    fs.sync_directory(kept)
    fs.sync_directory(directory)


def _write_staged(fs: FileSystem, directory: Path, staging: Staging) -> None:
    """Make the batches of a copy durable, so that no step needs the copy again."""
    path = directory / STAGED_NAME
    with contextlib.suppress(FileNotFoundError):
        fs.remove(path)
    with contextlib.closing(fs.open(path, "x")) as file:
        for at in range(0, staging.size_bytes, _CHUNK_BYTES):
            file.pwrite([staging.pread(_CHUNK_BYTES, at)], at)
        file.datasync()
    fs.sync_directory(directory)


def _begin(fs: FileSystem, directory: Path, kept: Path, plan: RepairPlan) -> None:
    """Make the plan durable. A damaged plan may be in its place; a copy of that is kept."""
    if JOURNAL_NAME in fs.list(directory):
        number = sum(name.startswith(JOURNAL_NAME) for name in fs.list(kept)) + 1
        old = fs.read(directory / JOURNAL_NAME)
        write_durably(fs, kept / f"{JOURNAL_NAME}.{number}", old)
    write_durably(fs, directory / JOURNAL_NAME, encode_plan(plan))


def _set_aside(fs: FileSystem, directory: Path, kept: Path, actions: Actions) -> None:
    present, done = set(fs.list(directory)), set(fs.list(kept))
    for move in actions.moves:
        if move.kept_as not in done and move.name in present:
            fs.replace(directory / move.name, kept / move.kept_as)
    fs.sync_directory(kept)
    fs.sync_directory(directory)


def _write_segment(
    fs: FileSystem, directory: Path, kept: Path, output: Output, actions: Actions
) -> None:
    """Make a segment from the frames of one that was set aside, unless that is done."""
    if output.name in fs.list(directory):
        return
    spare = directory / _SPARE_NAME
    with contextlib.suppress(FileNotFoundError):
        fs.remove(spare)
    header = SegmentHeader(
        bytes.fromhex(actions.log_id),
        output.start,
        output.header_epoch,
        output.created_us,
        output.previous_crc,
        output.salt,
    )
    with contextlib.closing(fs.open(spare, "x")) as file:
        file.pwrite([segment.encode_header(header)], 0)
        _copy(fs, directory, kept, file, output)
        index = SegmentIndex(SegmentStreams())
        chain = Chain(output.start, output.previous_crc, 0, 0)
        end = walk_file(file, spare, chain, output.salt, index=index)
        found = (chain.next_offset, chain.previous_crc, end)
        wanted = segment.HEADER_BYTES + output.end - output.position
        if found != (output.limit, output.last_crc, wanted):
            raise CorruptionError(
                "the batches of a segment changed since the repair was planned; plan it again",
                path=str(kept / (output.source or "")),
                expected=(output.limit, output.last_crc, wanted),
                found=found,
            )
        if output.is_sealed:
            summary = SegmentSummary(
                output.start, output.limit, end, output.last_crc, output.timestamp_us
            )
            file.pwrite([segment.encode_footer(summary, index)], end)
        elif output.needs_ledger:
            file.pwrite([_ledger_frame(output, actions, end)], end)
        file.datasync()
    fs.sync_directory(directory)
    fs.replace(spare, directory / output.name)
    fs.sync_directory(directory)


def _copy(fs: FileSystem, directory: Path, kept: Path, target: File, output: Output) -> None:
    """Copy the batches from where they are to behind the header of ``target``."""
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> File:
            file = fs.open(path, "r")
            stack.callback(file.close)
            return file

        file = None if output.source is None else opened(kept / output.source)
        if output.extents:
            is_staged = any(one.is_staged for one in output.extents)
            staged = opened(directory / STAGED_NAME) if is_staged else None
            file = Overlay(output.extents, file, staged)
        at = output.position
        while at < output.end:
            assert file is not None
            data = file.pread(min(_CHUNK_BYTES, output.end - at), at)
            if not data:
                path = kept / (output.source or output.name)
                raise CorruptionError("the file became shorter", path=str(path), position=at)
            for patch in output.patches:
                if at <= patch.position < at + len(data):
                    position = patch.position - at
                    data = data[:position] + bytes([patch.value]) + data[position + 1 :]
            target.pwrite([data], segment.HEADER_BYTES + at - output.position)
            at += len(data)


def _ledger_frame(output: Output, actions: Actions, position: int) -> bytearray:
    """Return a frame without records that contains the ledger."""
    column = frame.blob_column(ColumnKind.MARKS, [actions.ledger], len(actions.ledger))
    data, _ = frame.encode(
        [column],
        start=output.limit,
        count=0,
        base_timestamp_us=output.timestamp_us,
        max_timestamp_us=output.timestamp_us,
        epoch=actions.epoch,
        previous_crc=output.last_crc,
        synced_limit=output.limit,
        at=frame.place(output.salt, position),
    )
    return data


def _write_hints(fs: FileSystem, directory: Path, actions: Actions) -> None:
    """Write the checkpoint and the cell, from the segments as they are now."""
    *before, last = actions.segments
    sealed = tuple(_end_of(fs, directory, start)[0] for start in before)
    summary, index, epoch, salt = _end_of(fs, directory, last)
    hint = Checkpoint(
        log_id=bytes.fromhex(actions.log_id),
        epoch=max(actions.epoch, epoch),
        head=actions.head,
        sealed=sealed,
        tail_start=last,
        tail_position=summary.data_bytes,
        tail_index=index,
        next_offset=summary.limit,
        previous_crc=summary.last_crc,
        timestamp_us=summary.max_timestamp_us,
        uploaded_limit=actions.uploaded_limit,
        tier_url=actions.tier_url,
        ledger=actions.ledger,
        tail_salt=salt,
    )
    write_hints(fs, directory, hint)


def _end_of(
    fs: FileSystem, directory: Path, start: int
) -> tuple[SegmentSummary, SegmentIndex, int, int | None]:
    """Return the summary of a good segment, its index, the highest epoch known of it, and its salt."""
    path = directory / segment.file_name(start)
    with contextlib.closing(fs.open(path, "r")) as file:
        header = read_header(file, path)
        footer = read_footer(file, start, path)
        if footer is not None:
            return *footer, header.epoch, header.salt
        index = SegmentIndex()
        chain = Chain(start, header.previous_crc, 0, header.epoch)
        end = walk_file(file, path, chain, header.salt, index=index)
    summary = SegmentSummary(start, chain.next_offset, end, chain.previous_crc, chain.timestamp_us)
    return summary, index, chain.epoch, header.salt
