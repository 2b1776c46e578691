"""Requests that force a release starve no rollout for ever: the gateways refuse them until it ends."""

from __future__ import annotations

import pytest
from django.db.models import F

from ledger.models import Event
from rollouts import actions
from rollouts.models import Rollout
from rollouts.queries import view_of
from serving.models import Environment
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.worlds.rollout_story import Story

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("end", ["promoted", "rolled_back"])
def test_the_gateways_refuse_forced_requests_until_the_rollout_ends(end: str) -> None:
    story = Story()
    started = story.until("shifting")
    slot, generation = story.route().slot, Environment.objects.get().generation
    starved = {**started.engine_state, "refuses_forced": True}  # as readings without evidence of time leave it
    Rollout.objects.update(engine_state=starved, version=F("version") + 1)
    story.turn()
    route = story.route()
    assert route.refuses_forced and route.slot == slot and Environment.objects.get().generation > generation
    assert view_of(story.rollout)["users"]["refuses_forced"]
    assert Event.objects.filter(verb="route.set").order_by("-seq")[0].facts["refuses_forced"] is True
    if end == "rolled_back":
        rollout = story.rollout
        actions.roll_back(actor=story.admin, rollout=rollout, expected_version=rollout.version, reason="Enough.")
    done = story.until(end)
    assert not story.route().refuses_forced and not view_of(done)["users"]["refuses_forced"]
