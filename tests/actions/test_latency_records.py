"""The engine keeps how fast both arms answered, and only the engine that leads writes it."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from rollouts.actions.latency_records import record_latency
from rollouts.core.latency import EDGES_US, NOTHING, OpenWindow
from rollouts.models import LatencyWindow
from tests.support.worlds.rollout_setup import with_stable
from tests.support.worlds.rollout_story import Story

pytestmark = pytest.mark.django_db


def test_a_story_leaves_the_latencies_of_both_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollouts.core.latency.SHORTEST_S", 0.0)
    monkeypatch.setattr("rollouts.core.latency.OF_AGE", 0.0)
    story = Story()
    story.gateway.set_arm(story.candidate.digest, latency_ms=400.0, spread=0.0)
    story.until("rolled_back")
    windows = list(LatencyWindow.objects.filter(rollout=story.rollout).order_by("pk"))
    assert windows and all(one.from_at <= one.at for one in windows)
    assert [first.at for first in windows[:-1]] == [then.from_at for then in windows[1:]]
    candidate = [sum(column) for column in zip(*(one.candidate for one in windows), strict=True)]
    stable = [sum(column) for column in zip(*(one.stable for one in windows), strict=True)]
    slow_class = next(index for index, edge in enumerate(EDGES_US) if edge > 400_000)
    assert sum(candidate) == candidate[slow_class] > 0
    assert sum(stable) > 0 and stable[slow_class] == 0


def test_only_who_leads_writes_and_nobody_changes_it() -> None:
    rollout, _ = with_stable()
    type(rollout).objects.filter(pk=rollout.pk).update(fence=9)
    window = OpenWindow(0.0, 5.0, (1, *NOTHING[1:]), NOTHING)
    assert record_latency({rollout.pk: window}, fence=8) == 0
    assert record_latency({rollout.pk: window}, fence=9) == 1
    with pytest.raises(IntegrityError), transaction.atomic():
        LatencyWindow.objects.update(candidate=[])
