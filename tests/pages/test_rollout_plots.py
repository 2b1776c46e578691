"""The plots of a rollout's page, from a story that an engine lived through on a fake gateway."""

from __future__ import annotations

import gzip
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.models import User
from rollouts.models import Approval, LatencyWindow, Rollout
from rollouts.queries.timeline import MOST_RECOMPUTED, moments_of
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import with_stable
from tests.support.worlds.rollout_story import Story
from web.pages.rollout_log import after, log_of
from web.pages.rollout_plots import plots_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Story:
    """Fine at first, then slow, and rolled back for it."""
    monkeypatch.setattr("rollouts.core.latency.SHORTEST_S", 0.0)
    told = Story()
    for _ in range(4):
        told.turn(30)
    told.gateway.set_arm(told.candidate.digest, latency_ms=400.0, spread=0.1)
    told.until("rolled_back", requests=30)
    return told


def client_of(story: Story) -> Client:
    client = Client()
    client.force_login(User.objects.get(pk=story.admin.user_id))
    return client


def test_a_rollback_is_seen_in_every_plot(story: Story) -> None:
    plots = plots_of(story.rollout)
    loudest = plots.evidence[0]
    assert "slow requests" in loudest.title and "r2 is worse than r1: that evidence reached its bar" in loudest.caption
    assert (
        "first bad attempt" in loudest.svg
        and "decided; weight 0 after" in loudest.svg
        and "roll back at" in loudest.svg
    )
    assert len(loudest.rows) == len(moments_of(story.rollout))
    assert loudest.columns == ("since the rollout began", "worse than r1", "over the limit", "fine")
    assert (
        plots.traffic.columns[1:4] == ("desired", "acknowledged", "observed") and "0 % desired" in plots.traffic.caption
    )
    assert "r2: half under" in plots.cdf.caption and "r1: half under" in plots.cdf.caption


def test_evidence_is_recomputed_as_the_engine_had_it(story: Story) -> None:
    """A point for each tick; at the ends of blocks it is what the engine stored."""
    moments = {one.tick: one for one in moments_of(story.rollout)}
    compared = 0
    for block in story.rollout.observations.order_by("tick"):
        for name, stored in block.evidence.items():
            found = moments[block.tick].evidence.get(name)
            if found is not None and stored["candidate"]:
                assert found.worse == pytest.approx(stored["log_e_worse"], abs=0.01)
                assert found.fine == pytest.approx(stored["log_e_fine"], abs=0.01)
                compared += 1
    assert compared >= 4


def test_a_history_that_grows_costs_its_news_and_says_the_same(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = moments_of(story.rollout)
    assert moments_of(Rollout.objects.get(pk=story.rollout.pk)) == whole
    monkeypatch.setattr("rollouts.queries.timeline.MOST_RECOMPUTED", 3)
    coarse = moments_of(story.rollout)
    assert [one.tick for one in coarse] == [one.tick for one in whole] and {one.action for one in coarse} == {""}
    assert any(one.evidence for one in coarse) and MOST_RECOMPUTED > 100


def test_an_approval_is_marked(story: Story) -> None:
    assert "approved step 2" not in plots_of(story.rollout).traffic.svg
    Approval.objects.create(
        rollout=story.rollout, approver_id=story.admin.user_id, stage="step 2", step_index=0, expires_at=timezone.now(),
        manifest_digest="m", report_digest="r", policy_digest="p",
    )  # fmt: skip
    assert "approved step 2" in plots_of(story.rollout).traffic.svg


def test_the_page_shows_the_plots_and_their_numbers_without_a_script(story: Story) -> None:
    page = squeezed(client_of(story).get(reverse("rollout", args=[story.rollout.pk])).content.decode())
    for words in (
        "Evidence: slow requests (over 250 ms) as numbers",
        "Weight and attempts as numbers",
        "How fast both answer as numbers",
    ):
        assert words in page
    assert page.count('role="img"') >= 8 and 'style="' not in page
    assert "Counted when it was decided" in page and "Samples to go" not in page
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_fragments_are_small_and_outsiders_get_none(story: Story) -> None:
    client, pk = client_of(story), story.rollout.pk
    for name in ("rollout_live", "rollout_plots"):
        answer = client.get(reverse(name, args=[pk]))
        assert answer.status_code == 200 and len(gzip.compress(answer.content)) <= 8 * 1024
        outsider = Client()
        outsider.force_login(make_user(team="elsewhere"))
        assert outsider.get(reverse(name, args=[pk])).status_code == 404
    assert 'id="rollout-plots" hx-morph-skip></div>' in client.get(reverse("rollout_live", args=[pk])).content.decode()


def test_a_rollout_without_a_history_says_so() -> None:
    rollout, _ = with_stable()
    plots = plots_of(rollout)
    assert plots.traffic.is_empty and all(one.is_empty for one in plots.evidence) and not plots.has_latency
    assert "No tick of this rollout is stored yet." in plots.traffic.svg


def test_a_live_page_asks_few_queries_at_any_length(django_assert_max_num_queries: object) -> None:
    rollout, _ = with_stable()
    client, now = Client(), timezone.now()
    client.force_login(make_user(team="search"))
    LatencyWindow.objects.bulk_create(
        LatencyWindow(
            rollout=rollout, from_at=now + timedelta(seconds=i), at=now + timedelta(seconds=i + 1),
            candidate=[1] * 21, stable=[2] * 21,
        )
        for i in range(200)
    )  # fmt: skip
    address = reverse("rollout_plots", args=[rollout.pk])
    with django_assert_max_num_queries(12):  # type: ignore[operator]
        assert client.get(address).status_code == 200


def test_holds_are_folded_and_seconds_count_from_the_beginning() -> None:
    began = timezone.now()

    def row(action: str, s: float) -> dict[str, object]:
        at = (began + timedelta(seconds=s)).isoformat()
        return {"at": at, "action": action, "code": "", "reason": "So.", "actor": "engine"}

    log = log_of([row("hold", 40), row("hold", 30), row("advance", 20), row("hold", 10), row("start", 0)], began)
    assert [(one.is_folded, len(one.entries)) for one in log] == [(True, 2), (False, 1), (False, 1), (False, 1)]
    assert log[0].span == "+30.0 s to +40.0 s" and after(began + timedelta(hours=2), began) == "+2 h"
