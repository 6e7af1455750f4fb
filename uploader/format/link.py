"""Link: one manifest of a chain, and how the next one is made from it. Pure.

A link is a manifest that also names its own slot, the link it follows and the next slot. Owns
that document, the rule by which one link follows another, and the rule that assigns slots.

Slots (docs/chain.md has the proof)
  L1  A link follows another if it is in the slot that the other names as next, and names the other (slot,
      author, setsum) as the one before it. Nothing else decides what belongs to the chain.
  L2  An author's links are in neighbouring slots. An author that continues after another one leaves out the
      slots in which that one may have put, or put later, what is not linked: ``alpha`` of them, with its own.
  L3  So there is one link that whatever is ever put in a slot can follow, and no slot is used twice.

Inline fragments
  L4  A link may hold the content of fragments that it names, so that one put makes them durable. Until
      its author, or a later one, knows that a fragment's own object is in the store, every link behind it
      says in which slot the content is.
"""

from __future__ import annotations

import binascii
import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from uploader.format.document import Fields, check_u64, read_document, serialise
from uploader.format.layout import ANCHOR, MAX_U64, FragmentName, manifest_key
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from walstore.errors import CorruptionError

VERSION: Final = 1
INLINE_VERSION: Final = 2
"""Of a link with inline fragments; one without any has version 1, which older programs read."""
MOST_ALPHA: Final = 32
"""Manifests that an author may have in flight at once."""
KEPT_SECONDS: Final = 3600.0
"""How long a takeover is kept, so that an overtaken author finds its slot taken."""
MOST_RANGES: Final = 64
"""Ranges of kept slots that a link lists; neighbours are joined to stay below."""
MOST_INLINE: Final = 256
"""Inline fragments that a link lists."""

_LAST_SLOT: Final = MAX_U64 >> 1
"""No log lives long enough to come here. A slot above is a forgery, which would leave no room behind it."""


@dataclass(frozen=True, slots=True)
class PreviousLink:
    """What a link says of the one before it."""

    slot: int
    author: str
    setsum: Setsum

    def to_json(self) -> dict[str, object]:
        """Return it as the document holds it."""
        return {"slot": self.slot, "author": self.author, "setsum": self.setsum.hexdigest()}


@dataclass(frozen=True, slots=True)
class Kept:
    """Slots ``[first, last]`` that hold takeovers, and must not be deleted yet."""

    first: int
    last: int
    seen_us: int
    """When an author that continued behind the last of them had seen it, in microseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class InlineFragment:
    """A fragment whose own object may not be in the store yet."""

    path: str
    """Key of its object."""
    slot: int
    """The link that holds its content."""


def encode_content(data: bytes) -> bytes:
    """Return a fragment's bytes as a link holds them: base64."""
    return binascii.b2a_base64(data, newline=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One manifest of a chain. Immutable, like its object."""

    manifest: Manifest
    """The whole state of the log, as in the other layout."""
    slot: int
    """Its own slot."""
    next: int
    """The slot of the one link that may follow."""
    prev: PreviousLink | None
    """The link that it follows; None for one that begins a chain."""
    base: int
    """Slot of the newest link that was known to be durable when this one was made; its own if it begins a
    chain. Recovery starts there."""
    author: str
    """Unique for one life of one writer, up to its first trouble."""
    alpha: int
    """Manifests that its author may have under way at once, 1 to 32."""
    kept: tuple[Kept, ...] = ()
    """Older slots that must not be deleted yet, in order."""
    inline: tuple[InlineFragment, ...] = ()
    """Fragments that it names, or snapshots that it names do, and whose objects may not be in the store."""
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False, hash=False)
    """Of those that it holds itself: by key, as :func:`encode_content` returns it."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range; ValueError. TypeError for what is no whole number."""
        check_u64(slot=self.slot, next=self.next, base=self.base, alpha=self.alpha)
        if not 1 <= self.alpha <= MOST_ALPHA:
            raise ValueError(f"alpha must be 1 to {MOST_ALPHA}, not {self.alpha}")

    @classmethod
    def root(cls, manifest: Manifest, *, author: str, alpha: int, slot: int = ANCHOR) -> Link:
        """Return a link that begins a chain."""
        return cls(
            manifest=manifest,
            slot=slot,
            next=slot + 1,
            prev=None,
            base=slot,
            author=author,
            alpha=alpha,
        )

    def successor(
        self,
        manifest: Manifest,
        *,
        author: str,
        alpha: int,
        base: int,
        now_us: int,
        inline: tuple[InlineFragment, ...] = (),
        contents: Mapping[str, bytes] | None = None,
    ) -> Link:
        """Return the link that follows this one.

        Args:
            manifest: What it holds.
            author: Who makes it. Unless that is this link's author too, this link must be durable.
            alpha: The author's, always the same.
            base: Slot of the newest link known to be durable.
            now_us: Wall-clock microseconds since 1970 UTC.
            inline: Those of this link, as far as their objects may not be in the store.
            contents: Of fragments that only it will hold.
        """
        held = {} if contents is None else contents
        is_takeover = author != self.author
        return Link(
            manifest=manifest,
            slot=self.next,
            next=self.next + (self.alpha if is_takeover else 1),
            prev=self.place,
            base=base,
            author=author,
            alpha=alpha,
            kept=self._kept(now_us, expire=is_takeover),
            inline=inline + tuple(InlineFragment(path, self.next) for path in held),
            contents=held,
        )

    @property
    def key(self) -> str:
        """Its object's key."""
        return manifest_key(self.slot)

    @property
    def place(self) -> PreviousLink:
        """What the next link says of this one."""
        return PreviousLink(self.slot, self.author, self.manifest.setsum)

    @property
    def is_takeover(self) -> bool:
        """Whether another author made the link before it."""
        return self.prev is not None and self.prev.author != self.author

    def follows(self, link: Link) -> bool:
        """Return whether it belongs right behind ``link``."""
        return self.slot == link.next and self.prev == link.place

    def is_kept(self, slot: int) -> bool:
        """Return whether a slot holds what must not be deleted yet, or never."""
        return (
            slot == ANCHOR
            or any(kept.first <= slot <= kept.last for kept in self.kept)
            or any(found.slot == slot for found in self.inline)
        )

    def content(self, path: str) -> bytes | None:
        """Return the bytes of a fragment that it holds; None if it holds none of that key.

        CorruptionError if they cannot be decoded.
        """
        held = self.contents.get(path)
        if held is None:
            return None
        try:
            return binascii.a2b_base64(held, strict_mode=True)
        except ValueError as error:
            raise CorruptionError(
                f"the content of {path} in a manifest is not base64", path=self.key
            ) from error

    def serialise(self) -> bytes:
        """Return its object: that of the manifest with one more field at the end."""
        chain = serialise(
            {
                "version": INLINE_VERSION if self.inline else VERSION,
                "slot": self.slot,
                "next": self.next,
                "prev": None if self.prev is None else self.prev.to_json(),
                "base": self.base,
                "author": self.author,
                "alpha": self.alpha,
                "kept": [[kept.first, kept.last, kept.seen_us] for kept in self.kept],
            }
        )
        return b'%s,"chain":%s%s}' % (self.manifest.serialise()[:-1], chain[:-1], self._inline())

    @classmethod
    def parse(cls, data: bytes, *, slot: int) -> Link:
        """Read the object in a slot.

        CorruptionError for a bad shape or one made for another slot, FormatVersionError for one of a newer
        kind. Checks no more; see :meth:`uploader.format.manifest.Manifest.scrub`.
        """
        path = manifest_key(slot)

        def build(document: Fields) -> Link:
            return cls._from_fields(document.object("chain"), Manifest.from_fields(document))

        link = read_document(data, build, path=path)
        if link.slot != slot or not link.base <= slot < link.next <= slot + 2 * MOST_ALPHA:
            raise CorruptionError(
                "a manifest is in a slot that it was not made for",
                path=path,
                expected=slot,
                found=f"slot {link.slot}, base {link.base}, next {link.next}",
            )
        return link

    @classmethod
    def _from_fields(cls, fields: Fields, manifest: Manifest) -> Link:
        has_inline = fields.raw("version") == INLINE_VERSION
        if not has_inline:
            fields.check_version(
                VERSION, "the chain of manifests is of a newer kind; update walstore"
            )
        inline, contents = _inline(fields) if has_inline else ((), {})
        return cls(
            manifest=manifest,
            slot=fields.number("slot", maximum=_LAST_SLOT),
            next=fields.number("next", maximum=_LAST_SLOT),
            prev=_place(fields.object("prev")) if fields.has("prev") else None,
            base=fields.number("base"),
            author=fields.text("author"),
            alpha=fields.number("alpha"),
            kept=_kept(fields),
            inline=inline,
            contents=contents,
        )

    def _inline(self) -> bytes:
        """Return the end of the field. By hand: base64 needs no escapes, and looking for some takes 5 ms."""
        if not self.inline:
            return b"}"
        slots = serialise({found.path: found.slot for found in self.inline})
        pieces = [b'"%s":"%s"' % (path.encode(), data) for path, data in self.contents.items()]
        return b',"inline":%s,"contents":{%s}}' % (slots, b",".join(pieces))

    def _kept(self, now_us: int, *, expire: bool) -> tuple[Kept, ...]:
        oldest_us = now_us - round(KEPT_SECONDS * 1e6)
        kept = [item for item in self.kept if not expire or item.seen_us > oldest_us]
        if self.is_takeover:
            kept.append(Kept(self.slot, self.slot, now_us))
        while len(kept) > MOST_RANGES:
            gaps = [after.first - before.last for before, after in itertools.pairwise(kept)]
            at = gaps.index(min(gaps))
            joined = dataclasses.replace(
                kept[at + 1],
                first=kept[at].first,
                seen_us=max(kept[at].seen_us, kept[at + 1].seen_us),
            )
            kept[at : at + 2] = [joined]
        return tuple(kept)


def _place(fields: Fields) -> PreviousLink:
    return PreviousLink(fields.number("slot"), fields.text("author"), fields.setsum("setsum"))


def _kept(fields: Fields) -> tuple[Kept, ...]:
    kept = tuple(Kept(*row) for row in fields.rows("kept", 3))
    if len(kept) > MOST_RANGES:
        raise CorruptionError(
            f"a manifest keeps more than {MOST_RANGES} ranges of slots",
            path=fields.path,
            expected=MOST_RANGES,
            found=len(kept),
        )
    return kept


def _inline(fields: Fields) -> tuple[tuple[InlineFragment, ...], Mapping[str, bytes]]:
    slots, own = fields.object("inline"), fields.number("slot")
    found = tuple(InlineFragment(path, slots.number(path, maximum=own)) for path in slots.names())
    contents = fields.text_map("contents")
    for item in found:
        FragmentName.parse(item.path)  # ValueError for anything but the key of a fragment
    if not 1 <= len(found) <= MOST_INLINE:
        raise ValueError(f"{len(found)} inline fragments")
    if {item.path for item in found if item.slot == own} != set(contents):
        raise ValueError("contents of other fragments than those in its slot")
    return found, {path: data.encode() for path, data in contents.items()}
