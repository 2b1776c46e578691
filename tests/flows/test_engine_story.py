"""The engine's story on a real database and a fake gateway: traffic, evidence, decisions, routes and the ends they lead to."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError
from django.utils import timezone

from ledger.actions import leadership
from ledger.models import Event, Lease
from rollouts import actions
from rollouts.actions import engine_effects, tick_records
from rollouts.core.evaluate import TickInput
from rollouts.core.rules import all_failing, mostly_failing
from rollouts.core.tick_history import rows_of
from rollouts.engine import loop as engine_module
from rollouts.models import DecisionRecord, Observation, Rollout
from rollouts.queries import view_of
from serving.models import Environment, Replica, Server
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.rigs.gateway_rig import wait_until
from tests.support.worlds.factories import make_model, make_release
from tests.support.worlds.rollout_story import AT_ONCE, OBJECTIVES, POLICY, Story, began_earlier

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.takes("rollout: preparing → shifting", "rollout: shifting → baking", "rollout: baking → promoted")
def test_a_good_release_is_promoted_step_by_step_and_the_old_one_is_drained() -> None:
    story = Story()
    done = story.until("promoted")
    route = story.route()
    assert (route.stable_id, route.candidate_id, route.candidate_bp) == (story.candidate.pk, None, 0)
    assert not Replica.objects.get(release=story.stable).is_wanted
    assert Replica.objects.get(release=story.candidate).is_wanted
    assert done.weight_bp == 10_000 and done.ended_at is not None
    acts = list(
        DecisionRecord.objects.filter(rollout=done)
        .exclude(action="hold")
        .order_by("pk")
        .values_list("action", flat=True)
    )
    assert acts == ["request", "start", "advance", "bake", "promote", "promote"]
    verbs = set(Event.objects.filter(subject_type="rollout", subject_id=str(done.pk)).values_list("verb", flat=True))
    assert {"rollout.requested", "rollout.started", "rollout.advanced", "rollout.baking", "rollout.promoted"} <= verbs
    assert all(d.reason.endswith(".") for d in DecisionRecord.objects.all())
    weights = list(Observation.objects.filter(rollout=done).order_by("tick").values_list("weight_bp", flat=True))
    assert weights == sorted(weights) and {2500, 5000, 9500} <= set(weights)


def test_a_promoted_release_has_the_release_before_as_its_control_while_it_can_be_undone() -> None:
    story = Story(instant_window_s=3600, watch={"control_pct": 5})
    done = story.until("promoted")
    assert story.stable is not None
    route = story.route()
    assert (route.stable_id, route.candidate_id, route.candidate_bp) == (story.candidate.pk, story.stable.pk, 500)
    story.turn(requests=400)
    seen = story.gateway.read(gateway="gateway-1", admin_url="", timeout_s=1.0)[story.model.slug].by_release
    assert seen[story.stable.digest].decided > 0
    back = actions.roll_back_model(actor=story.admin, model=story.model, environment=story.environment, reason="Now.")
    route = story.route()
    assert back.pk == done.pk and (route.stable_id, route.candidate_id) == (story.stable.pk, None)


@pytest.mark.parametrize(
    ("fault", "guard"), [({"error_frac": 0.3}, "errors"), ({"slow_frac": 0.3, "slow_ms": 900.0}, "slow_250ms")]
)
@pytest.mark.takes("rollout: rolling_back → rolled_back")
def test_a_worse_release_is_rolled_back_and_users_see_nothing(fault: dict[str, float], guard: str) -> None:
    story = Story()
    story.until("shifting")
    started = timezone.now()
    story.turn()
    assert story.stable is not None
    story.gateway.set_arm(story.candidate.digest, **fault)
    story.until("rolling_back")
    breach = DecisionRecord.objects.get(rollout=story.rollout, action="roll_back")
    assert breach.code in {"worse_than_stable", "objective_breached"} and breach.facts["guard"] == guard
    assert story.route().candidate_bp == 0 and story.rollout.weight_bp == 0  # in the very tick of the decision
    assert story.route().candidate_id == story.candidate.pk  # kept until drained
    done = story.until("rolled_back", turns=6)
    assert done.decided_at <= done.zero_at <= done.confirmed_at
    assert done.first_bad_at is not None and started < done.first_bad_at <= done.decided_at
    assert story.route().candidate_id is None and story.route().stable_id == story.stable.pk
    assert not Replica.objects.get(release=story.candidate).is_wanted
    assert Replica.objects.get(release=story.stable).is_wanted
    view = view_of(done)
    assert 0 <= view["clock"]["decision_to_zero_s"] < 20  # counters that confirm nothing are waited for 30 s
    assert view["users"]["errors"] == 0 and view["users"]["requests"] > 0


def test_a_candidate_that_fails_every_attempt_is_gone_within_two_ticks() -> None:
    story = Story()
    story.until("shifting")
    story.turn()
    story.gateway.set_arm(story.candidate.digest, is_up=False)
    story.until("rolling_back", turns=2, requests=100)
    assert view_of(story.rollout)["clock"]["bad_candidate_attempts"] > 10


def test_a_server_that_is_gone_rolls_back_without_any_count() -> None:
    story = Story()
    story.until("shifting")
    story.turn()
    Server.objects.filter(replica__release=story.candidate).update(is_serving=False)
    assert story.turn(requests=0).state == "shifting"  # one look may be a slow probe
    assert story.turn(requests=0).state == "rolling_back"
    assert "servers_gone" in story.codes()


def test_early_ticks_make_neither_a_slow_probe_nor_one_bad_moment_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in (all_failing, mostly_failing):
        monkeypatch.setattr(rule, "FAILING_OVER_S", 3600.0)
    lenient = [{"indicator": "errors", "roll_back_over": {"ratio": 100, "plus_frac": 1.0}}]
    story = Story(timings=replace(AT_ONCE, gone_over_s=3600.0), guards=lenient)
    story.until("shifting")
    story.turn()
    servers = Server.objects.filter(replica__release=story.candidate)
    servers.update(is_serving=False)
    assert [story.turn(requests=0).state for _ in range(4)] == ["shifting"] * 4
    servers.update(is_serving=True)
    story.gateway.set_arm(story.candidate.digest, is_up=False)
    assert [story.turn(requests=50).state for _ in range(4)] == ["shifting"] * 4
    servers.update(is_serving=False)
    assert story.turn(requests=0).state == "rolling_back"  # failed attempts and no server: no second look
    assert "servers_gone" in story.codes()


@pytest.mark.parametrize("state", ["paused", "baking"])
def test_breach_is_seen_in_every_live_state(state: str) -> None:
    story = Story()
    story.until("shifting")
    if state == "paused":
        story.turn()
        actions.pause(actor=story.admin, rollout=story.rollout, expected_version=story.rollout.version, reason="Lunch.")
    else:
        story.until("baking")
    story.turn()
    story.gateway.set_arm(story.candidate.digest, error_frac=0.5)
    story.until("rolling_back")
    story.until("rolled_back", turns=6)
    assert DecisionRecord.objects.filter(rollout=story.rollout, action="roll_back").count() == 1
    assert story.route().stable_id == story.rollout.stable_id and story.route().candidate_bp == 0


def test_a_paused_rollout_never_advances_and_goes_on_when_resumed() -> None:
    story = Story()
    story.until("shifting")
    story.turn(requests=10)
    actions.pause(
        actor=story.admin, rollout=story.rollout, expected_version=story.rollout.version, reason="Looking closer."
    )
    for _ in range(6):
        assert story.turn(400).state == "paused"
    assert story.rollout.weight_bp == 2500 and "Looking closer" in story.rollout.reason
    actions.resume(
        actor=story.admin, rollout=story.rollout, expected_version=story.rollout.version, reason="Looks fine."
    )
    story.until("promoted")


@pytest.mark.takes("rollout: preparing → shadowing")
def test_with_shadowing_it_is_compared_before_any_user_is_served() -> None:
    story = Story(shadow={"sample_pct": 10, "min_s": 0, "min_samples": 40, "deadline_s": 600})
    story.until("shadowing", turns=6)
    route = story.route()
    assert (route.candidate_id, route.candidate_bp, route.mirror_bp) == (story.candidate.pk, 0, 1000)
    story.turn()
    assert story.rollout.state == "shadowing" and "answers are not compared" in story.rollout.reason


def test_no_counters_means_hold_never_advance() -> None:
    story = Story()
    story.until("shifting")
    story.gateway.fail("timeout")
    for _ in range(8):
        assert story.turn(400).weight_bp == 2500
    assert "provider_down" in story.codes() and "gateway-1" in story.rollout.reason
    story.gateway.fail(None)
    story.until("promoted")


def test_a_gateway_that_restarts_loses_no_evidence_and_invents_none() -> None:
    story = Story()
    story.until("shifting")
    story.turn(300)
    before = view_of(story.rollout)["arms"]["total"]["candidate"]["attempts"]
    story.gateway.restart()
    story.gateway.obey()
    story.turn(100)
    after = view_of(story.rollout)["arms"]["total"]["candidate"]["attempts"]
    assert before < after <= before + 100
    story.until("promoted")


def test_when_both_arms_are_bad_the_release_is_not_blamed() -> None:
    story = Story()
    story.until("shifting")
    assert story.stable is not None
    for release in (story.stable, story.candidate):
        story.gateway.set_arm(release.digest, error_frac=0.4)
    for _ in range(10):
        assert story.turn(300).state == "shifting"
    assert story.rollout.weight_bp == 2500 and story.codes()[-1] == "both_arms_bad"


def test_the_first_release_is_held_to_absolute_objectives_and_says_so() -> None:
    story = Story(with_stable=False)
    story.until("shifting")
    assert "absolute objectives" in DecisionRecord.objects.get(rollout=story.rollout, action="start").reason
    assert story.route().stable_id == story.candidate.pk and story.rollout.weight_bp == 10_000
    story.until("promoted")
    assert Replica.objects.get(release=story.candidate).is_wanted


def test_a_first_release_that_breaks_has_no_way_back_and_says_so_loudly() -> None:
    story = Story(with_stable=False)
    story.until("shifting")
    story.gateway.set_arm(story.candidate.digest, error_frac=0.5)
    done = story.until("paused", turns=10)
    assert story.codes()[-1] == "no_rollback_target" and "no earlier release" in done.reason
    assert story.route().stable_id == story.candidate.pk
    actions.abort(actor=story.admin, rollout=done, expected_version=done.version, reason="We push a fix.")
    assert "keeps its traffic" in story.until("rolled_back").reason


@pytest.mark.takes("rollout: rolling_back → stuck")
def test_an_unacknowledged_rollback_is_stuck_loudly_and_goes_on_when_the_gateway_does() -> None:
    story = Story(ack_deadline_s=0.05)
    story.until("shifting")
    story.turn()
    actions.roll_back(
        actor=story.admin, rollout=story.rollout, expected_version=story.rollout.version, reason="A hunch."
    )
    assert story.route().candidate_bp == 0  # written by the verb itself, without the engine
    for _ in range(4):
        story.engine.step()
        story.rollout.refresh_from_db()
    assert story.rollout.state in {"rolling_back", "stuck"}

    def is_stuck() -> bool:
        story.engine.step()
        story.rollout.refresh_from_db()
        return story.rollout.state == "stuck"

    wait_until(is_stuck, "its deadline of 0.05 s has passed", timeout_s=60)
    assert "acknowledged" in story.rollout.reason
    story.gateway.obey()
    done = story.until("rolled_back", turns=6)
    assert done.zero_at is not None


def test_a_gateway_that_says_zero_but_sends_more_is_stuck_loudly() -> None:
    story = Story(timings=replace(AT_ONCE, confirm_within_s=0.0))
    story.until("shifting")
    story.turn()
    version = story.rollout.version
    actions.roll_back(actor=story.admin, rollout=story.rollout, expected_version=version, reason="A hunch.")
    story.gateway.obey()
    assert story.stable is not None
    wrong = {"stable": story.stable.digest, "candidate": story.candidate.digest, "candidate_bp": 5000}
    wrong["slot"] = story.route().slot
    for _ in range(4):
        story.gateway.set_route(story.model.slug, **wrong)  # acknowledged, and not done
        story.gateway.traffic(100)
        story.engine.step()
    story.rollout.refresh_from_db()
    assert story.rollout.state == "stuck" and "still show requests" in story.rollout.reason
    story.gateway.obey()
    assert story.until("rolled_back", turns=6).confirmed_at is not None


def test_answers_that_come_late_do_not_make_a_rollback_stuck() -> None:
    """A slow model, or streams: what began before weight 0 ends on the candidate for as long as it likes."""
    story = Story(timings=replace(AT_ONCE, confirm_within_s=3600.0))
    story.until("shifting")
    story.turn()
    assert story.stable is not None
    before = story.route().slot
    version = story.rollout.version
    actions.roll_back(actor=story.admin, rollout=story.rollout, expected_version=version, reason="A hunch.")
    assert story.route().slot != before
    for is_over in (False, True):
        if is_over:
            story.engine.timings = replace(AT_ONCE, confirm_within_s=0.0)
        for _ in range(1 if is_over else 4):
            story.gateway.set_route(story.model.slug, stable=story.stable.digest, slot=before)
            story.gateway.count(story.model.slug, story.candidate.digest, attempts=3)
            story.turn(0)
            assert story.rollout.state == ("rolled_back" if is_over else "rolling_back")
    assert story.rollout.zero_at is not None and story.rollout.confirmed_at is None
    assert "could not confirm it: answers of" in story.rollout.reason and "still on their way" in story.rollout.reason


def test_a_rollout_whose_stored_policy_nobody_may_ask_for_today_goes_on() -> None:
    story = Story()
    story.until("shifting")
    policy = {**story.rollout.policy, "guards": [{**one, "dry_run": True} for one in story.rollout.policy["guards"]]}
    Rollout.objects.filter(pk=story.rollout.pk).update(policy=policy, policy_digest="sha256:" + "0" * 64)
    story.engine.cache.forget()
    tick = story.rollout.tick
    assert story.turn().tick > tick and story.rollout.state == "shifting"
    assert story.engine.cache.broken == {} and story.rollout.pk in story.engine.cache.known
    assert all(guard["dry_run"] for guard in view_of(Rollout.objects.get(pk=story.rollout.pk))["policy"]["guards"])


def test_a_lock_that_one_rollout_did_not_get_costs_neither_the_others_nor_the_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    other = make_model(objectives=OBJECTIVES, rollout_policy=POLICY)
    held = actions.start_rollout(actor=story.admin, candidate=make_release(other), environment=story.environment)
    evaluate = engine_module.evaluate

    def waiting_in_vain(given: TickInput, **kwargs: Any) -> Any:
        if given.identity.rollout_id == held.pk:
            raise OperationalError("canceling statement due to lock timeout")
        return evaluate(given, **kwargs)

    monkeypatch.setattr(engine_module, "evaluate", waiting_in_vain)
    story.until("promoted")
    assert Lease.objects.get(name="engine").token == 1


def test_a_server_that_is_being_drained_is_none_to_start_on() -> None:
    story = Story()
    Replica.objects.filter(release=story.candidate).update(is_wanted=False, state="draining")
    assert story.turn().state == "preparing"
    assert story.route().candidate_bp == 0


def test_one_broken_rollout_does_not_stop_the_others() -> None:
    story = Story()
    other = make_model(objectives=OBJECTIVES, rollout_policy=POLICY)
    broken = actions.start_rollout(actor=story.admin, candidate=make_release(other), environment=story.environment)
    Rollout.objects.filter(pk=broken.pk).update(engine_state={"readings": "nonsense"})
    story.until("promoted")
    assert story.engine.writer.bad_attempts > 3
    broken.refresh_from_db()
    assert broken.state == "preparing"


def test_a_second_engine_leads_when_the_first_is_gone_and_the_first_is_fenced_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story()
    story.until("shifting")
    first, second = story.engine, story.new_engine()
    assert not second.step()
    Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert second.step()
    assert second.token == (first.token or 0) + 1
    tick = Rollout.objects.get(pk=story.rollout.pk).tick
    with monkeypatch.context() as asleep:
        asleep.setattr(leadership, "renew", lambda *args: True)  # it believes to lead still
        assert not first.step()
    assert first.token is None
    assert not first.step()
    assert Rollout.objects.get(pk=story.rollout.pk).tick == tick
    story.engine = second
    story.until("promoted")


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (engine_effects, "move"),
        (engine_effects, "set_route"),
        (tick_records, "reread"),
        (tick_records, "_row_of"),
        (DecisionRecord.objects, "bulk_create"),
        (Observation.objects, "bulk_create"),
    ],
)
def test_dying_in_the_middle_of_a_tick_leaves_it_whole_or_undone(
    where: Any, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of a tick is made to fail once; afterwards everything goes on as if nothing had happened."""
    story = Story()
    real, fails = getattr(where, line), iter([True, False, True, False, False, True] + [False] * 500)

    class Killed(DatabaseError):
        pass

    def dying(*args: object, **kwargs: object) -> object:
        if next(fails):
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(where, line, dying)
    story.until("promoted")
    assert not next(fails)  # it did fail
    blocks = list(Observation.objects.filter(rollout=story.rollout).order_by("tick"))
    assert all(later.first_tick > earlier.tick for earlier, later in pairwise(blocks))
    assert [row.tick for block in blocks for row in rows_of(block.first_tick, 0.0, block.ticks)] == list(
        range(blocks[0].first_tick, story.rollout.tick + 1)
    )
    counted = view_of(story.rollout)["users"]["requests"]
    slug = story.model.slug
    seen = story.gateway.read(gateway="gateway-1", admin_url="", models=[slug], timeout_s=1)[slug].user_requests
    assert counted <= seen and counted >= seen - 400  # the first reading is the baseline; nothing counted twice


def test_the_candidate_is_asked_for_when_it_runs_nowhere() -> None:
    story = Story()
    Server.objects.filter(replica__release=story.candidate).delete()
    Replica.objects.filter(release=story.candidate).delete()
    story.turn()
    assert Replica.objects.filter(release=story.candidate, environment=story.environment, is_wanted=True).exists()
    assert story.rollout.state == "preparing" and "Waiting for" in story.rollout.reason


def test_a_candidate_that_is_never_ready_is_cancelled_without_traffic() -> None:
    story = Story(prepare_deadline_s=5)
    Replica.objects.filter(release=story.candidate).update(state="loading")
    Server.objects.filter(replica__release=story.candidate).update(is_serving=False)
    story.turn()
    began_earlier(6)
    story.turn()
    assert story.rollout.state == "preparing"  # it counts from when the server was lost
    began_earlier(6, "servers_gone")
    assert story.until("cancelled", turns=2).weight_bp == 0
    assert story.codes()[-1] == "servers_gone" and story.route().candidate_id is None


def test_environment_is_not_touched_by_reading_it() -> None:
    story = Story()
    story.until("shifting")
    generation = Environment.objects.get(pk=story.environment.pk).generation
    for _ in range(3):
        story.turn(0)
    assert Environment.objects.get(pk=story.environment.pk).generation == generation
