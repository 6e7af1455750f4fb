"""What becomes of logs of a cluster: their specs are checked, all before one is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from walstore.cli.cluster_specs import Change, checked
from walstore.cli.errors import UsageError
from walstore.cluster.view import ClusterView, removed_spec
from walstore.errors import ContentionError, InvalidSettingsError, LogNotFoundError
from walstore.topology.documents import LOGS, LogSpec
from walstore.topology.key_values import KeyValues


def spec_fields(name: str, spec: LogSpec) -> dict[str, Any]:
    """Return what an operator wants of a log, as JSON."""
    return {
        "name": name,
        "replicas": spec.replicas,
        "quorum": spec.quorum,
        "labels": dict(spec.labels),
        "preferred": spec.preferred,
        "tier": spec.tier,
        "settings": dict(spec.settings),
        "suspended": spec.suspended,
        "source": spec.source,
    }


def spec_row(name: str, spec: LogSpec) -> dict[str, Any]:
    """Return the same with where its copies are."""
    return {
        **spec_fields(name, spec),
        "copies": list(spec.copies),
        "generation": spec.generation,
        "joined": dict(spec.joined),
    }


def log_row(view: ClusterView, name: str, spec: LogSpec | None = None) -> dict[str, Any]:
    """Return the same with who leads it; ``spec`` is that of a log that was taken out."""
    spec, leader = spec or view.specs[name], view.leaders.get(name)
    is_led = leader is not None and leader.epoch > 0
    return {
        **spec_row(name, spec),
        "leader": leader.address if leader is not None and is_led else None,
        "epoch": leader.epoch if leader is not None and is_led else None,
        "present": 1 + len(leader.present) if leader is not None and is_led else None,
        "missing": dict(leader.missing) if leader is not None and is_led else {},
    }


class Planned(NamedTuple):
    """A change of one spec that may be made."""

    before: LogSpec
    """What the cluster has, or had before the log was taken out."""
    new: LogSpec


async def plan_changes(
    keys: KeyValues, view: ClusterView, wanted: dict[str, Change], *, makes: bool = True
) -> dict[str, Planned]:
    """Return what becomes of each log: all are checked before one is changed."""
    planned: dict[str, Planned] = {}
    for name, change in wanted.items():
        old = view.specs.get(name)
        if old is None and not makes:
            raise LogNotFoundError(f"the cluster has no log {name!r}", location=name)
        before = old or await removed_spec(keys, name) or LogSpec()
        new = checked(change(before))
        await _check_tier(before, new)
        await _check_source(before, new)
        planned[name] = Planned(before, new)
    return planned


async def write_changes(
    keys: KeyValues, view: ClusterView, planned: Mapping[str, Planned]
) -> list[dict[str, Any]]:
    """Write the specs that change, and return the logs as they are then; ContentionError."""
    for name, (_, spec) in planned.items():
        if spec == view.specs.get(name):
            continue
        key = view.key(LOGS, name)
        swap = await keys.swap(key, spec.encode(), expected=view.revisions.get(key, 0))
        if not swap.happened:
            raise ContentionError(f"the log {name!r} was changed by somebody else; call again")
    await view.look()
    return [log_row(view, name) for name in planned if name in view.specs]


async def _check_tier(before: LogSpec, spec: LogSpec) -> None:
    """Refuse a tier that cannot be reached, or has a log already, and the change of one that is used."""
    if spec.tier == before.tier:
        return
    if before.tier and await _is_used(before.tier, may_be_wrong=True):
        raise UsageError(
            f"the log ships to {before.tier}, which may have records that no copy has any more; "
            "that cannot be changed"
        )
    if spec.tier and await _is_used(spec.tier):
        raise UsageError(f"there is a log at {spec.tier} already; give a prefix of its own")


async def _check_source(before: LogSpec, spec: LogSpec) -> None:
    """Refuse a source where there is no log."""
    if spec.source not in ("", before.source) and not await _is_used(spec.source):
        raise UsageError(f"there is no log at {spec.source}")


async def _is_used(url: str, *, may_be_wrong: bool = False) -> bool:
    """Return whether there is a log at a URL. Raises what the store raises, also for a URL that is none."""
    from uploader import CloudLog

    try:
        async with CloudLog.open(url):
            return True
    except LogNotFoundError:
        return False
    except InvalidSettingsError:
        if not may_be_wrong:
            raise
        return False
