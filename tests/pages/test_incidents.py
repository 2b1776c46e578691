"""The pages of incidents."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from accounts.core.access import Role
from insights.models import Incident
from tests.pages.clients import signed_in
from tests.pages.markup import squeezed
from tests.support.worlds.alarm_setup import burning, paged
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import promoted

pytestmark = pytest.mark.django_db


def as_role(role: Role) -> Any:
    return signed_in(make_user(team="search", role=role))


def read(client: Any, name: str, *args: Any, **query: str) -> str:
    answer = client.get(reverse(name, args=args), query)
    assert answer.status_code == 200
    return squeezed(answer.content.decode())


def test_an_incident_is_noted_and_closed_on_its_page_and_kept_as_a_file() -> None:
    rollout, _ = promoted()
    alarm = burning(rollout.model)
    incident, client = paged(), as_role(Role.RELEASE_MANAGER)
    assert incident.title in read(client, "incidents")
    assert "alarm.opened" in read(client, "incident", incident.pk)
    for verb, version, reason in (("note", 1, "gpu-3 is hot."), ("close", 2, "A fan was broken.")):
        address = reverse(f"incident_{verb}", args=[incident.pk])
        assert client.post(address, {"version": version, "reason": " "}).status_code == 422
        assert client.post(address, {"version": version, "reason": reason}).status_code == 302
        assert reason in read(client, "incident", incident.pk)
    answer = client.get(reverse("incident", args=[incident.pk]), {"format": "md"})
    told = answer.content.decode()
    assert answer["Content-Disposition"] == f'attachment; filename="incident-{incident.pk}.md"'
    assert (
        "**incident.noted** gpu-3 is hot." in told and "## Result\n\nA fan was broken." in told and alarm.reason in told
    )


def test_a_person_opens_one_and_gets_a_refused_form_back_with_what_was_typed() -> None:
    rollout, _ = promoted()
    client, form = as_role(Role.RELEASE_MANAGER), {"model": rollout.model.slug, "environment": "production"}
    assert "There was no incident yet." in read(client, "incidents")
    assert client.post(reverse("incident_open"), {**form, "title": " "}).status_code == 422
    opened = client.post(reverse("incident_open"), {**form, "title": "It is slow."})
    assert opened.headers["Location"] == reverse("incident", args=[Incident.objects.get().pk])
    again = client.post(reverse("incident_open"), {**form, "title": "Slow again."})
    assert again.status_code == 409 and 'value="Slow again."' in again.content.decode()
    viewer = as_role(Role.VIEWER)
    assert "Open an incident" not in read(viewer, "incidents") and "It is slow." in read(viewer, "incidents")
    assert client.get(reverse("incidents"), {"model": "another"}).status_code == 200
