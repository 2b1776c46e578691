"""What a page says stays true while time passes, agrees with itself, and is said to everybody once."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.core.access import Role
from accounts.models import User
from rollouts.core.timeline import EvidenceAt, Moment
from rollouts.models import Rollout, TrafficRecord
from rollouts.queries.timeline import to_go_ranges
from tests.pages.markup import squeezed
from tests.pages.test_access_of_pages import is_form
from tests.pages.test_every_page import addresses, made
from tests.support.worlds.factories import make_user
from tests.support.worlds.rollout_setup import promoted, put, with_stable
from tests.support.worlds.rollout_story import Story
from validators.models import GateRun
from web.urls import urlpatterns

pytestmark = pytest.mark.django_db


def manager() -> Client:
    client = Client()
    client.force_login(make_user(team="search", role=Role.RELEASE_MANAGER))
    return client


def shown(client: Client, name: str, *args: object, **asked: str) -> str:
    return squeezed(client.get(reverse(name, args=args), asked).content.decode())


def pages_about(client: Client, rollout: Rollout) -> dict[str, str]:
    """Every page and list that tells what became of the rollout."""
    slug = rollout.model.slug
    places = {"overview": (), "models": (), "rollouts": (), "model": (slug,), "rollout": (rollout.pk,)}
    return {name: shown(client, name, *args) for name, args in places.items()}


def test_no_page_offers_a_way_back_that_has_closed() -> None:
    rollout, stable = promoted(warm_s=600)
    client, back = manager(), f"Roll back to {stable.name}"
    offering = {name for name, page in pages_about(client, rollout).items() if back in page}
    assert offering == {"overview", "model", "rollout"}
    put(rollout, "promoted", undo_until=timezone.now())
    for name, page in pages_about(client, rollout).items():
        assert back not in page and "closes" not in page, name


def test_what_happened_is_told_as_past() -> None:
    """Another release may serve by the time that it is read."""
    story = Story()
    story.until("promoted")
    assert story.rollout.reason == f"All traffic went to {story.candidate.name}."


def test_the_numbers_of_a_decision_are_found_again_beside_those_that_came_after_it() -> None:
    story = Story()
    for _ in range(4):
        story.turn(30)
    story.gateway.set_arm(story.candidate.digest, latency_ms=400.0, spread=0.1)
    story.until("rolled_back", requests=30)
    client = Client()
    client.force_login(User.objects.get(pk=story.admin.user_id))
    page = shown(client, "rollout", story.rollout.pk)
    counted = re.search(r"Counted when it was decided</dt>\s*<dd>\s*slow \(over \d+ ms\): (\d+ of \d+)", page)
    assert counted is not None, page[page.index("Counted when") :][:200]
    assert f"{counted[1]} " in page.partition("<dl")[0], "the sentence of the rollback has other numbers"
    assert "answers that were under way came in after it" in page


def test_how_many_samples_are_missing_is_a_range_and_no_jumping_number() -> None:
    def moments(*asked: int | None, step: int = 1) -> list[Moment]:
        return [
            Moment(
                tick=tick, at=float(tick), ticks=1, state="shifting", step_index=step, weight=0.5, acknowledged=0.5, observed=0.5,
                attempts=9, failed=0, retried=0, stable_attempts=9, stable_failed=0, is_blind=False, action="hold",
                evidence={"errors": EvidenceAt(0.0, 0.0, 0.0, to_go=one)},
            )
            for tick, one in enumerate(asked)
        ]  # fmt: skip

    assert to_go_ranges(moments(24, 49, 11_110, None, 81, 24)) == {"errors": (24, 11_000)}
    assert to_go_ranges([*moments(11_110), *moments(50, 40, step=2)]) == {"errors": (40, 50)}  # of this stage alone
    assert to_go_ranges(moments(None)) == {} == to_go_ranges([])


def test_a_preview_says_over_how_long_its_rate_was_counted_and_takes_another() -> None:
    rollout, _ = with_stable()
    put(rollout, "cancelled")
    TrafficRecord.objects.create(
        environment=rollout.environment, model=rollout.model, at=timezone.now(), traffic={}, state={"rate_per_s": 0.183}
    )
    place = ("release_rollout", rollout.model.slug, rollout.candidate.number)
    client = manager()
    page = shown(client, *place, environment="production", policy="demo")
    assert re.search(r"Reckoned with 0\.2 requests/s \(gateways, an average over about [^)]+\)", page), page
    assert '<label for="rate">Expected requests/s, if not as measured</label>' in page
    page = shown(client, *place, environment="production", policy="demo", rate="8")
    assert "Reckoned with 8 requests/s (as typed)" in page and "an average over" not in page


def test_what_is_read_aloud_changes_with_the_state_and_not_with_each_tick() -> None:
    rollout, _ = with_stable()
    client = manager()

    def aloud() -> list[str]:
        live = client.get(reverse("rollout_live", args=[rollout.pk])).content.decode()
        found = re.findall(r'role="(?:status|alert)"[^>]*>(.*?)</(?:span|p|div)>', live, flags=re.DOTALL)
        assert found
        return found

    put(rollout, "shifting", reason="Holding at 25 %: 40 of 100 samples.")
    before = aloud()
    put(rollout, "shifting", reason="Holding at 25 %: 41 of 100 samples.", weight_bp=2600)
    assert aloud() == before
    put(rollout, "paused")
    assert aloud() != before


def test_every_progress_bar_has_a_name() -> None:
    """axe asks for it of `role=progressbar` alone."""
    bars = 0
    for file in Path(settings.BASE_DIR, "templates").rglob("*.html"):
        text = file.read_text()
        for bar in re.findall(r"<progress.*?</progress>", text, flags=re.DOTALL):
            bars += 1
            own = re.search(r'id="([^"]+)"', bar)
            assert 'aria-label="' in bar or (own and f'<label for="{own[1]}"' in text), (file.name, bar)
    assert bars >= 5


def test_every_page_that_follows_the_stream_loads_itself_anew_where_no_script_runs() -> None:
    world, client = made(), Client()
    GateRun.objects.create(
        release=world.release, environment=world.rollout.environment, policy={}, state="running", requested_by="test"
    )
    client.force_login(make_user("root", is_admin=True))
    followed = set()
    for address in addresses(replace(world, gate_run=GateRun.objects.latest("pk"))):
        page = client.get(address).content.decode()
        is_live = (
            "data-live=" in page.partition("<main")[2]
        )  # the links of the navigation follow the stream on every page
        assert is_live == ('<noscript><meta http-equiv="refresh"' in page), address
        followed |= {address} if is_live else set()
    assert len(followed) >= 8, followed


def test_the_address_of_every_form_can_be_opened() -> None:
    """As after a refusal, which leaves it in the address bar."""
    some = {"IntConverter": 1, "UUIDConverter": "00000000-0000-4000-8000-000000000000"}
    client, forms = manager(), 0
    for one in filter(is_form, urlpatterns):
        forms += 1
        named = {name: some.get(type(kind).__name__, "x") for name, kind in one.pattern.converters.items()}
        address = reverse(str(one.name), kwargs={**one.default_args, **named})
        answer = client.get(address)
        assert answer.status_code == 302 and answer["Location"] != address, address
    assert forms > 40
