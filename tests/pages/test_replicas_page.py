"""The forms of a release's replicas after a refusal: what was typed stands where it was typed, and nowhere else."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Role
from serving.api.replicas import ReplicasOut
from serving.environments.queries.reporting import REPORTS_WITHIN
from serving.models import Node, Replica, Server
from serving.targets.actions.replicas import continue_placing
from serving.targets.queries.replicas import replica_plans
from tests.actions.test_replicas import AGENT, scale
from tests.pages.clients import signed_in
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_node, make_user
from tests.support.worlds.rollout_setup import stable_server

pytestmark = pytest.mark.django_db


@pytest.fixture
def one() -> Replica:
    """On `local`, and answers; another on `b` comes up."""
    stable = stable_server()
    make_node("b")
    scale(stable, 2)
    continue_placing(actor=AGENT)
    return stable


def refused(client: Client, one: Replica, form: str, **typed: str) -> str:
    client.force_login(make_user("mia", team=one.release.model.team))
    answer = client.post(reverse(form, args=[one.release.model.slug, one.release.number]), typed)
    assert answer.status_code in (409, 412, 422)
    return squeezed(answer.content.decode())


def replacing(page: str, one: Replica) -> str:
    """What stands there of the replica's form."""
    (found,) = (part for part in page.split("<details")[1:] if f'name="replica" value="{one.pk}"' in part)
    return found.partition("</details>")[0]


def scaling(page: str) -> str:
    (found,) = (part for part in page.split("<form")[1:] if 'id="replicas-production-why"' in part)
    return found.partition("</form>")[0]


def test_a_refused_replacement_stands_open_as_it_was_typed(client: Client, one: Replica) -> None:
    page = refused(client, one, "release_replace", replica=str(one.pk), set_aside="on", reason="Its disk is old.")
    assert "(last_replica)" in page
    typed = replacing(page, one)
    assert typed.startswith(" open>") and 'name="set_aside" checked>' in typed and 'value="Its disk is old."' in typed
    other = replacing(page, Replica.objects.get(node="b"))
    assert other.startswith(">") and "checked" not in other
    assert page.count("Its disk is old.") == 1, "in no other form"


def test_a_box_that_was_not_ticked_stays_so(client: Client, one: Replica) -> None:
    typed = replacing(refused(client, one, "release_replace", replica=str(one.pk), reason="x" * 2001), one)
    assert typed.startswith(" open>") and "checked" not in typed and "x" * 2001 in typed


def test_a_refused_number_stands_in_its_own_form_with_its_reason(client: Client, one: Replica) -> None:
    page = refused(
        client, one, "release_scale", environment="production", replicas="7", version="0", reason="A fair is on."
    )
    assert 'value="7"' in scaling(page) and 'value="A fair is on."' in scaling(page)
    assert page.count("A fair is on.") == 1 and " open>" not in replacing(page, one)


def test_a_replica_on_a_silent_node_counts_as_lost() -> None:
    replica = stable_server()
    release = replica.release
    client = signed_in(make_user(team=release.model.team.slug, role=Role.RELEASE_MANAGER))
    address = reverse("release_replicas", args=[release.model.slug, release.number])
    assert "<strong>1 of 1</strong> answer" in squeezed(client.get(address).content.decode())
    Node.objects.update(seen_at=timezone.now() - REPORTS_WITHIN)
    page = squeezed(client.get(address).content.decode())
    assert "<strong>0 of 1</strong> answer" in page and "the agent of its node does not report" in page
    assert 'class="word ok"' not in page[page.index("Replicas in") : page.index("Which nodes it fits")]
    (told,) = [ReplicasOut(plan).data for plan in replica_plans(release=release)]  # as REST and the command line
    assert told["answering"] == 0 and told["replicas"][0]["is_silent"]


def test_no_word_is_green_beside_a_replica_that_gave_no_right_answer_lately() -> None:
    release = stable_server().release
    Server.objects.update(probed_at=timezone.now() - timedelta(minutes=1))
    client = signed_in(make_user(team=release.model.team.slug, role=Role.RELEASE_MANAGER))
    address = reverse("release_replicas", args=[release.model.slug, release.number])
    page = squeezed(client.get(address).content.decode())
    assert 'class="word ok"' not in page[page.index("Replicas in") : page.index("Which nodes it fits")]
