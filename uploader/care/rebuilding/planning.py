"""make_plan: what to do about a damaged log. Pure.

Owns the choice. Offsets of a log have no holes, so if records in the middle are lost, one stretch of what
is proven can stay the log; no record gets another offset. ``evidence.py`` reports what is proven, ``tree.py``
makes the manifest, ``rebuilding.py`` carries out a plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from uploader.care.rebuilding.evidence import SurveyEvidence, entry_of, find_runs, weigh
from uploader.care.rebuilding.plan import Changes, Keep, Note, RebuildPlan, Void
from uploader.care.rebuilding.survey import SeenFragment, StoreSurvey
from uploader.care.rebuilding.tree import grow, to_put
from uploader.format import layout
from uploader.format.entries import Fragment, Snapshot
from uploader.format.findings import Finding, Severity
from uploader.format.manifest import Manifest, rebuilt_writer, seal_writer
from uploader.format.setsum import Setsum
from uploader.root.ownership import Claim, is_direct_writer_name
from uploader.root.write_guard import writer_after_rebuild
from walstore.errors import CorruptionError, InvalidSettingsError, LogNotFoundError

_WRITER: Final = "walstore rebuild"
_LIFE_CHARS: Final = 16
_INTERRUPTED: Final = "a rebuild gave up what is there, and was interrupted"


def make_plan(
    survey: StoreSurvey, keep: Keep | None = None, writer: str | None = None
) -> RebuildPlan:
    """Return what to do about a log.

    LogNotFoundError if there is neither a manifest nor a fragment; InvalidSettingsError if ``keep`` is an
    offset that is in no stretch.
    """
    evidence = weigh(survey)
    if not evidence.findings:
        return _of_sound(survey)
    runs = find_runs(survey, evidence)
    if not runs and survey.manifest is None:
        raise LogNotFoundError(f"there are no fragments at {survey.url}", location=survey.url)
    return _Planning(survey, evidence, runs, "before" if keep is None else keep, writer).plan()


def _of_sound(survey: StoreSurvey) -> RebuildPlan:
    """Return the plan for a log that is sound, except for objects that may be behind its end."""
    manifest = survey.manifest
    assert manifest is not None
    # A log that takes appends has nothing to finish, and objects behind its end belong to its writers.
    begun = {
        void.key: void.etag
        for note in survey.notes
        for void in note.voids
        if manifest.is_sealed and note.limit <= manifest.next_offset
    }
    is_sealed = manifest.is_sealed and not manifest.is_rebuilding
    found: list[tuple[Void, str]] = []
    for seen in _behind(survey, manifest.next_seq_no):
        if seen.is_void or seen.is_blocker:
            continue
        if begun.get(seen.key) == seen.etag:
            found.append((Void(seen.key, seen.etag), _INTERRUPTED))
        elif seen.entry is None and not seen.is_excluded and not manifest.is_sealed:
            what = f"it is no fragment, and is where the next ones belong: {seen.problem}"
            found.append((Void(seen.key, seen.etag), what))
    last = layout.fragment_path(manifest.next_seq_no)
    if is_sealed and last in begun and manifest.next_seq_no not in survey.fragments:
        found.append((Void(last, None), _INTERRUPTED))
    voids = [void for void, _ in found]
    wrong = [(one.key, what) for one, what in found]
    if manifest.is_rebuilding:
        wrong.insert(0, (layout.MANIFEST, "a rebuild was interrupted, and nobody can append"))
    damages = [Finding(Severity.ERROR, key, what, "rebuild the log") for key, what in wrong]
    # What an earlier rebuild noted was copied before that.
    copies = tuple(
        (void.key, void.etag)
        for void, what in found
        if void.etag is not None and what is not _INTERRUPTED
    )
    name = _name_of(survey, manifest, voids) if copies else ""
    return RebuildPlan(
        location=survey.url,
        damages=tuple(damages),
        choices=(range(manifest.oldest_offset, manifest.next_offset),),
        start=manifest.oldest_offset,
        limit=manifest.next_offset,
        set_aside=tuple(key for key, _ in copies),
        kept_in=layout.rebuilt_folder(name) if copies else None,
        setsum=manifest.setsum.hexdigest(),
        writer=rebuilt_writer(manifest.writer),
        is_sealed=is_sealed,
        next_seq_no=manifest.next_seq_no,
        changes=Changes(
            name=name,
            voids=tuple(voids),
            copies=copies,
            is_resumed=manifest.is_rebuilding,
        ),
    )


class _Planning:
    """The making of one plan for a damaged log."""

    def __init__(
        self,
        survey: StoreSurvey,
        evidence: SurveyEvidence,
        runs: Sequence[Sequence[SeenFragment]],
        keep: Keep,
        writer: str | None,
    ) -> None:
        self._survey = survey
        self._evidence = evidence
        self._keep = keep
        self._choices = tuple(
            range(entry_of(run[0]).start, entry_of(run[-1]).limit) for run in runs
        )
        self._run: Sequence[SeenFragment] = runs[self._chosen()] if runs else ()
        self._writer = writer

    def plan(self) -> RebuildPlan:
        """Return it."""
        survey = self._survey
        manifest, snapshots = self._manifest()
        is_replaced = survey.manifest is None or manifest != survey.manifest
        voids = self._voids(manifest)
        put = tuple(
            (one, survey.snapshots[one.path].etag if one.path in survey.snapshots else None)
            for one in to_put(snapshots, survey.snapshots)
        )
        lost = self._lost(manifest)
        copies = self._set_aside(manifest, put, voids, is_replaced=is_replaced)
        name = _name_of(survey, manifest, voids)
        return RebuildPlan(
            location=survey.url,
            damages=tuple(self._evidence.findings),
            choices=self._choices,
            keep=self._keep,
            start=manifest.oldest_offset,
            limit=manifest.next_offset,
            lost=lost,
            reassigned=self._reassigned(lost, manifest),
            set_aside=tuple(key for key, _ in copies),
            kept_in=layout.rebuilt_folder(name) if copies else None,
            notes=tuple(self._notes(manifest)),
            fragments=len(self._run),
            fragment_bytes=sum(entry_of(seen).num_bytes for seen in self._run),
            setsum=manifest.setsum.hexdigest(),
            writer=manifest.writer,
            is_sealed=manifest.is_sealed,
            next_seq_no=manifest.next_seq_no,
            changes=Changes(
                name=name,
                manifest=manifest if is_replaced else None,
                manifest_etag=survey.manifest_etag if is_replaced else None,
                snapshots=put,
                garbage_etag=survey.garbage_etag if is_replaced else None,
                voids=tuple(voids),
                copies=tuple(copies),
            ),
        )

    # -- the choice --------------------------------------------------------------------------

    def _chosen(self) -> int:
        if self._keep == "before":
            return 0
        if self._keep == "after":
            return -1
        for at, stretch in enumerate(self._choices):
            if self._keep in stretch:
                return at
        shown = ", ".join(f"[{one.start}, {one.stop})" for one in self._choices)
        raise InvalidSettingsError(
            f"offset {self._keep} of {self._survey.url} is in none of the stretches that are proven: {shown}"
        )

    # -- the manifest ------------------------------------------------------------------------

    def _manifest(self) -> tuple[Manifest, list[Snapshot]]:
        before = self._survey.manifest
        if not self._run:
            assert before is not None
            return self._emptied(before), []
        run = [entry_of(seen) for seen in self._run]
        collected = Setsum()
        if before is not None and (run[0].seq_no, run[0].start) != (
            layout.FIRST_SEQ_NO,
            layout.FIRST_OFFSET,
        ):
            # The sum of what the damaged one names before, as far as it says so.
            named = (one for one in self._evidence.named if one.limit <= run[0].start)
            collected = before.collected + Setsum.total(one.setsum for one in named)
        manifest, snapshots = grow(
            run,
            self._evidence.whole,
            _WRITER,
            collected=collected,
            acc_bytes=0 if before is None else before.acc_bytes,
        )
        manifest = dataclasses.replace(manifest, writer=self._named_writer(run))
        return self._as_it_began(manifest), snapshots

    def _as_it_began(self, manifest: Manifest) -> Manifest:
        """Return the manifest with its beginning expressed as it was before."""
        before = self._survey.manifest
        if before is not None and before.oldest_offset == manifest.oldest_offset:
            said = dataclasses.replace(
                manifest,
                initial_offset=before.initial_offset,
                initial_seq_no=before.initial_seq_no,
            )
            with contextlib.suppress(CorruptionError):
                said.scrub()
                return said
        return manifest

    def _emptied(self, before: Manifest) -> Manifest:
        """Return the manifest of a log that lost all its records, and continues where it ended.

        Each offset that it names may be damaged: it continues behind the greatest.
        """
        if before.next_seq_no > layout.MAX_U64:
            raise CorruptionError("no number is left for another fragment", path=layout.MANIFEST)
        edges = [edge for one in self._evidence.named for edge in (one.start, one.limit)]
        return dataclasses.replace(
            before,
            collected=before.setsum,
            snapshots=(),
            fragments=(),
            initial_offset=max(layout.FIRST_OFFSET, before.next_offset, *edges),
            initial_seq_no=before.next_seq_no,
            writer=self._named_writer(()),
        )

    def _named_writer(self, run: Sequence[Fragment]) -> str:
        """Return the writer for the manifest.

        If the damaged one does not name it, its fragments do. Then a directory that ships there has to claim
        the prefix again, since a newer one may have claimed it and put nothing yet.
        """
        before = self._survey.manifest
        writer = self._writer
        if writer is not None:
            writer = writer_after_rebuild(writer, self._survey.closings)
        if before is not None:
            name = rebuilt_writer(before.writer)
            is_sealed = before.is_sealed and not before.is_rebuilding
            return seal_writer(writer or name) if is_sealed else writer or name
        if writer is None:
            writer = writer_after_rebuild(self._made_by(run), self._survey.closings)
        is_sealed = any(seen.is_blocker for seen in _behind(self._survey, run[-1].seq_no))
        return seal_writer(writer) if is_sealed else writer

    def _made_by(self, run: Sequence[Fragment]) -> str:
        maker = self._run[-1].maker or ""
        claim = Claim.parse(maker)
        if claim is None:
            return maker if is_direct_writer_name(maker) else _WRITER
        if not claim.epoch:
            return maker
        epochs = [
            one.epoch
            for one in (Claim.parse(seen.maker or "") for seen in self._survey.fragments.values())
            if one is not None and one.log_id == claim.log_id
        ]
        content = Setsum.total(entry.setsum for entry in run).digest()
        life = hashlib.sha256(content).hexdigest()[:_LIFE_CHARS]
        return Claim(claim.log_id, max(epochs) + 1, life).name

    # -- what is not kept --------------------------------------------------------------------

    def _bounds(self) -> range:
        """Return the offsets that the damaged log held, or should have held, as far as known."""
        before, evidence = self._survey.manifest, self._evidence
        if before is None:
            known = self._survey.head
            start = known if 0 < known < self._choices[0].start else self._choices[0].start
            return range(start, max(one.stop for one in self._choices))
        start = before.oldest_offset if evidence.head is None else evidence.head
        limit = before.next_offset if evidence.limit is None else evidence.limit
        return range(start, limit)

    def _lost(self, manifest: Manifest) -> tuple[range, ...]:
        held = self._bounds()
        found = (
            range(held.start, min(held.stop, manifest.oldest_offset)),
            range(max(held.start, manifest.next_offset), held.stop),
        )
        if not self._run:
            found = (range(held.start, manifest.oldest_offset), range(0))
        # In parts, where some of it is proven and given up, and some is gone.
        edges = sorted({one for stretch in self._choices for one in (stretch.start, stretch.stop)})
        return tuple(part for one in found if one for part in _cut(one, edges))

    def _reassigned(self, lost: Sequence[range], manifest: Manifest) -> range | None:
        behind = [one for one in lost if one.start >= manifest.next_offset]
        return range(behind[0].start, behind[-1].stop) if behind else None

    def _voids(self, manifest: Manifest) -> list[Void]:
        """Return what to put behind the end, so that no program takes an object there for the next fragment.

        A fragment behind the end of a log that keeps its end belongs to its writer.
        """
        before = self._survey.manifest
        end = manifest.next_seq_no, manifest.next_offset
        is_end_kept = (
            before is not None
            and end == (before.next_seq_no, before.next_offset)
            and not before.is_rebuilding
        )
        behind = [seen for seen in _behind(self._survey, end[0]) if not seen.is_void]
        voids = [
            Void(seen.key, seen.etag)
            for seen in behind
            if not seen.is_blocker and (seen.entry is None or not is_end_kept)
        ]
        if manifest.is_sealed:
            voids += self._blocker(end[0], voids)
        return voids

    def _blocker(self, seq_no: int, voids: Sequence[Void]) -> list[Void]:
        """Return the place of the seal's blocker, if nothing there will be replaced."""
        seen, key = self._survey.fragments.get(seq_no), layout.fragment_path(seq_no)
        if (seen is not None and seen.is_blocker) or any(void.key == key for void in voids):
            return []
        return [Void(key, None if seen is None else seen.etag)]

    def _set_aside(
        self,
        manifest: Manifest,
        put: Sequence[tuple[Snapshot, str | None]],
        voids: Sequence[Void],
        *,
        is_replaced: bool,
    ) -> list[tuple[str, str]]:
        """Return key and ETag of every object of which a copy is to be kept."""
        survey = self._survey
        found: dict[str, str] = {}
        if is_replaced and survey.manifest_etag is not None:
            found[layout.MANIFEST] = survey.manifest_etag
        if is_replaced and survey.garbage_etag is not None:
            found[layout.GARBAGE] = survey.garbage_etag
        found |= {one.path: etag for one, etag in put if etag is not None}
        kept = {seen.seq_no for seen in self._run}
        ours = self._held_numbers() - kept
        found |= {seen.key: seen.etag for seen in survey.fragments.values() if seen.seq_no in ours}
        found |= {void.key: void.etag for void in voids if void.etag is not None}
        return sorted(found.items())

    def _held_numbers(self) -> set[int]:
        """Return the numbers of all fragments that the damaged log held, or may have held."""
        survey = self._survey
        if survey.manifest is None:
            return {
                seen.seq_no
                for seen in survey.fragments.values()
                if not (seen.is_void or seen.is_blocker)
                and (seen.entry is None or seen.entry.limit > survey.head)
            }
        named = {one.seq_no for one in self._evidence.named if isinstance(one, Fragment)}
        return named | self._evidence.proven.keys()

    def _notes(self, manifest: Manifest) -> list[str]:
        survey, notes = self._survey, []
        if survey.manifest is None:
            if layout.FIRST_OFFSET < survey.head <= manifest.oldest_offset:
                notes.append(f"what came before offset {survey.head} was collected")
            if manifest.oldest_offset > max(survey.head, layout.FIRST_OFFSET):
                notes.append(
                    f"what came before offset {manifest.oldest_offset} was collected, or is lost; nothing "
                    "says which"
                )
            notes.append(
                "the manifest cannot be read: some of the last records may never have been acknowledged, and "
                "the sums count from here"
            )
            claim = Claim.parse(manifest.writer)
            if claim is not None and claim.epoch and self._writer is None:
                notes.append(
                    "the log directory that ships there has to be opened with CloudTier(take_over=True)"
                )
        if survey.manifest is None and survey.is_forked:
            notes.append("a fork may be under way here; if so, fork again instead")
        for cursor in survey.cursors:
            if cursor.position > manifest.next_offset:
                notes.append(
                    f"cursor {cursor.name} stands at {cursor.position}, behind the new end"
                )
            elif cursor.position < manifest.oldest_offset:
                notes.append(
                    f"cursor {cursor.name} stands at {cursor.position}, before the new beginning"
                )
        return notes


def _behind(survey: StoreSurvey, seq_no: int) -> list[SeenFragment]:
    return [seen for number, seen in survey.fragments.items() if number >= seq_no]


def _cut(one: range, edges: Sequence[int]) -> list[range]:
    inner = [edge for edge in edges if one.start < edge < one.stop]
    return [range(*ends) for ends in pairwise([one.start, *inner, one.stop])]


def _name_of(survey: StoreSurvey, manifest: Manifest, voids: Sequence[Void]) -> str:
    """Return the name of a rebuild, the same for all that do the same to the same log."""
    note = Note(0, 0, "", (), tuple(voids)).serialise()
    state = hashlib.sha256(survey.manifest_data)
    state.update(manifest.serialise() + note)
    return state.hexdigest()[:16]
