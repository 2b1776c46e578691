"""What wakes, and what keeps it from that: nodes that are lost or fail it, rollouts, and what does not concern it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from serving.actions.sleeping import put_to_sleep
from serving.models import Node
from serving.queries.sleep import unplaced
from tests.factories import make_node
from tests.sleep_setup import SYSTEM, Night, bring_up, let_go

pytestmark = pytest.mark.django_db


@pytest.fixture
def night() -> Night:
    made = Night()
    made.rule()
    return made


def unloaded(night: Night) -> None:
    """It sleeps, and its servers are to go; no agent has ended them yet."""
    night.idle()
    night.gateway.obey()
    night.later()
    assert night.state() == "asleep" and night.replicas() == []


def asleep(night: Night) -> None:
    """Its servers are gone."""
    unloaded(night)
    let_go()


# --- nodes that are lost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lost", [{"seen_at": timedelta(hours=5)}, {"seen_at": None}, {"revoked_at": timedelta()}], ids=str
)
def test_a_server_that_nobody_ends_on_a_lost_node_keeps_no_model_from_waking(
    night: Night, lost: dict[str, timedelta | None]
) -> None:
    make_node("other")
    unloaded(night)
    ago = {name: None if since is None else timezone.now() - since for name, since in lost.items()}
    Node.objects.filter(pk="local").update(**ago)
    Node.objects.filter(pk="other").update(cordoned_at=timezone.now())
    night.asked()
    night.later()
    assert night.state() == "waking" and night.replicas() == []
    assert "No node has room" in night.sleep().trouble and "local: nothing is heard of it" in night.sleep().trouble
    assert unplaced() == [(night.one.release, night.environment)]  # so that others make room for it
    Node.objects.filter(pk="other").update(cordoned_at=None)
    night.later()
    assert [one.node_id for one in night.replicas()] == ["other"] and night.sleep().trouble == ""
    bring_up()
    night.later()
    assert night.state() == "awake"


def test_a_server_that_its_agent_is_about_to_end_is_waited_for(night: Night) -> None:
    make_node("other")
    unloaded(night)
    night.asked()
    night.later()
    assert night.replicas() == [] and "being taken out" in night.sleep().trouble and unplaced() == []


# --- at once ----------------------------------------------------------------------------------------------------------


def test_who_puts_a_model_to_sleep_takes_its_route_before_the_log(night: Night) -> None:
    """Whoever has the log and wants the route may wait for one who has the route and wants the log (lock order: CONTRIBUTING.md)."""
    with CaptureQueriesContext(connection) as asked:
        put_to_sleep(actor=SYSTEM, model=night.model, environment=night.environment, reason="")
    done = [query["sql"] for query in asked]
    route = next(at for at, sql in enumerate(done) if sql.startswith('UPDATE "serving_route"'))
    log = next(at for at, sql in enumerate(done) if "pg_advisory_xact_lock" in sql)
    assert route < log
