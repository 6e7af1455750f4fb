"""What a cluster keeps in its key-value store: specs of logs, their leaders, and the members. Pure.

Under a prefix, ``walstore/`` by default:

    logs/NAME      a LogSpec: what an operator wants, and on which machines the copies are
    leaders/NAME   a Leader, with the lease of its session: the machine that leads the log
    members/ADDR   a Member, with the lease of its session: a machine that is there
    removed/NAME   the LogSpec of a log that was taken out: one that is made again has its copies
    synced/NAME    a Synced: what each copy had last, which a directory that is put back does not know

Each is JSON with ``version``. Unknown fields are kept out, so that a later version may add some.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from walstore.core.format.packed import MOST_OFFSET
from walstore.core.settings import Settings
from walstore.core.validation.arguments import as_count, as_mapping, as_text
from walstore.errors import CorruptionError, FormatVersionError, InvalidSettingsError

PREFIX: Final = "walstore/"
LOGS: Final = "logs/"
REMOVED: Final = "removed/"
LEADERS: Final = "leaders/"
MEMBERS: Final = "members/"
SYNCED: Final = "synced/"
MOST_COPIES: Final = 16
MOST_GENERATION: Final = MOST_OFFSET >> 1
"""Of a list of copies that an operator gives: lists that follow have higher ones."""
_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LABEL: Final = re.compile(r"[A-Za-z0-9_./-]{1,100}")
_WEB: Final = re.compile(r"https?://[^/\s?#@]{1,300}")
_TIER: Final = re.compile(r"[a-z][a-z0-9+]*://[^\s]*[^\s:/][^\s]*")
_MOST_LABELS: Final = 64
SETTING_NAMES: Final = frozenset(one.name for one in dataclasses.fields(Settings)) - {
    "durability",
    "sync",
}
"""Settings that a log may have of its own. What an append waits for is the program's choice."""


def check_log_name(name: object, hint: str = "") -> str:
    """Return the name of a log on a machine; TypeError or InvalidSettingsError if it is none."""
    found = as_text(name, "the name of a replicated log")
    if not _NAME.fullmatch(found):
        raise InvalidSettingsError(
            "the name of a replicated log has 1 to 100 letters, digits, '_', '-' and '.', and no '.' or '-' "
            f"at the beginning, unlike {found[:200]!r}{hint}"
        )
    return found


def check_web(address: object) -> str:
    """Return the address of an HTTP server, or an empty text; InvalidSettingsError if it is none."""
    found = as_text(address, "the address of an HTTP server")
    if found and not _WEB.fullmatch(found):
        raise InvalidSettingsError(
            f"the address of an HTTP server is one such as https://10.0.0.1:7421, not {found[:200]!r}"
        )
    return found


class LogSpec(NamedTuple):
    """What is wanted of one log."""

    replicas: int = 3
    """Copies in all, 1 to 16."""
    quorum: int | None = None
    """Copies that must have a record, more than half of ``replicas``; just more than half if None."""
    labels: Mapping[str, str] = {}
    """For selectors; of the operator's choice."""
    copies: tuple[str, ...] = ()
    """Addresses of the machines that have the copies; those that are missing are chosen, and those that are
    too many are given up, one at a time."""
    preferred: str = ""
    """Address of the machine that should lead it; empty for any."""
    generation: int = 1
    """Of the list of copies: each change has a higher one."""
    joined: Mapping[str, int] = {}
    """Of each copy the generation in which it came into the list; 0 for those that are missing."""
    tier: str = ""
    """URL of the store to which its leader ships it; empty for none."""
    settings: Mapping[str, Any] = {}
    """Fields of :class:`walstore.Settings` by name, where they differ from those of the machines."""
    suspended: bool = False
    """Whether nobody leads it, and no machine has its files open; its copies stay."""
    source: str = ""
    """URL of the store that every machine reads it from, written by another program; it has no copies and
    no leader then. Empty for a log of the cluster's own."""

    def check(self) -> LogSpec:
        """Return it; TypeError, ValueError or InvalidSettingsError (one, too) if it cannot be."""
        as_count(self.replicas, "replicas", high=MOST_COPIES)
        if self.quorum is not None:
            # Less than half of the copies could not be taken over safely while their list changes.
            as_count(self.quorum, "quorum", low=self.replicas // 2 + 1, high=self.replicas)
        as_count(self.generation, "generation", high=MOST_GENERATION)
        for number in as_mapping(self.joined, "joined must map addresses to numbers").values():
            as_count(number, "a generation of joined", low=0, high=MOST_GENERATION)
        copies = [as_text(one, "an address") for one in self.copies]
        is_list = type(self.copies) is tuple and all(copies)
        if not is_list or len(set(copies)) < len(copies) or len(copies) > MOST_COPIES:
            raise InvalidSettingsError(
                f"copies must be at most {MOST_COPIES} different addresses, not {copies}"
            )
        if self.preferred and self.preferred not in self.copies:
            raise InvalidSettingsError(f"{self.preferred} has no copy, so it cannot lead")
        as_text(self.preferred, "preferred")
        for label, value in as_mapping(self.labels, "labels must map names to text").items():
            label, value = as_text(label, "a label"), as_text(value, "the value of a label")
            if not _LABEL.fullmatch(label) or (value and not _LABEL.fullmatch(value)):
                raise InvalidSettingsError(
                    f"{label[:100]}={value[:100]} is no label: letters, digits and '_', '.', '/', '-'"
                )
        if len(self.labels) > _MOST_LABELS:
            raise InvalidSettingsError(f"a log has at most {_MOST_LABELS} labels")
        if as_text(self.tier, "tier") and not _TIER.fullmatch(self.tier):
            raise InvalidSettingsError(
                f"tier must be a URL such as s3://bucket/prefix or file:///directory, not {self.tier[:200]!r}"
            )
        if type(self.suspended) is not bool:
            raise TypeError(f"suspended must be true or false, not {self.suspended!r:.100}")
        self._check_source()
        self.over(Settings())
        return self

    def _check_source(self) -> None:
        if as_text(self.source, "source") and not _TIER.fullmatch(self.source):
            raise InvalidSettingsError(
                f"source must be a URL such as s3://bucket/prefix, not {self.source[:200]!r}"
            )
        if self.source and (self.copies or self.tier or self.settings or self.quorum is not None):
            raise InvalidSettingsError(
                "a log that is read from a source has no copies, and no quorum, tier or settings of its own"
            )

    def over(self, settings: Settings) -> Settings:
        """Return the settings of a machine with those of the log; TypeError or InvalidSettingsError."""
        found = as_mapping(self.settings, "settings must map names to values")
        changes = {as_text(name, "a setting"): value for name, value in found.items()}
        unknown = [name for name in changes if name not in SETTING_NAMES]
        if unknown:
            raise InvalidSettingsError(
                f"a log of a cluster has no setting {unknown[0][:100]!r}; there are "
                f"{', '.join(sorted(SETTING_NAMES))}"
            )
        return settings.replace(**changes) if changes else settings

    @property
    def needed(self) -> int:
        """Copies that must have a record, of those that there are."""
        return min(len(self.copies), max(self.quorum or 0, len(self.copies) // 2 + 1))

    def with_copies(self, copies: Sequence[str]) -> LogSpec:
        """Return it with another list of copies."""
        generation = self.generation + 1
        joined = {
            one: self.joined.get(one, 0) if one in self.copies else generation for one in copies
        }
        return self._replace(
            copies=tuple(copies),
            preferred=self.preferred if self.preferred in copies else "",
            generation=generation,
            joined=joined,
        )

    @property
    def new_of_two(self) -> str | None:
        """The one of two copies that came with this very list, beside one that did not; None if none did."""
        new = [one for one in self.copies if self.joined.get(one) == self.generation]
        return new[0] if (len(self.copies), len(new)) == (2, 1) else None

    def led_first_by(self, address: str) -> LogSpec:
        """Return it with another order of the same copies: the first one that is there leads."""
        others = [one for one in self.copies if one != address]
        return self._replace(copies=(address, *others))

    def encode(self) -> bytes:
        """Return it as JSON."""
        maps = {field: dict(getattr(self, field)) for field in ("labels", "joined", "settings")}
        return _encode({**self._asdict(), **maps})

    @classmethod
    def decode(cls, data: bytes, key: str) -> LogSpec:
        """Return what was encoded; CorruptionError, FormatVersionError."""
        match _decode(data, key):
            case {
                "replicas": int(replicas),
                "quorum": int() | None as quorum,
                "labels": dict(labels),
                "copies": list(copies),
                "preferred": str(preferred),
                "generation": int(generation),
                "joined": dict(joined),
                "tier": str(tier),
                "settings": dict(settings),
                **later,
            }:
                places = tuple(copies)
                found = cls(
                    replicas, quorum, labels, places, preferred, generation, joined, tier, settings
                )
                # Specs of earlier versions have no such fields.
                found = found._replace(
                    suspended=later.get("suspended", False), source=later.get("source", "")
                )
                return _checked(found, key)
        raise _no("spec", key)


class Leader(NamedTuple):
    """The machine that leads a log."""

    address: str
    """Where its clients reach it; empty for a program that serves nobody."""
    tag: str
    """Of this leadership; differs for each."""
    epoch: int = 0
    """Of the log; 0 while it takes over."""
    copies: tuple[str, ...] = ()
    """The other copies that it writes to."""
    present: tuple[str, ...] = ()
    """Those of them that have caught up."""
    missing: Mapping[str, str] = {}
    """Of the others, why; empty of a program that does not tell."""
    generation: int = 0
    """Of the list of copies that it leads with; 0 of a program that does not tell."""

    @classmethod
    def of(
        cls,
        address: str,
        epoch: int,
        copies: Sequence[str],
        troubles: Mapping[str, str | None],
        generation: int = 0,
    ) -> Leader:
        """Return what a leader says of its copies; ``troubles`` has None for those that are there."""
        present = tuple(one for one, why in troubles.items() if why is None)
        missing = {one: why for one, why in troubles.items() if why is not None}
        return cls(address, "", epoch, tuple(copies), present, missing, generation)

    def encode(self) -> bytes:
        """Return it as JSON."""
        return _encode(self._asdict())

    @classmethod
    def decode(cls, data: bytes, key: str) -> Leader:
        """Return what was encoded; CorruptionError, FormatVersionError."""
        match _decode(data, key):
            case {
                "address": str(address),
                "tag": str(tag),
                "epoch": int(epoch),
                "copies": list(copies),
                "present": list(present),
                **later,
            } if type(epoch) is int and epoch >= 0 and _are_texts([*copies, *present]):
                missing, generation = later.get("missing", {}), later.get("generation", 0)
                is_sound = isinstance(missing, dict) and _are_texts([*missing.values()])
                if is_sound and type(generation) is int and generation >= 0:
                    places = tuple(copies), tuple(present)
                    return cls(address, tag, epoch, *places, missing, generation)
        raise _no("leader", key)


class Synced(NamedTuple):
    """What the copies of a log had when its leader looked last."""

    log_id: str
    """Identity of the log, in hex: while it had records, no other log begins under its name."""
    epoch: int
    """Of the leader."""
    generation: int
    """Of its list of copies."""
    limits: Mapping[str, int]
    """By address of the copy: every offset below is on enough machines, and durable there. The address is
    empty for a leader that serves nobody."""

    def encode(self) -> bytes:
        """Return it as JSON."""
        return _encode({**self._asdict(), "limits": dict(self.limits)})

    @classmethod
    def decode(cls, data: bytes, key: str) -> Synced:
        """Return what was encoded; CorruptionError, FormatVersionError."""
        match _decode(data, key):
            case {
                "log_id": str(log_id),
                "epoch": int(epoch),
                "generation": int(generation),
                "limits": dict(limits),
            } if all(
                type(one) is int and one >= 0 for one in (epoch, generation, *limits.values())
            ):
                return cls(log_id, epoch, generation, limits)
        raise _no("marks", key)


class Member(NamedTuple):
    """A machine of the cluster."""

    address: str
    """Where others reach it."""
    tag: str
    """Of this start; differs for each."""
    zone: str = ""
    """What it fails together with: copies of a log are in different ones if that is possible."""
    web: str = ""
    """Where others reach its HTTP server, such as ``https://10.0.0.1:7421``; empty for nowhere."""
    home: str = ""
    """Its host and directory, for people; empty of an earlier version."""
    replaced: str = ""
    """The home of another machine that was there under its address, whose place it has taken; or empty."""

    def encode(self) -> bytes:
        """Return it as JSON."""
        return _encode(self._asdict())

    @classmethod
    def decode(cls, data: bytes, key: str) -> Member:
        """Return what was encoded; CorruptionError, FormatVersionError."""
        match _decode(data, key):
            case {
                "address": str(address),
                "tag": str(tag),
                "zone": str(zone),
                "web": str(web),
                **later,
            }:
                home, replaced = later.get("home", ""), later.get("replaced", "")
                if _are_texts([home, replaced]):
                    with contextlib.suppress(InvalidSettingsError):
                        return cls(address, tag, zone, check_web(web), home, replaced)
        raise _no("member", key)


def parse_selector(text: str) -> list[tuple[str, str | None, bool]]:
    """Parse ``env=prod,team,!old,zone!=a`` to (label, value or None for any, whether it must hold).

    All of them must hold. InvalidSettingsError.
    """
    found: list[tuple[str, str | None, bool]] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        holds = not part.startswith("!")
        label, sign, value = part.removeprefix("!").partition("=")
        if sign and holds and label.endswith("!"):
            label, holds = label.removesuffix("!"), False
        if not _LABEL.fullmatch(label) or (value and not _LABEL.fullmatch(value)):
            raise InvalidSettingsError(
                f"{part!r} is no selector: give label, label=value, !label or label!=value"
            )
        found.append((label, value if sign else None, holds))
    return found


def is_selected(
    labels: Mapping[str, str], selector: Sequence[tuple[str, str | None, bool]]
) -> bool:
    """Return whether labels are what a selector asks for."""
    return all(
        (label in labels and (value is None or labels[label] == value)) is holds
        for label, value, holds in selector
    )


def _checked(spec: LogSpec, key: str) -> LogSpec:
    try:
        spec.check()
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"a spec that cannot be: {error}", path=key) from error
    return spec


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": _VERSION, **fields}).encode()


def _decode(data: bytes, key: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    version = found.get("version") if isinstance(found, dict) else None
    if type(version) is not int or version < 1:
        raise _no("document", key)
    assert isinstance(found, dict)
    if version != _VERSION:
        raise FormatVersionError(
            "the cluster is used by a newer version",
            path=key,
            found=version,
            supported=_VERSION,
        )
    return found


def _no(what: str, key: str) -> CorruptionError:
    return CorruptionError(f"no {what} is at the key {key!r}; somebody else wrote it", path=key)
