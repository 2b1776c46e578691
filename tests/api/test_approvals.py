"""The inbox over REST: the same rows as the page, by who asks."""

from __future__ import annotations

import pytest
from django.test import Client

from accounts.core.access import Actor, Role
from accounts.models import User
from tests.actions.test_inbox import code_release
from tests.support.worlds.factories import make_actor
from tests.support.worlds.rollout_setup import awaiting

pytestmark = pytest.mark.django_db


def rows(actor: Actor, **query: str) -> list[dict[str, object]]:
    client = Client()
    client.force_login(User.objects.get(pk=actor.user_id))
    found: list[dict[str, object]] = client.get("/api/v1/approvals", query).json()["results"]
    return found


def test_the_list_names_what_a_yes_takes_and_who_may_say_it() -> None:
    rollout, requester, manager = awaiting(approvals={"start": 2, "bake": 1})
    release = code_release()
    stage, waiver = rows(manager)
    assert (stage["kind"], stage["rollout"], stage["stage"], stage["needed"]) == ("approval", rollout.pk, "start", 2)
    assert stage["version"] == rollout.version and stage["manifest_digest"] == rollout.candidate.digest
    assert stage["may_decide"] and str(stage["url"]).endswith(f"/rollouts/{rollout.pk}")
    assert (waiver["kind"], waiver["kinds"], waiver["release"]) == ("waiver", ["code"], release.name)
    mine = rows(requester, mine="true")
    assert [row["kind"] for row in mine] == ["waiver"]  # asked for the rollout, so may not approve it
    assert "asked for this rollout" in str(next(row for row in rows(requester) if row["kind"] == "approval")["why_not"])
    assert rows(make_actor(Role.RELEASE_MANAGER, team="other")) == []
