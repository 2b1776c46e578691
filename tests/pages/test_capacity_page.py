"""A release's capacity on its page: what is proven of one replica, a plan for what was typed, and the measured envelope."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.core.access import Role
from registry.models import Release
from serving.models import Scale
from tests.core.test_capacity_plan import CAPACITY, COLD, LOAD
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_deployment, make_model, make_release, make_server, make_user
from tests.support.worlds.rollout_setup import production, report_for, serves

pytestmark = pytest.mark.django_db


@pytest.fixture
def release() -> Release:
    return make_release(make_model("sentiment"))


@pytest.fixture
def member(client: Client, release: Release) -> Client:
    client.force_login(make_user("mia", team=release.model.team))
    return client


def shown(member: Client, **typed: str) -> str:
    answer = member.get(reverse("release_capacity", args=["sentiment", 1]), typed)
    assert answer.status_code == 200
    return squeezed(answer.content.decode())


def proven(release: Release) -> None:
    gates = {"capacity": CAPACITY, "cold_start": COLD}
    report_for(release, gates=[{"gate": name, "verdict": "passed", "evidence": one} for name, one in gates.items()])


def test_what_was_never_measured_is_unknown_and_nothing_is_planned(member: Client) -> None:
    page = shown(member, peak_per_s="100")
    assert "Unknown: no report of this release proves a rate." in page
    assert "run its gates with capacity among them" in page
    assert "Replicas</dt>" not in page and "The measured envelope" not in page


def test_a_plan_stands_beside_what_was_typed(member: Client, release: Release) -> None:
    proven(release)
    page = shown(member, peak_per_s="100", growth_frac="0.5", mean_per_s="50", price="1.2")
    assert "50.3 requests a second" in page and "99 % within 60 ms" in page and "NVIDIA L4" in page
    assert "<dd>4, of which the load takes 3</dd>" in page  # 150 / 50.3
    assert "<dd>8, while another release comes up beside them</dd>" in page
    assert "<dt>Cost of an hour</dt><dd>4.80</dd>" in page
    assert 'name="growth_frac" value="0.5"' in page and 'name="spare" value="1"' in page
    assert "source: measured" in page and "value: 50.3" in page


def test_a_plan_is_taken_in_one_step_by_who_may_scale(member: Client, release: Release) -> None:
    proven(release)
    assert "Have 4 in" not in shown(member, peak_per_s="100", growth_frac="0.5")  # it runs nowhere
    serves(release)
    make_server(make_deployment(release, production(), state="ready"))
    page = shown(member, peak_per_s="100", growth_frac="0.5")
    assert "Have 4 in production" in page and "The plan for a peak of 100 requests/s." in page
    body = {"environment": "production", "replicas": "4", "version": "0", "reason": "The plan."}
    assert member.post(reverse("release_scale", args=["sentiment", 1]), body).status_code == 302
    assert Scale.objects.get().replicas == 4
    member.force_login(make_user("vi", team=release.model.team, role=Role.VIEWER))
    assert "Have 4 in" not in shown(member, peak_per_s="100", growth_frac="0.5")


def test_what_cannot_be_planned_is_named_and_what_was_not_given_is_unknown(member: Client, release: Release) -> None:
    proven(release)
    page = shown(member, peak_per_s="nan", burst_factor="<b>", price="-1")
    assert "Peak cannot be that." in page and "A burst cannot be that." in page
    assert "Price of a replica cannot be that." in page
    assert "Replicas</dt>" not in page and 'value="&lt;b&gt;"' in page
    assert "no price was given for NVIDIA L4" in shown(member, peak_per_s="100")


def test_a_load_gate_alone_says_that_there_may_be_more(member: Client, release: Release) -> None:
    report_for(release, gates=[{"gate": "load", "verdict": "passed", "evidence": LOAD}])
    page = shown(member)
    assert "it may hold more, for only the load gate ran" in page and "hardware that its node did not name" in page
