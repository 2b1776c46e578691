"""Searches of a long log: each goes by an index that was made for it, for an administrator and for a team's member.

`SLUICEGATE_TEST_EVENTS=1000000 .venv/bin/python -m pytest -n 0 -s tests/actions/test_log_search_plans.py` prints how long each takes.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from accounts.core.access import Actor, Role
from audit.queries.event_search import Search, search_events
from ledger.models import Event
from tests.support.worlds.factories import make_actor, make_admin, make_model, make_team

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.timeout(1800)]
COUNT = int(os.environ.get("SLUICEGATE_TEST_EVENTS", "20000"))
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
#: One model in a thousand is the team's; one event in ten thousand is by ada.
_FILL = """
INSERT INTO ledger_event (seq, at, act_id, verb, subject_type, subject_id, actor, from_state, to_state, reason, facts, prev_hash, hash)
SELECT n, %s::timestamptz + n * interval '1 second', gen_random_uuid(),
       CASE WHEN n %% 5000 = 7 THEN 'key.rotated' ELSE 'rollout.held' END, 'rollout', (n / 40)::text,
       CASE WHEN n %% 10000 = 11 THEN 'ada' ELSE 'system:engine' END, '', '',
       CASE WHEN n %% 9000 = 13 THEN 'A spike at night.' ELSE 'Holding at 25 percent: ' || n || ' more samples.' END,
       jsonb_build_object('model', 'model-' || (n %% 1000), 'environment', CASE WHEN n %% 8000 = 5 THEN 'staging' ELSE 'production' END,
                          'candidate', 'r' || (n %% 50)), '', md5(n::text) || md5((n + 1)::text)
FROM generate_series(%s, %s) n
"""


@pytest.fixture
def long_log() -> None:
    for number in range(3):
        make_model(f"model-{number}", team=make_team("search"))
    with connection.cursor() as cursor:
        for first in range(1, COUNT + 1, 20_000):
            cursor.execute(_FILL, [BEGUN, first, min(first + 19_999, COUNT)])
        cursor.execute("ANALYZE ledger_event")


def _at(share: float) -> datetime:
    return BEGUN + timedelta(seconds=COUNT * share)


SEARCHES = {
    "nothing": Search(),
    "actor": Search(actor="ada"),
    "verb": Search(verb="key.rotated"),
    "verbs": Search(verb="key.*"),
    "subject": Search(subject_type="rollout", subject_id="17"),
    "model": Search(model="model-1"),
    "words": Search(words='"spike night"'),
    "free text": Search(words="ada"),
    "common word": Search(words="holding"),
    "number": Search(words="rollout 3"),
    "release": Search(words="r4"),
    "environment": Search(environment="staging"),
    "old": Search(since=_at(0.1), until=_at(0.11)),
    "nobody": Search(actor="nobody"),
}


@pytest.mark.usefixtures("long_log")
def test_every_search_of_a_long_log_goes_by_an_index() -> None:
    told = []
    for who, actor in (("administrator", make_admin()), ("member", make_actor(Role.MODEL_TEAM, team="search"))):
        for name, search in SEARCHES.items():
            took_ms, plan = _page(actor, search)
            told.append(f"{who:14} {name:12} {took_ms:8.1f} ms")
            assert "Seq Scan on ledger_event" not in plan, f"{who}, {name}:\n{plan}"
    print("\n".join(["", f"{COUNT} events, the first page:", *told]))  # noqa: T201  # asked for by -s


def _page(actor: Actor, search: Search) -> tuple[float, str]:
    begun = time.perf_counter()
    rows = search_events(actor, search).events.order_by("-seq")[:51]
    list(rows)
    return 1000 * (time.perf_counter() - begun), rows.explain()


@pytest.mark.usefixtures("long_log")
def test_the_database_reads_the_model_out_of_the_event() -> None:
    assert Event.objects.get(seq=1001).model == "model-1"
    assert Event.objects.filter(model="model-1").count() == COUNT // 1000
