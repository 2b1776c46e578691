"""Models under a gateway that nobody hears of: it may serve users, and no server is taken from under them."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import timedelta

import pytest

from serving.models import Gateway
from serving.targets.actions.sleeping import put_to_sleep
from serving.targets.core.sleep import LEAST_S
from serving.targets.queries.sleep import sleep_views
from serving.traffic.actions.gateways import remove_gateway
from serving.traffic.core.gateway_standing import GONE_AFTER_S
from tests.support.worlds.factories import make_actor
from tests.support.worlds.sleep_setup import SYSTEM, Night, add_gateway, night  # noqa: F401

pytestmark = pytest.mark.django_db


def cut_off(night: Night, seen_s_ago: float = 60.0) -> Gateway:
    """A gateway that neither the engine nor a control plane reaches; it goes on routing by what it last heard."""
    night.gateway.silent.add("apart")
    made = add_gateway(night, "apart")
    Gateway.objects.filter(pk=made.pk).update(seen_at=night.now - timedelta(seconds=seen_s_ago))
    return made


def test_under_a_gateway_that_is_cut_off_nothing_is_unloaded_until_it_is_removed(night: Night) -> None:
    cut_off(night)
    night.idle()
    for _ in range(3):
        night.later(2 * GONE_AFTER_S)
        (view,) = sleep_views(night.model)
        assert (night.state(), view.kept_awake) == ("awake", night.sleep().trouble)
        assert "is not known (apart)" in view.kept_awake
        assert "`sluicegate api POST /gateways/apart/remove --if-match '*'`" in view.kept_awake
    night.gateway.silent.clear()  # it is back, and counted meanwhile
    night.asked()
    night.later()
    night.later(LEAST_S - 4)
    assert night.state() == "awake"
    night.gateway.silent.add("apart")
    night.later(GONE_AFTER_S)
    assert night.state() == "awake"
    remove_gateway(actor=SYSTEM, gateway=Gateway.objects.get(name="apart"), reason="It burnt.")
    night.later()
    assert (night.state(), night.sleep().trouble) == ("asleep", "")
    night.gateway.obey()
    night.later()
    assert night.replicas() == []


def test_a_gateway_that_is_cut_off_as_a_model_falls_asleep_keeps_its_servers_until_it_is_removed(night: Night) -> None:
    apart = cut_off(night)
    night.gateway.silent.clear()
    night.idle()
    assert night.state() == "asleep"
    night.gateway.silent.add("apart")
    for _ in range(2):
        night.later(2 * GONE_AFTER_S)
        assert (
            night.replicas() and "`sluicegate api POST /gateways/apart/remove --if-match '*'`" in night.sleep().trouble
        )
    Gateway.objects.filter(pk=apart.pk).update(drained_at=night.now)
    night.gateway.obey()
    night.later()
    assert night.replicas() == []


def test_a_person_may_have_a_model_sleep_under_a_gateway_that_is_gone(night: Night) -> None:
    cut_off(night, GONE_AFTER_S + 1)
    night.later()
    actor = make_actor(team=night.model.team)
    put_to_sleep(actor=actor, model=night.model, environment=night.environment, reason="That site burnt.")
    night.gateway.obey()
    night.later()
    assert night.replicas() == [] and set(night.hosts.asked) == {"gateway-1"}


@pytest.mark.parametrize("is_drained", [True, False], ids=["drained", "never seen"])
def test_a_gateway_that_serves_nobody_keeps_nothing_awake(night: Night, is_drained: bool) -> None:
    one = cut_off(night)
    Gateway.objects.filter(pk=one.pk).update(**{"drained_at": night.now} if is_drained else {"seen_at": None})
    night.idle()
    assert night.state() == ("awake" if is_drained else "asleep")
    night.later(GONE_AFTER_S)
    assert night.state() == "asleep"
    night.gateway.obey()
    night.later()
    assert (night.replicas(), night.sleep().trouble) == ([], "")
