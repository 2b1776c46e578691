"""What stands in the database twice and may not, after hosts were lost."""

from __future__ import annotations

from typing import Any

from django.db.models import Count

from ledger.models import Event
from rollouts.models import DecisionRecord
from serving.models import Deployment


def doubled() -> list[str]:
    """Decisions of one tick, replicas in one slot, ends of a rollout."""
    decisions: Any = DecisionRecord.objects.exclude(action="hold").values("rollout", "action", "code", "tick")
    found = [f"decision {one}" for one in decisions.annotate(n=Count("pk")).filter(n__gt=1)]
    ended: Any = Event.objects.filter(subject_type="rollout", to_state__in=["rolling_back", "rolled_back", "promoted"])
    ended = ended.exclude(from_state="stuck").values("to_state", "subject_id").annotate(n=Count("pk"))
    return found + slots_given_twice() + [f"event {one}" for one in ended.filter(n__gt=1)]


def slots_given_twice() -> list[str]:
    """Of the replicas that are to stay. One that is being replaced has given its slot away."""
    staying: Any = Deployment.objects.filter(is_wanted=True, drain_asked_at=None).exclude(state="gone")
    slots = staying.values("release", "environment", "slot").annotate(n=Count("pk"))
    return [f"replica {one}" for one in slots.filter(n__gt=1)]
