"""Replicas and start times that envelopes declare."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from registry.models import Release
from registry.queries.releases import manifests_of


@dataclass(frozen=True)
class Declared:
    """`least` and `most` of an envelope's `lifecycle.replicas`, None if not declared.

    `start_s`: seconds until a server has started: the longest declared load and warm-up, else `lifecycle.load_timeout_s`, else 0.
    """

    least: int | None = None
    most: int | None = None
    start_s: float = 0.0


#: A sealed release never changes, and its manifest may be megabytes: each is read once.
_DECLARED: dict[UUID, Declared] = {}
_MOST_KNOWN = 10_000


def declared_replicas(releases: Iterable[UUID]) -> dict[UUID, Declared]:
    """The declarations of these releases. One query, if some are not known yet."""
    asked = set(releases)
    known = {key: _DECLARED[key] for key in asked if key in _DECLARED}
    unknown = asked - known.keys()
    found = {key: _declared(text) for key, text in manifests_of(unknown).items()} if unknown else {}
    if len(_DECLARED) + len(found) > _MOST_KNOWN:
        _DECLARED.clear()
    _DECLARED.update(found)
    return {key: Declared() for key in asked} | known | found


def learn_declared(release: Release) -> None:
    """Saves `declared_replicas` its query for a release that was read whole."""
    if release.manifest:
        _DECLARED.setdefault(release.pk, _declared(release.manifest))


def _declared(manifest: str) -> Declared:
    try:
        document = json.loads(manifest or "{}")
    except ValueError:  # its digest shows the change; other releases' reads must go on
        return Declared()
    envelope = document.get("envelope") or {}
    lifecycle = envelope.get("lifecycle") or {}
    replicas = lifecycle.get("replicas") or {}
    starts = [one.get("cold_start_s") or {} for one in envelope.get("performance") or []]
    start_s = max((float((one.get("load") or 0) + (one.get("warmup") or 0)) for one in starts), default=0.0)
    return Declared(replicas.get("min"), replicas.get("max"), start_s or float(lifecycle.get("load_timeout_s") or 0))
