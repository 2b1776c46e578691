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

from tests.page_world import PageWorld, addresses, page_world

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

MOST_QUERIES = 12
#: Pages that cannot do with twelve, and why.
OWN_BUDGETS = {
    # what would go is told by every table that keeps bytes or a release: one join over them all would hold them twice
    "settings_storage": 13,
    # all that a start would refuse or warn of, each asked where it lies: route, reports, rollouts, servers, nodes, people
    "release_rollout with a preset": 17,
}
MOST_FRAGMENT_BYTES = 8 * 1024


def asked_for_more(world: PageWorld) -> Iterator[tuple[str, str]]:
    """(name, address) of pages that cost more where their address asks for more, and of rollouts in other states."""
    slug, candidate = world.model.slug, world.rollout.candidate.number
    here = reverse("release_rollout", args=[slug, candidate])
    yield "release_rollout with a preset", f"{here}?preset=careful"
    against = reverse("release_diff", args=[slug, candidate])
    yield "release_diff against another", f"{against}?against={world.release.name}"
    yield "search for a model", f"{reverse('search')}?q={slug}"
    yield "search_fragment for a rollout", f"{reverse('search_fragment')}?q={world.rollout.pk}"
    yield "rollouts of a model", f"{reverse('rollouts')}?model={slug}&state=ended&since=2+h"
    yield "rollout_replay under a preset", f"{reverse('rollout_replay', args=[world.rollout.pk])}?preset=careful"
    for name, rollout in (("ended", world.ended), ("waiting", world.waiting)):
        yield f"rollout that is {name}", reverse("rollout", args=[rollout.pk])


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
    assert {name: queries for name, _, queries, _ in found if queries > OWN_BUDGETS.get(name, MOST_QUERIES)} == {}
    fragments = {name: size for name, _, _, size in found if name.endswith("_live")}
    assert {name: size for name, size in fragments.items() if size > MOST_FRAGMENT_BYTES} == {}
    assert len(found) > 30 and len(fragments) > 3
