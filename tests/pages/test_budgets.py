"""What a page may cost: twelve queries, however long its lists are, and eight kilobytes for a fragment that is fetched again."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.page_world import addresses, asked_for_more, page_world

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
