"""What a page may cost: twelve queries, however long its lists are, and eight kilobytes for a fragment that is fetched again."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.core.access import Role
from serving.models import Node
from tests.support.worlds.factories import make_model, make_release, make_replica, make_server, make_user
from tests.support.worlds.page_world import addresses, asked_for_more, page_world
from tests.support.worlds.rollout_setup import OBJECTIVES, TOLD, production, report_for, serves

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

MOST_QUERIES = 12
MOST_FRAGMENT_BYTES = 8 * 1024


def costs(rows: int) -> Iterator[tuple[str, int, int, int]]:
    """(name, status, queries, gzipped bytes) of every page and fragment that answers to GET."""
    world = page_world(rows)
    client = Client(raise_request_exception=False)
    client.force_login(world.admin)
    for name, address in [*addresses(world), *asked_for_more(world)]:
        with CaptureQueriesContext(connection) as asked:
            answer: Any = client.get(address)
        if answer.status_code in {302, 405}:
            continue  # of forms: they lead to their page
        body = b"".join(answer.streaming_content) if answer.streaming else answer.content
        yield name, answer.status_code, len(asked), len(gzip.compress(body))


@pytest.mark.parametrize("rows", [1, 200])
def test_no_page_costs_more_than_its_budget(rows: int) -> None:
    found = list(costs(rows))
    assert {name for name, status, _, _ in found if status >= 500} == set()
    assert {name: queries for name, _, queries, _ in found if queries > MOST_QUERIES} == {}
    fragments = {name: size for name, _, _, size in found if name.endswith("_live")}
    assert {name: size for name, size in fragments.items() if size > MOST_FRAGMENT_BYTES} == {}
    assert len(found) > 30 and len(fragments) > 3


def test_a_preview_costs_no_more_where_there_is_everything_to_ask() -> None:
    """A report that may have expired, a node that has to keep others, people who may approve."""
    production(needs_approval=True)
    stable = make_release(make_model("sentiment", objectives=OBJECTIVES))
    serves(stable)
    make_server(make_replica(stable, production(), state="ready"))
    Node.objects.update(facts=TOLD)
    candidate = make_release(stable.model)
    report_for(candidate)
    client, address = Client(), reverse("release_rollout", args=["sentiment", candidate.number])
    client.force_login(make_user("root", is_admin=True))
    make_user("mara", role=Role.RELEASE_MANAGER, team="search")
    with CaptureQueriesContext(connection) as asked:
        page = client.get(address, {"preset": "standard"}).content.decode()
    assert "mara" in page and "will have one server" in page
    assert len(asked) <= MOST_QUERIES, "\n".join(one["sql"][:400] for one in asked)
