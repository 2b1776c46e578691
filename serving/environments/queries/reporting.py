"""Which servers are known to answer: the one rule that the overview, a model's page, the fleet and the event stream share.

A server counts as answering only while the agent of its node reports. A silent agent is no proof that its servers died: pages leave
them out of that count and name the agent. Nor is it one that a server gave no right answer lately, but no page shows that one as
healthy. The engine and the agents keep longer limits of their own before they change anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import (
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    FloatField,
    Func,
    Q,
    Value,
)
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce
from django.utils import timezone

from serving.environments.queries.inventory import nodes
from serving.models import Node, Server

#: An agent reports every 2.5 s (`serving.targets.agent.node_agent.BEAT_EVERY_S`). Pages call a node silent after two missed reports.
REPORTS_WITHIN: Final = timedelta(seconds=7)


def reports_since(now: datetime | None = None) -> datetime:
    """A node that was seen at this instant (UTC) or later reports."""
    return (now or timezone.now()) - REPORTS_WITHIN


def is_reporting(node: Node, now: datetime) -> bool:
    """Whether the agent of the node reports."""
    return node.seen_at is not None and node.seen_at >= reports_since(now)


def on_reporting(since: Any, prefix: str = "") -> Q:
    """Condition on nodes that report; `prefix` leads to the node's columns."""
    return Q(**{f"{prefix}seen_at__gte": since})


def silent_nodes() -> list[tuple[str, bool]]:
    """(node, whether it reports) of every node on the list. One query."""
    since = reports_since()
    rows = nodes().values_list("name", "seen_at")
    return [(name, seen is not None and seen >= since) for name, seen in rows]


#: For each millisecond of the model's threshold of slow requests. An agent leaves a server ten times the time of an inference between
#: two of its own (`serving.targets.core.health.PROBE_SHARE`), so a right answer of a slow model may be that old.
_RESTS = timedelta(milliseconds=10)


def is_proven(server: Server, objectives: Mapping[str, Any], now: datetime) -> bool:
    """Whether the server gave a right answer lately. One that was never asked, such as somebody else's, is not doubted."""
    threshold_ms = (objectives.get("slow") or {}).get("threshold_ms") or 0
    return server.probed_at is None or server.probed_at >= reports_since(now) - threshold_ms * _RESTS


def proven_since(since: Any, prefix: str, objectives: str) -> Q:
    """The same as a condition; `prefix` leads to the server's columns, and `objectives` to the model's. `since`: `reports_since`."""
    stated_ms = KeyTextTransform("threshold_ms", KeyTransform("slow", objectives))
    threshold_ms = Coalesce(Cast(stated_ms, FloatField()), 0.0)
    rests = Func(threshold_ms, template="%(expressions)s * interval '10 ms'", output_field=DurationField())
    oldest = ExpressionWrapper(Value(since, output_field=DateTimeField()) - rests, output_field=DateTimeField())
    return Q(**{f"{prefix}probed_at": None}) | Q(**{f"{prefix}probed_at__gte": oldest})
