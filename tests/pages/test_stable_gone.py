"""Pages and command line of a rollout whose stable release has no server: they state that there is no rollback target."""

from __future__ import annotations

import pytest
from django.urls import reverse

from accounts.core.access import Role
from ledger.models import Event
from rollouts.models import Rollout
from rollouts.queries.rollout_view import view_of
from serving.models import Server
from sluicegate.cli.rollout import status_lines
from tests.pages.test_rollout_pages import page_of, press, signed_in
from tests.support.worlds.factories import make_replica, make_server, make_user
from tests.support.worlds.rollout_setup import awaiting, put, with_stable

pytestmark = pytest.mark.django_db
NONE = "There is no rollback target: r1 has no serving server."


def without_stable(state: str = "preparing") -> Rollout:
    """A rollout of r2, which is warm, over r1, whose server ended."""
    rollout, stable = with_stable()
    make_server(make_replica(stable, rollout.environment, state="ready"), is_serving=False)
    make_server(make_replica(rollout.candidate, rollout.environment, state="ready", ordinal=0))
    return put(rollout, state, step_index=-1, weight_bp=0)


def test_the_page_states_it_and_a_release_manager_gives_all_traffic_there() -> None:
    rollout = without_stable()
    client = signed_in(make_user(team="search", role=Role.RELEASE_MANAGER))
    page = page_of(client, rollout)
    assert NONE in page and "Give it all traffic" in page
    assert "r2 takes all traffic, as a first release does, and is held to the absolute objectives only." in page
    after = press(client, rollout, "promote_now")
    assert "Done. The rollout is shifting now." in after
    assert "r2 took the place of r1, which has no server. r2 keeps its traffic" in after and "End the rollout" in after
    event = Event.objects.get(verb="rollout.took_over")
    assert event.facts["displaced"] == "r1" and event.reason.startswith("r1 has no serving server. By ")
    Server.objects.update(is_serving=True)
    again = page_of(client, rollout)
    assert "r1 answers again: a rollback goes to it." in again and "Roll back to r1" in again


def test_others_read_it_and_press_nothing() -> None:
    rollout = without_stable()
    page = page_of(signed_in(make_user(team="search", role=Role.MODEL_TEAM)), rollout)
    assert NONE in page and "Give it all traffic" not in page


def test_the_card_and_the_sheet_of_an_approval_state_it() -> None:
    rollout, *_ = awaiting()
    assert rollout.stable is not None
    make_server(make_replica(rollout.stable, rollout.environment, state="ready"), is_serving=False)
    client = signed_in(make_user(team="search", role=Role.RELEASE_MANAGER))
    page = client.get(reverse("approvals")).content.decode()
    assert page.count(NONE) == 2 and "r1, which has no server" in page.replace("\n", " ")
    Server.objects.update(is_serving=True)
    assert NONE not in client.get(reverse("approvals")).content.decode()


def test_the_preview_and_the_confirmation_state_it() -> None:
    rollout = without_stable("cancelled")
    client = signed_in(make_user(team="search", role=Role.RELEASE_MANAGER))
    address = reverse("release_preview", args=[rollout.model.slug, rollout.candidate.number])
    page = client.post(address, {"environment": "production", "policy": "standard"}).content.decode()
    assert "There is no rollback target: r1 has no serving server." in page
    assert "there is no rollback target. r2 is prepared" in page and "goes back to r1 by itself" not in page


def test_the_command_line_states_it() -> None:
    rollout = without_stable()
    assert any(
        NONE in line and f"`sluicegate rollout promote {rollout.pk}`" in line for line in status_lines(view_of(rollout))
    )
    Server.objects.update(is_serving=True)
    assert not any("rollback target" in line for line in status_lines(view_of(rollout)))


def test_the_stages_of_what_took_over_in_its_third_step_are_those_of_a_first_release() -> None:
    rollout = put(without_stable(), "shifting", step_index=2, weight_bp=5000)
    client = signed_in(make_user(team="search", role=Role.RELEASE_MANAGER))
    press(client, rollout, "promote_now")
    rollout.refresh_from_db()
    steps = view_of(rollout)["steps"]
    assert [(one["name"], one["weight_bp"], one["is_current"]) for one in steps] == [
        ("step 1", 10_000, True),
        ("bake", 10_000, False),
    ]
