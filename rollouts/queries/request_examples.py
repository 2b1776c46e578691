"""Which requests failed or were slow under a rollout: examples that its gateways told, with server, time and request id."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.utils import timezone

from rollouts.core.lifecycle import FINAL, WITHOUT_TRAFFIC
from rollouts.models import Rollout
from serving.models import RequestExample
from serving.traffic.queries.request_examples import examples_of

#: Of each arm.
MOST_SHOWN: Final = 10
#: What began before the end is told up to so much later.
_LATER: Final = timedelta(seconds=10)
_NO_ANSWER: Final = {
    "UF": "no connection",
    "UC": "connection broken",
    "UT": "timed out",
    "UR": "reset by the server",
    "UPE": "no HTTP",
}


def examples_by_arm(rollout: Rollout) -> list[dict[str, Any]]:
    """{"release", "role", "since", "requests"} of both arms, the candidate first; no row of an arm about which nothing was told.

    `requests`: `MOST_SHOWN` at most, in the order in which they began, the first of each kind and the latest. They are examples:
    gateways keep some, and their number says nothing. Instants are ISO 8601, `took_ms` milliseconds.
    One query, none before there was traffic.
    """
    if rollout.state in WITHOUT_TRAFFIC:
        return []
    ended = rollout.ended_at if rollout.state in FINAL else None
    end = ended + _LATER if ended else timezone.now() + _LATER
    rows = examples_of(rollout.environment_id, rollout.candidate_id, rollout.created_at, end)
    found = []
    for role, release in (("candidate", rollout.candidate), ("stable", rollout.stable)):
        mine = [row for row in rows if release is not None and row.release_id == release.pk]
        if release is not None and mine:
            shown = [_printed(row) for row in _chosen(mine)]
            found.append({"release": release.name, "role": role, "since": mine[0].at.isoformat(), "requests": shown})
    return found


def _chosen(rows: Sequence[RequestExample]) -> list[RequestExample]:
    """Of rows by time: half of each kind, and more where the other has fewer."""
    failed, slow = ([row for row in rows if row.kind == kind] for kind in ("failed", "slow"))
    half = MOST_SHOWN // 2
    some = [*_ends(failed, max(half, MOST_SHOWN - len(slow))), *_ends(slow, max(half, MOST_SHOWN - len(failed)))]
    return sorted(some, key=lambda row: (row.at, row.pk))


def _ends(rows: list[RequestExample], most: int) -> list[RequestExample]:
    """The first and the latest."""
    return rows if len(rows) <= most else [rows[0], *rows[len(rows) - most + 1 :]]


def _printed(row: RequestExample) -> dict[str, Any]:
    server = row.server
    return {
        "at": row.at.isoformat(), "request_id": row.request_id, "kind": row.kind, "what": _what(row),
        "took_ms": round(row.took_ms, 1), "tries": row.tries, "gateway": row.gateway, "address": row.address,
        "node": server.replica.node_id if server is not None else None, "server": server.pk if server is not None else None,
    }  # fmt: skip


def _what(row: RequestExample) -> str:
    if row.kind == "slow":
        return "slow" if row.tries == 1 else "late, tried again beside it"
    if not row.http_status or row.flags:
        return ", ".join(_NO_ANSWER.get(flag, flag) for flag in row.flags.split()) or "no answer"
    return f"HTTP {row.http_status}" if row.grpc_status is None else f"gRPC status {row.grpc_status}"
