"""The CI template as it stands, and the same job by the command line: under tokens that end sooner, and lost in every step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accounts.actions import token_rules
from accounts.models import Token
from registry.models import Release, ServedModel
from rollouts import actions as rollouts
from rollouts.models import Rollout
from serving.models import Environment
from tests.support.rigs.ci_job_rig import JOBS, SYSTEM, Shop, shop, until
from tests.support.worlds.factories import make_admin, make_release
from tests.support.worlds.rollout_setup import production
from validators.models import GateRun

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.real("curl", "jq"),
    pytest.mark.timeout(600),
    pytest.mark.slow,
]
BOTH = pytest.mark.parametrize("how", JOBS)
#: A request of each step; the job is killed when the server has done it, before the answer is read.
STEPS = (
    ("POST", r"/releases$"),
    ("POST", r"/uploads$"),
    ("POST", r"/parts:sign$"),
    ("PUT", r"/upload-parts/"),
    ("POST", r":complete$"),
    ("GET", r"/releases/[^/]+$"),
    ("POST", r"/seal$"),
    ("POST", r"/gate-runs$"),
    ("GET", r"/gate-runs/\d+/wait$"),
    ("POST", r"/rollouts$"),
    ("GET", r"/rollouts/\d+/wait$"),
)


@pytest.fixture
def ci(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> Iterator[Shop]:
    with shop(monkeypatch, settings, tmp_path) as made:
        yield made


def one_of_each() -> Rollout:
    """The only rollout. Asserts that no step was done twice."""
    assert (Release.objects.filter(state="sealed").count(), GateRun.objects.count()) == (1, 1)
    return Rollout.objects.get()


@BOTH
def test_a_token_of_15_minutes_sees_a_rollout_of_35_minutes_end(ci: Shop, how: str) -> None:
    ci.crew.goes_by_age = True
    code, told = ci.job(how, **ci.gitlab())
    assert code == 0, told
    rollout, token = one_of_each(), Token.objects.get()
    assert rollout.ended_at is not None and token.expires_at is not None
    assert (rollout.ended_at - rollout.created_at).total_seconds() >= 35 * 60
    assert (rollout.ended_at - token.expires_at).total_seconds() > 15 * 60
    assert re.search(r"promoted", told.splitlines()[-1]), told


@BOTH
def test_a_job_that_is_lost_in_any_step_goes_on_when_it_is_run_again(ci: Shop, how: str) -> None:
    ci.crew.goal = "shifting"
    for step in STEPS:
        ci.server.fatal = step
        code, told = ci.job(how, **ci.github())
        assert (code, ci.server.fatal) == (-9, None), f"{step}: {told}"
    assert one_of_each().state in ("preparing", "shifting")
    ci.begin(how, **ci.github())
    until(lambda: ci.server.count(f"/rollouts/{Rollout.objects.get().pk}/wait") > 2, "nobody waits")
    ci.crew.goal = "promoted"
    assert ci.end()[0] == 0
    code, told = ci.job(how, **ci.github())  # lost after the promotion, before it could end
    assert code == 0, told
    assert one_of_each().state == "promoted"


@BOTH
@pytest.mark.parametrize(("platform", "count"), [("github", 0), ("gitlab", 2)])
def test_a_token_that_ends_in_the_middle_of_a_push_is_followed_by_another(
    ci: Shop, how: str, platform: str, count: int
) -> None:
    ci.server.on_request.append(("POST", r":complete$", lambda: ci.crew.clock.pass_(minutes=20)))
    code, told = ci.job(how, **(ci.gitlab(count) if count else ci.github()))
    assert code == 0, told
    assert one_of_each().state == "promoted" and Token.objects.count() == 2


@BOTH
def test_a_push_that_outlives_the_only_token_is_to_be_run_again(ci: Shop, how: str) -> None:
    ci.server.on_request.append(("POST", r":complete$", lambda: ci.crew.clock.pass_(minutes=20)))
    code, told = ci.job(how, **ci.gitlab())
    assert code == 2 and "has expired" in told and "to resume" in told, told
    code, told = ci.job(how, **ci.gitlab())
    assert code == 0 and one_of_each().state == "promoted", told


@BOTH
def test_who_may_look_no_longer_is_told_which_rollout_goes_on(ci: Shop, how: str) -> None:
    ci.crew.goal = "shifting"
    ci.begin(how, **ci.gitlab())
    until(lambda: Rollout.objects.filter(state="shifting").exists(), "no rollout")
    until(lambda: ci.server.count(f"/rollouts/{Rollout.objects.get().pk}/wait") > 1, "nobody waits")
    token_rules.change_token_rule(actor=SYSTEM, rule=ci.rule, expected_version=1, changes={"is_active": False})
    code, told = ci.end()
    assert code == 4, told
    assert f"It is not known how rollout {Rollout.objects.get().pk} ends; it goes on by itself" in told
    assert "was revoked" in told and ("rollout watch" in told or "/rollouts/" in told)


@BOTH
def test_a_release_that_was_taken_back_is_not_rolled_out_again(ci: Shop, how: str) -> None:
    ci.crew.goal = "rolled_back"
    code, told = ci.job(how, **ci.github())
    assert code == 1, told
    ci.crew.goal = "promoted"
    code, told = ci.job(how, **ci.github())
    rollout = one_of_each()
    assert (code, rollout.state) == (1, "rolled_back"), told
    assert f"Rollout {rollout.pk} of r1 in production was ended: It is rolled_back." in told and "--again" in told


def test_beside_another_releases_rollout_the_job_is_refused_with_the_next_step(ci: Shop) -> None:
    ci.crew.goal = "shifting"
    Environment.objects.filter(slug="production").update(needs_passed_report=False)
    other = rollouts.start_rollout(
        actor=make_admin(), candidate=make_release(ServedModel.objects.get()), environment=production()
    )
    Environment.objects.filter(slug="production").update(needs_passed_report=True)
    code, told = ci.job("curl", **ci.github())
    assert code == 3, told
    assert f"Rollout {other.pk} of r1 is shifting in production. Let it end, or abort it first." in told
    assert Rollout.objects.count() == 1
