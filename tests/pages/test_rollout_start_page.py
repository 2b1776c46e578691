"""The page that starts a rollout: an address to share, a policy in words, plots, and one confirmation that repeats what will happen."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.urls import reverse

from registry.models import Release
from rollouts.models import Rollout
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_model, make_release, make_user
from tests.support.worlds.page_world import copies
from tests.support.worlds.rollout_setup import OBJECTIVES, production, put, serves, started
from web.pages.policy_form import from_fields

pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate() -> Release:
    """r2 of sentiment, beside r1, which serves production."""
    production()
    stable = make_release(make_model("sentiment", objectives=OBJECTIVES))
    serves(stable)
    return make_release(stable.model)


def page(candidate: Release, status: int = 200, **asked: str) -> str:
    client = Client()
    client.force_login(make_user(team="search"))
    address = reverse("release_rollout", args=[candidate.model.slug, candidate.number])
    answer = client.get(f"{address}?{urlencode(asked)}")
    assert answer.status_code == status and not Rollout.objects.filter(state="requested").exists()
    return squeezed(answer.content.decode())


def test_a_preview_has_an_address_and_creates_nothing(candidate: Release) -> None:
    shown = page(candidate, environment="production", policy="careful", rate="20", reason="A fix.")
    assert "Reckoned with 20 requests/s" in shown and "(as typed)" in shown
    assert "The steps over expected time" in shown and "Attempts that fail" in shown
    assert 'value="careful" selected' in shown and 'value="A fix."' in shown and 'value="20"' in shown
    assert "address of this preview can be shared" in shown and not Rollout.objects.exists()
    # one confirmation, which repeats what will happen and carries what was previewed
    assert "r2 takes traffic from r1: 1 % → 5 % → 10 % → 25 % → 50 % → 95 %" in shown
    assert '<input type="hidden" name="policy" value="careful">' in shown
    assert page(candidate, preset="careful", rate="20").count("1 % → 5 %") == 1


def test_without_a_question_it_only_asks(candidate: Release) -> None:
    shown = page(candidate)
    assert (
        "creates nothing" in shown
        and "The steps over expected time" not in shown
        and "Request the rollout" not in shown
    )


def test_a_policy_in_words_becomes_the_json(candidate: Release) -> None:
    asked = {
        "environment": "production", "policy": "fields", "base": "fast", "weights": "2, 20 → 60", "min_samples": "70",
        "approvals_start": "1", "rate": "50",
    }  # fmt: skip
    shown = page(candidate, **asked)
    assert "2 % → 20 % → 60 % → 95 %" in shown and "approvals: 1 before start" in shown
    assert "&quot;weight_pct&quot;: 20" in shown and 'value="2, 20 → 60"' in shown
    assert from_fields(asked)["steps"][2] == {"weight_pct": 60.0, "min_s": 60, "min_samples": 70, "deadline_s": 900}
    assert from_fields({"base": "careful"}) == {"preset": "careful"}


def test_a_policy_by_its_digest(candidate: Release) -> None:
    before = put(started(candidate=candidate), "cancelled")
    shown = page(candidate, environment="production", policy="digest", digest=before.policy_digest)
    assert before.policy_digest[7:15] in shown and "What would happen" in shown
    other = make_release(make_model("other", objectives=OBJECTIVES))
    assert "no_such_policy" in page(other, 422, environment="production", policy="digest", digest=before.policy_digest)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"rate": "-4"}, "rate_invalid"), ({"rate": "1e9"}, "rate_invalid"), ({"rate": "NaN"}, "rate_invalid"),
        ({"policy": "json", "policy_json": "{"}, "policy_not_json"),
        ({"policy": "json", "policy_json": "[" * 4000}, "policy_not_json"),
        ({"policy": "fields", "weights": "<b>"}, "policy_field"), ({"policy": "fields", "base": "x\x00"}, "policy_field"),
        ({"policy": "fields", "weights": "50, 20"}, "rollout_policy_invalid"),
        ({"policy": "fields", "min_s": "9" * 40}, "policy_field"),
        ({"policy": "digest", "digest": "sha256:' OR 1=1"}, "no_such_policy"),
        ({"policy": "json", "policy_json": json.dumps({"preset": "fast", "guards": [{"x": "y" * 17_000}]})}, "policy_too_long"),
        ({"environment": "nowhere"}, "no_such_environment"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_with_what_was_typed(candidate: Release, asked: dict[str, str], code: str) -> None:
    shown = page(candidate, 422, **{"environment": "production", **asked})
    assert f"({code})" in shown and "<b>" not in shown.split("</header>")[1]
    for name in {"rate", "weights"} & set(asked):
        assert f'name="{name}"' in shown and "value=" in shown


def test_a_release_that_was_rolled_back_here_says_so_where_one_confirms(candidate: Release) -> None:
    put(started(candidate=candidate), "rolled_back", stable=Release.objects.get(number=1), reason="Errors are worse.")
    shown = page(candidate, environment="production", policy="fast")
    assert shown.count("rolled r2 back in production") == 2 and "rolled_back_before" in shown


@pytest.mark.parametrize(
    ("times", "said"), [(2, "It was rolled back 3 times in all."), (25, "It was rolled back 20 times or more.")]
)
def test_of_many_times_it_says_how_many_up_to_a_bound(candidate: Release, times: int, said: str) -> None:
    last = put(
        started(candidate=candidate), "rolled_back", stable=Release.objects.get(number=1), reason="Errors are worse."
    )
    newest = copies(last, times, lambda _: {})[-1]
    shown = page(candidate, environment="production", policy="fast")
    assert said in shown and f"Rollout {newest.pk} rolled r2 back" in shown


def test_a_preview_asks_what_a_start_asks_and_no_more(
    candidate: Release, django_assert_max_num_queries: object
) -> None:
    client = Client()
    client.force_login(make_user(team="search"))
    address = reverse("release_rollout", args=[candidate.model.slug, candidate.number])
    with django_assert_max_num_queries(26):  # type: ignore[operator]
        assert client.get(f"{address}?environment=production&policy=careful&rate=8").status_code == 200
