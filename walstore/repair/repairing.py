"""Repairing a log that does not open: first a plan that names all losses, then applying it. Blocking.

For operators, through ``walstore repair`` (docs/repair.md). A repair never invents records, moves a record to
another offset, or deletes a file. Files that are replaced or given up move to the directory ``damaged`` of
the log, together with the plan.

Invariants (tests/walstore/repair/test_repairing.py)
  R1  A repaired log opens, and holds exactly the records of ``[plan.head, plan.limit)`` unchanged.
  R2  Whatever the log should hold and does not hold any more is in ``plan.lost``.
  R3  An interrupted repair leaves a log that does not open until the repair is finished.
  R4  Every byte that was there before is there afterwards, in the log or in ``damaged``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from walstore.errors import DiskFullError, InvalidSettingsError, WalError
from walstore.files.locks import lock_log, this_process
from walstore.files.posix import PosixFileSystem
from walstore.ports import FileSystem
from walstore.repair.apply import load_interrupted, run_actions
from walstore.repair.heal import Copy, heal
from walstore.repair.overlay import Staging
from walstore.repair.plan import (
    JOURNAL_NAME,
    KEPT_NAME,
    Damage,
    Interval,
    RepairKind,
    RepairPlan,
    Step,
)
from walstore.repair.planner import decide
from walstore.repair.runs import Keep
from walstore.repair.survey import survey_log

__all__ = [
    "Copy",
    "Damage",
    "Interval",
    "Keep",
    "RepairKind",
    "RepairPlan",
    "Step",
    "apply_repair",
    "plan_repair",
]


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
    plan: RepairPlan,
    *,
    copy: Copy | None = None,
    fs: FileSystem | None = None,
    make_log_id: Callable[[], bytes] = lambda: os.urandom(16),
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
        run_actions(fs, path, interrupted or plan, make_log_id().hex(), staging)


def _plan(
    path: Path, keep: Keep | None, fs: FileSystem, copy: Copy | None, staging: Staging
) -> RepairPlan:
    survey = survey_log(fs, path)
    kept = fs.list(path / KEPT_NAME) if KEPT_NAME in survey.names else []
    if copy is None:
        return decide(survey, keep, kept)
    healed = heal(fs, survey, copy, staging)
    return decide(survey, keep, kept, healed=healed, source=copy.url)


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
