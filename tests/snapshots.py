"""Snapshots for tests, by flat names: each of them is in one group of `Snapshot` only."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from rollouts.core.snapshot import Desired, Identity, Observed, People, Snapshot, StageEvidence

GROUPS: dict[str, Any] = {
    "identity": Identity,
    "desired": Desired,
    "observed": Observed,
    "evidence": StageEvidence,
    "people": People,
}
_GROUP_OF = {field.name: group for group, kind in GROUPS.items() for field in fields(kind)}


def make_snapshot(**values: Any) -> Snapshot:
    """A snapshot with these values; what is not named is as its group has it by default."""
    policy = values.pop("policy")
    grouped = _grouped(values)
    return Snapshot(policy, **{group: kind(**grouped.get(group, {})) for group, kind in GROUPS.items()})


def changed(snapshot: Snapshot, **values: Any) -> Snapshot:
    """The same snapshot with other values."""
    policy = values.pop("policy", snapshot.policy)
    groups = {group: replace(getattr(snapshot, group), **some) for group, some in _grouped(values).items()}
    return replace(snapshot, policy=policy, **groups)


def _grouped(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        grouped.setdefault(_GROUP_OF[name], {})[name] = value
    return grouped
