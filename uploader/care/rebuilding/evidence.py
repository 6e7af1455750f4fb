"""SurveyEvidence: which fragments are proven to be those of the log, and what is damaged. Pure.

A fragment states which records it contains, at which offsets: its sum covers both. It cannot prove that it
is the one published under its number. The sums of the manifest and of the snapshots prove that, and each of
those proves itself: a snapshot by its key, a manifest by its total. So the total decides between an entry and
a fragment that disagree: if it is not the total of the fragments as they are, the fragment is not proven. A
fragment that no document covers (a snapshot is missing, or all is lost) is proven by its place alone: its
number and its first offset continue what comes before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from uploader.care.rebuilding.survey import SeenFragment, SeenSnapshot, StoreSurvey
from uploader.format import layout
from uploader.format.entries import Entry, Fragment, SnapshotPointer
from uploader.format.findings import RESTORE, Finding, Severity, check_snapshot
from uploader.format.setsum import Setsum
from uploader.format.tree_walk import TreeWalk
from uploader.root.ownership import Claim


@dataclass(slots=True)
class SurveyEvidence:
    """What a survey proves."""

    proven: dict[int, SeenFragment] = field(default_factory=dict)
    """Fragments by number. Whether they continue each other is another question."""
    findings: list[Finding] = field(default_factory=list)
    """All damage."""
    named: list[Entry] = field(default_factory=list)
    """What the manifest names, in order: fragments, and snapshots that are of no use."""
    whole: dict[SnapshotPointer, list[Fragment]] = field(default_factory=dict)
    """The manifest's own snapshots that are whole, pointed at as they are, with the fragments below."""

    @property
    def head(self) -> int | None:
        """Where the damaged log began; None if nothing says so."""
        return self._offset(self.named[:1], "start")

    @property
    def limit(self) -> int | None:
        """Where the damaged log ended; None if nothing says so."""
        return self._offset(self.named[-1:], "limit")

    def _offset(self, entries: Sequence[Entry], name: str) -> int | None:
        """Return an end of an entry, by the fragment itself if that is proven."""
        for entry in entries:
            seen = self.proven.get(entry.seq_no) if isinstance(entry, Fragment) else None
            found: int = getattr(entry if seen is None else seen.entry, name)
            return found
        return None


def weigh(survey: StoreSurvey) -> SurveyEvidence:
    """Return what is proven, and all that is damaged."""
    found = SurveyEvidence(findings=list(survey.manifest_findings))
    if survey.manifest is not None:
        for entry in survey.manifest.snapshots:
            below = list(_walk(entry, survey.snapshots, found.findings))
            found.named += below
            fragments = [one for one in below if isinstance(one, Fragment)]
            held = survey.snapshots.get(entry.path_to_snapshot)
            if held is not None and held.snapshot is not None and len(fragments) == len(below):
                found.whole[held.snapshot.pointer()] = fragments
        found.named += survey.manifest.fragments
    stated = _stated(survey, found.named)
    candidates = _candidates(survey, found.named)
    is_total_right = _is_total_right(survey, candidates)
    for seq_no in sorted({*candidates, *stated}):
        seen = survey.fragments.get(seq_no)
        problem = _problem(seen, stated.get(seq_no, set()), is_total_right=is_total_right)
        if not problem and seen is not None:
            found.proven[seq_no] = seen
        elif survey.manifest is None or seq_no in stated:
            key = layout.fragment_path(seq_no) if seen is None else seen.key
            found.findings.append(_error(key, problem + _records(found.named, seq_no)))
    found.findings += _misnamed(found)
    if not is_total_right:
        _check_unspoken(found)
    if survey.manifest is None:
        _drop_outdated(found)
    return found


# -- what documents say ----------------------------------------------------------------------


def _walk(
    pointer: SnapshotPointer, snapshots: Mapping[str, SeenSnapshot], findings: list[Finding]
) -> Iterator[Entry]:
    """Yield the fragments below a snapshot, and the snapshots below that are of no use."""
    walk: TreeWalk[Entry] = TreeWalk([pointer])
    for entry in walk:
        if isinstance(entry, Fragment):
            yield entry
            continue
        path = entry.path_to_snapshot
        seen = snapshots.get(path)
        if seen is None or seen.snapshot is None:
            findings.append(_error(path, "a snapshot is missing" if seen is None else seen.problem))
            yield entry
            continue
        found = check_snapshot(seen.snapshot, entry)
        wrong = [one for one in found if one.severity is Severity.ERROR]
        findings += wrong
        if wrong:
            yield entry
        else:
            walk.enter(seen.snapshot.children)


def _stated(survey: StoreSurvey, named: Sequence[Entry]) -> dict[int, set[Setsum]]:
    """Return what the sums of fragments are, as documents say, by number.

    Without a manifest all snapshots count that prove themselves: they name what was published.
    """
    entries = list(named)
    if survey.manifest is None:
        for seen in survey.snapshots.values():
            entries += () if seen.snapshot is None else seen.snapshot.fragments
    stated: dict[int, set[Setsum]] = {}
    for entry in entries:
        if isinstance(entry, Fragment) and _number_in(entry) == entry.seq_no:
            stated.setdefault(entry.seq_no, set()).add(entry.setsum)
    if survey.manifest is None:  # an old snapshot may name what was collected
        return {number: sums for number, sums in stated.items() if number in survey.fragments}
    return stated


def _candidates(survey: StoreSurvey, named: Sequence[Entry]) -> dict[int, SeenFragment]:
    """Return what may be part of the log: not what was collected before, nor what was not published.

    An end of the manifest may be damaged in its offset or in its number, so either is enough.
    """
    manifest, seen = survey.manifest, survey.fragments
    if manifest is None:
        return {number: one for number, one in seen.items() if not (one.is_void or one.is_blocker)}
    entries = [entry for entry in named if isinstance(entry, Fragment)]
    numbers = [one for entry in entries for one in (entry.seq_no, _number_in(entry))]
    low = min(numbers, default=0) if len(entries) == len(named) else 0
    high = max(numbers, default=0)
    sums = {entry.seq_no: entry.setsum for entry in entries}
    is_low_sure, is_high_sure = (_is_sum(seen.get(end), sums.get(end)) for end in (low, high))
    found = {}
    for number, one in seen.items():
        start, limit = (0, 0) if one.entry is None else (one.entry.start, one.entry.limit)
        is_behind_head = bool(low) and number >= low
        if not is_low_sure:
            is_behind_head |= limit > manifest.oldest_offset
        is_before_end = number <= high
        if not is_high_sure:
            is_before_end |= start > 0 and limit <= manifest.next_offset
        if is_behind_head and is_before_end:
            found[number] = one
    return found


def _is_sum(seen: SeenFragment | None, setsum: Setsum | None) -> bool:
    return seen is not None and seen.entry is not None and seen.entry.setsum == setsum


def _is_total_right(survey: StoreSurvey, candidates: Mapping[int, SeenFragment]) -> bool:
    """Return whether the fragments, as they are, add up to just what the manifest says of all of them."""
    manifest = survey.manifest
    entries = [one.entry for one in candidates.values()]
    if manifest is None or not entries or any(entry is None for entry in entries):
        return False
    known = [entry for entry in entries if entry is not None]
    return all(map(continues, known, known[1:])) and manifest.setsum == Setsum.total(
        [manifest.collected, *(entry.setsum for entry in known)]
    )


def _number_in(entry: Fragment) -> int:
    """Return the number in an entry's key; 0, which is no fragment's, if there is none."""
    return layout.number_in(entry.path) or 0


def continues(before: Fragment, after: Fragment) -> bool:
    """Return whether one fragment comes right behind another."""
    return (before.seq_no + 1, before.limit) == (after.seq_no, after.start)


# -- judging ---------------------------------------------------------------------------------


def _problem(seen: SeenFragment | None, stated: set[Setsum], *, is_total_right: bool) -> str:
    """Return why a fragment is not proven, in words; nothing if it is."""
    if seen is None:
        return "a fragment is missing"
    if seen.entry is None:
        return seen.problem
    if stated and not is_total_right and seen.entry.setsum not in stated:
        return "its records are not those that were published under its number"
    return ""


def _records(named: Sequence[Entry], seq_no: int) -> str:
    """Return which records are lost with a fragment, in words, if that is known."""
    for entry in named:
        if isinstance(entry, Fragment) and entry.seq_no == seq_no:
            return f", and with it records {entry.start} to {entry.limit}"
    return ""


def _misnamed(found: SurveyEvidence) -> Iterator[Finding]:
    """Yield the entries that say other offsets or another key than those of their fragments. No sum covers
    that."""
    for entry in found.named:
        if not isinstance(entry, Fragment) or entry.seq_no not in found.proven:
            continue
        seen = found.proven[entry.seq_no]
        stated = entry.start, entry.limit
        held = None if seen.entry is None else (seen.entry.start, seen.entry.limit)
        if held != stated:
            what = "its offsets are not what is said of them"
            yield Finding(Severity.ERROR, seen.key, what, RESTORE, stated, held)
        elif seen.key != entry.path:
            what = "its key is not what is said of it"
            yield Finding(Severity.ERROR, seen.key, what, RESTORE, entry.path, seen.key)


def _check_unspoken(found: SurveyEvidence) -> None:
    """Compare the fragments below each snapshot that is of no use with its sum, if all are there."""
    for pointer in found.named:
        if not isinstance(pointer, SnapshotPointer):
            continue
        below = [
            seen.entry
            for seen in found.proven.values()
            if seen.entry is not None and pointer.start <= seen.entry.start < pointer.limit
        ]
        is_whole = (
            bool(below)
            and (below[0].start, below[-1].limit) == (pointer.start, pointer.limit)
            and all(continues(low, high) for low, high in pairwise(below))
        )
        if is_whole and Setsum.total(entry.setsum for entry in below) != pointer.setsum:
            what = (
                "one of the fragments below a snapshot that is of no use is not what was published"
            )
            found.findings.append(_error(pointer.path_to_snapshot, what))
            for entry in below:
                del found.proven[entry.seq_no]


def _drop_outdated(found: SurveyEvidence) -> None:
    """Leave out what a directory put after it had lost the prefix: no manifest ever named it."""
    newest: dict[bytes, int] = {}
    for seq_no, seen in list(found.proven.items()):
        claim = Claim.parse(seen.maker or "")
        if claim is None or not claim.epoch:
            continue
        if claim.epoch < newest.get(claim.log_id, 0):
            what = "it was put by a directory that had lost the prefix to another one"
            found.findings.append(_error(seen.key, what))
            del found.proven[seq_no]
        newest[claim.log_id] = max(claim.epoch, newest.get(claim.log_id, 0))


def _error(key: str, what: str) -> Finding:
    return Finding(Severity.ERROR, key, what, RESTORE)


# -- stretches -------------------------------------------------------------------------------


def find_runs(survey: StoreSurvey, evidence: SurveyEvidence) -> list[list[SeenFragment]]:
    """Return the stretches: fragments that continue each other, oldest first.

    Without a manifest, not those of which collectors say that the log began behind them.
    """
    runs: list[list[SeenFragment]] = []
    for seen in evidence.proven.values():
        if runs and continues(entry_of(runs[-1][-1]), entry_of(seen)):
            runs[-1].append(seen)
        else:
            runs.append([seen])
    return _uncollected(runs, survey) if survey.manifest is None else runs


def _uncollected(
    runs: Sequence[list[SeenFragment]], survey: StoreSurvey
) -> list[list[SeenFragment]]:
    """Return the stretches without what was collected.

    An announced collection may have been carried out, or not yet. It counts if its fragments are not all
    there any more.
    """
    live = _from(runs, survey.head)
    first = entry_of(live[0][0]) if live else None
    is_whole = first is not None and (
        first.start <= survey.head
        or (first.seq_no, first.start) == (layout.FIRST_SEQ_NO, layout.FIRST_OFFSET)
    )
    return (live if is_whole else _from(live, survey.announced)) or list(runs)


def _from(runs: Sequence[list[SeenFragment]], head: int) -> list[list[SeenFragment]]:
    """Return the parts of the stretches from an offset on, as whole fragments."""
    cut = [[seen for seen in run if entry_of(seen).limit > head] for run in runs]
    return [run for run in cut if run]


def entry_of(seen: SeenFragment) -> Fragment:
    """Return the entry of an object that is a fragment."""
    assert seen.entry is not None
    return seen.entry
