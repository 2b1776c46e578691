"""Stable loses its server for good, and the candidate is its fix: an engine on a real database beside a gateway that is not real."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Role
from ledger.core.errors import NotFound, Refused, StateChanged
from ledger.models import Event
from registry.models import Release, ServedModel
from rollouts import actions
from rollouts.actions.instant_rollback import drain_reverted
from rollouts.actions.preview import preview_rollout
from rollouts.models import Rollout
from rollouts.queries import ended_to_settle
from rollouts.queries.release_usage import is_in_use, release_usages
from rollouts.queries.rollout_view import view_of
from rollouts.queries.target import target_of
from serving.models import Node, Replica, Server
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.worlds.factories import make_actor, make_release
from tests.support.worlds.rollout_story import AT_ONCE, Story, began_earlier

pytestmark = pytest.mark.django_db(transaction=True)


def lose_stable(story: Story, is_serving: bool = False) -> None:
    Server.objects.filter(replica__release=story.stable).update(is_serving=is_serving)


def by_hand(story: Story, verb: str = "promote_now") -> Rollout:
    story.rollout.refresh_from_db()
    done: Rollout = getattr(actions, verb)(
        actor=story.admin, rollout=story.rollout, expected_version=story.rollout.version, reason="Users get 503."
    )
    story.rollout.refresh_from_db()
    return done


def has_all_traffic(story: Story) -> None:
    route, rollout = story.route(), story.rollout
    assert (route.stable_id, route.candidate_id, route.candidate_bp) == (story.candidate.pk, None, 0)
    assert (rollout.stable_id, rollout.displaced_id, rollout.weight_bp) == (None, story.stable.pk, 10_000)  # type: ignore[union-attr]
    assert is_in_use(story.stable, story.environment)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["promote_now", "advance"])
@pytest.mark.parametrize("state", ["preparing", "shadowing", "shifting", "baking", "paused"])
def test_a_release_manager_gives_a_ready_candidate_all_traffic_from_every_live_state(state: str, verb: str) -> None:
    shadow = (
        {"shadow": {"sample_pct": 50, "min_s": 0, "min_samples": 1, "deadline_s": 600}} if state == "shadowing" else {}
    )
    story = Story(**shadow)
    if state == "preparing":
        lose_stable(story)
        story.turn()
        assert (
            "r2 is ready, but r1, the rollback target, has no serving server; waiting for it." in story.rollout.reason
        )
        assert f"`sluicegate rollout promote {story.rollout.pk}`" in story.rollout.reason
    else:
        story.until("shifting" if state == "paused" else state)
        if state == "paused":
            actions.pause(actor=story.admin, rollout=story.rollout, expected_version=None, reason="Wait.")
        lose_stable(story)
        story.turn(0)
    target = target_of(story.rollout)
    assert target is not None and target.is_missing and "r1 has no serving server" in target.message
    done = by_hand(story, verb)
    assert done.state == ("baking" if state == "baking" else "shifting")
    assert "r2 takes all traffic, as a first release does" in done.reason and done.reason.endswith("Users get 503.")
    has_all_traffic(story)
    event = Event.objects.get(verb="rollout.took_over")
    assert (event.facts["displaced"], event.facts["stable"], event.actor) == ("r1", None, story.admin.name)
    story.gateway.obey()
    if state == "shadowing":  # no prober compares answers here, so no evidence of these will come
        story.until("shifting")
        by_hand(story)
    promoted = story.until("promoted")
    by = ", promoted by hand: no evidence was waited for" if state == "shadowing" else ""
    assert promoted.reason == f"All traffic went to r2{by}."
    assert not Replica.objects.get(release=story.stable).is_wanted  # it was let go when r2 was promoted


def test_the_policy_does_it_by_itself_once_stable_has_been_gone_for_its_time() -> None:
    story = Story(when_stable_is_gone="replace", stable_gone_s=60)
    lose_stable(story)
    story.turn()
    assert story.rollout.state == "preparing" and "once r1 has been gone for 60 s" in story.rollout.reason
    began_earlier(61, "stable_gone")
    story.turn()
    assert story.rollout.state == "shifting" and story.codes()[-1] == "stable_gone"
    has_all_traffic(story)
    story.until("promoted")
    view = view_of(story.rollout)
    assert view["displaced"]["name"] == "r1" and view["target"] is None


def test_what_answers_again_becomes_the_rollback_target_and_is_gone_back_to() -> None:
    story = Story(bake={"min_s": 600, "min_samples": 40, "deadline_s": 900})
    lose_stable(story)
    story.turn()
    by_hand(story)
    story.gateway.obey()
    story.turn()
    target = target_of(story.rollout)
    assert target is not None and (target.release, target.is_missing) == (None, True)
    assert "r2 took the place of r1, which has no server" in target.message
    lose_stable(story, is_serving=True)
    target = target_of(story.rollout)
    assert target is not None and target.release == "r1" and "a rollback goes to it" in target.message
    story.until("baking")
    story.gateway.set_arm(story.candidate.digest, error_frac=0.5)
    story.until("rolled_back")
    route = story.route()
    assert (route.stable_id, route.candidate_id) == (story.stable.pk, None)  # type: ignore[union-attr]
    assert (
        story.rollout.stable_id == story.stable.pk and "Rolling back to r1, which answers again" in story.rollout.reason
    )  # type: ignore[union-attr]


def test_a_person_ends_it_and_the_candidate_keeps_its_traffic_while_there_is_nothing_to_go_back_to() -> None:
    story = Story()
    lose_stable(story)
    story.turn()
    by_hand(story)
    story.gateway.obey()
    actions.abort(actor=story.admin, rollout=story.rollout, expected_version=None, reason="Enough.")
    ended = story.until("rolled_back")
    assert ended.outcome == "ended" and ended.reason == (
        f"Ended by {story.admin.name}: Enough. r1 has no serving server, so r2 keeps its traffic. Once r1 answers again, "
        "all traffic goes back to it, unless another release is being rolled out."
    )
    assert story.route().stable_id == story.candidate.pk
    assert is_kept(story) and is_in_use(story.stable, story.environment)  # type: ignore[arg-type]


def is_kept(story: Story) -> bool:
    return Replica.objects.get(release=story.stable).is_wanted


def aborted_take_over(story: Story) -> None:
    lose_stable(story)
    story.turn()
    by_hand(story)
    story.gateway.obey()
    actions.abort(actor=story.admin, rollout=story.rollout, expected_version=None, reason="Wrong answers.")
    story.until("rolled_back")


def test_after_an_abort_all_traffic_goes_to_the_displaced_release_as_soon_as_it_answers() -> None:
    story = Story(timings=replace(AT_ONCE, sweep_every_s=0.0))
    aborted_take_over(story)
    story.turn()
    assert story.route().stable_id == story.candidate.pk and is_kept(story)
    assert story.stable is not None and story.stable.pk in {release for release, _ in release_usages(None)}
    lose_stable(story, is_serving=True)
    ended = story.turn()
    route = story.route()
    assert (route.stable_id, route.candidate_id) == (story.stable.pk, None)
    said = f"system:engine went back to r1, which answers again: Rollout {ended.pk} was aborted."
    assert (ended.state, ended.outcome, ended.reason) == ("rolled_back", "rolled_back", said)
    drain_reverted(ended)
    assert is_kept(story) and not Replica.objects.get(release=story.candidate).is_wanted


def test_a_person_goes_back_after_an_abort_once_the_displaced_release_answers() -> None:
    story = Story()
    aborted_take_over(story)
    arguments: dict[str, Any] = {"actor": story.admin, "model": story.model, "environment": story.environment}
    with pytest.raises(NotFound, match="r1 has no serving server yet. All traffic goes back to it once it answers"):
        actions.roll_back_model(reason="Back.", **arguments)
    with pytest.raises(StateChanged, match="r2 keeps its traffic"):
        actions.pause(actor=story.admin, rollout=story.rollout, expected_version=story.rollout.version, reason="Wait.")
    lose_stable(story, is_serving=True)
    back = actions.roll_back_model(reason="Back.", **arguments)
    assert (back.pk, back.outcome) == (story.rollout.pk, "rolled_back")
    assert story.route().stable_id == story.stable.pk  # type: ignore[union-attr]


def test_the_fix_of_an_aborted_take_over_keeps_its_traffic_and_its_promotion_lets_the_displaced_release_go() -> None:
    story = Story(timings=replace(AT_ONCE, sweep_every_s=0.0))
    aborted_take_over(story)
    fix = story.serve(make_release(story.model))
    story.rollout = actions.start_rollout(actor=story.admin, candidate=fix, environment=story.environment)
    story.until("shifting")
    lose_stable(story, is_serving=True)
    story.turn()
    assert story.route().stable_id == story.candidate.pk and is_kept(story)
    story.until("promoted")
    story.turn()
    assert story.route().stable_id == fix.pk and not is_kept(story)


def test_a_person_goes_back_to_what_answers_again() -> None:
    story = Story()
    lose_stable(story)
    story.turn()
    by_hand(story)
    story.gateway.obey()
    lose_stable(story, is_serving=True)
    actions.roll_back_model(actor=story.admin, model=story.model, environment=story.environment, reason="Back.")
    assert story.route().stable_id == story.stable.pk  # type: ignore[union-attr]
    assert story.until("rolled_back").stable_id == story.stable.pk  # type: ignore[union-attr]


def test_what_answers_again_stays_warm_after_the_promotion() -> None:
    story = Story(instant_window_s=600)
    lose_stable(story)
    story.turn()
    by_hand(story)
    story.gateway.obey()
    lose_stable(story, is_serving=True)
    promoted = story.until("promoted")
    assert promoted.stable_id == story.stable.pk and promoted.undo_until is not None  # type: ignore[union-attr]
    back = actions.roll_back_model(actor=story.admin, model=story.model, environment=story.environment, reason="Back.")
    assert back.state == "reverted"


def test_what_is_not_ready_not_sealed_or_not_proven_takes_nothing() -> None:
    story = Story()
    lose_stable(story)
    Server.objects.filter(replica__release=story.candidate).update(is_serving=False)
    story.turn()
    with pytest.raises(StateChanged) as caught:
        by_hand(story)
    assert caught.value.code == "candidate_not_ready" and "Repeat when" in caught.value.message
    Server.objects.filter(replica__release=story.candidate).update(is_serving=True, drift=["model.onnx"])
    with pytest.raises(StateChanged) as caught:
        by_hand(story)
    assert caught.value.code == "digest_mismatch"
    Server.objects.update(drift=[])
    story.environment.needs_passed_report = True
    story.environment.save()
    with pytest.raises(Refused) as refused:
        by_hand(story)
    assert refused.value.code == "report_not_passed"


def approve(story: Story, stage: str) -> None:
    reviewer = make_actor(Role.RELEASE_MANAGER)
    story.rollout.refresh_from_db()
    actions.approve(actor=reviewer, rollout=story.rollout, expected_version=story.rollout.version, stage=stage)


def test_no_door_of_a_take_over_skips_the_approvals_of_the_promotion() -> None:
    story = Story(approvals={"promote": 1}, when_stable_is_gone="replace", stable_gone_s=60)
    lose_stable(story)
    story.turn()
    assert story.rollout.reason.endswith("Before that, promote needs 1 more approval.")
    for verb in ("promote_now", "advance"):
        with pytest.raises(Refused) as caught:
            by_hand(story, verb)
        assert caught.value.code == "approval_missing" and "promote 0 of 1" in caught.value.message
    began_earlier(61, "stable_gone")
    held = story.turn()
    assert held.state == "preparing" and held.reason == "Ready to go on, but promote needs 1 more approval."
    approve(story, "promote")
    story.turn()
    has_all_traffic(story)
    story.until("promoted")


#: Every day of every week, so a test meets it whenever it runs.
ALWAYS = [{"why": "Holidays"}]


def test_a_release_manager_passes_a_freeze_and_the_event_records_it() -> None:
    story = Story()
    actions.cancel(actor=story.admin, rollout=story.rollout, expected_version=None, reason="Again.")
    ServedModel.objects.update(rollout_policy={**story.model.rollout_policy, "freeze_windows": ALWAYS})
    story.candidate = story.serve(make_release(story.model))
    release = Release.objects.select_related("model__team").get(pk=story.candidate.pk)
    asked: dict[str, Any] = {"candidate": release, "environment": story.environment}
    with pytest.raises(Refused) as caught:
        actions.start_rollout(actor=story.admin, **asked)
    assert caught.value.code == "frozen"
    lose_stable(story)
    with pytest.raises(Refused) as caught:
        actions.start_rollout(actor=make_actor(Role.MODEL_TEAM, team=story.model.team), **asked)
    assert caught.value.code == "frozen" and "a release manager may start it now" in caught.value.message
    assert preview_rollout(actor=story.admin, **asked)["can_start"]
    story.rollout = actions.start_rollout(actor=story.admin, **asked)
    story.turn()
    assert f"all traffic at once: `sluicegate rollout promote {story.rollout.pk}`" in story.rollout.reason
    done = by_hand(story)
    has_all_traffic(story)
    assert "The freeze until" in done.reason and done.reason.endswith("was passed. Users get 503.")
    assert Event.objects.get(verb="rollout.took_over").facts["passed_freeze"]["why"] == "Holidays"


def test_a_freeze_holds_every_verb_while_stable_serves() -> None:
    story = Story()
    story.until("shifting")
    Rollout.objects.update(policy={**story.rollout.policy, "freeze_windows": ALWAYS})
    with pytest.raises(Refused) as caught:
        by_hand(story)
    assert caught.value.code == "frozen"


def test_nothing_is_taken_over_while_stable_serves() -> None:
    story = Story()
    with pytest.raises(StateChanged, match="takes traffic by itself once it is ready"):
        by_hand(story)


@pytest.mark.parametrize("shed_frac", [0.0, 0.5, 0.9])
def test_a_silent_agent_is_no_evidence_and_a_gateway_without_answers_is(shed_frac: float) -> None:
    story = Story(when_stable_is_gone="replace", stable_gone_s=0.001)
    Node.objects.update(seen_at=None)
    assert story.until("shifting").stable is not None  # stable answers, as far as its gateway shows
    story.gateway.set_arm(story.stable.digest, is_up=False, shed_frac=shed_frac)  # type: ignore[union-attr]
    for _ in range(4):
        if story.turn().displaced is not None:
            break
    has_all_traffic(story)


def test_a_stable_release_that_sheds_every_request_is_not_gone() -> None:
    story = Story(when_stable_is_gone="replace", stable_gone_s=0.001)
    Node.objects.update(seen_at=None)
    story.until("shifting")
    story.gateway.set_arm(story.stable.digest, shed_frac=1.0)  # type: ignore[union-attr]
    assert [story.turn().displaced for _ in range(4)] == [None] * 4


def test_a_job_that_is_run_again_reads_that_the_take_over_was_aborted() -> None:
    story = Story()
    aborted_take_over(story)
    with pytest.raises(
        StateChanged, match="of r2 in production was ended: .* It serves still. Push a mended"
    ) as caught:
        actions.start_rollout(actor=story.admin, candidate=story.candidate, environment=story.environment)
    assert (caught.value.code, caught.value.facts["state"]) == ("tried_before", "rolled_back")
    with pytest.raises(StateChanged) as caught:
        actions.start_rollout(actor=story.admin, candidate=story.candidate, environment=story.environment, again=True)
    assert caught.value.code == "already_stable"


def test_a_rollback_that_would_only_drop_the_fix_names_what_is_possible() -> None:
    story = Story()
    lose_stable(story)
    story.turn()
    arguments: dict[str, Any] = {"actor": story.admin, "model": story.model, "environment": story.environment}
    with pytest.raises(StateChanged) as caught:
        actions.roll_back_model(reason="Back.", **arguments)
    assert caught.value.code == "nothing_to_roll_back"
    for verb in ("promote", "cancel"):
        assert f"`sluicegate rollout {verb} {story.rollout.pk}`" in caught.value.message


def test_a_candidate_that_never_loads_keeps_the_cause_while_it_is_tried_again_and_in_the_last_sentence() -> None:
    story = Story(prepare_deadline_s=60)
    Server.objects.filter(replica__release=story.candidate).update(is_serving=False)
    of_candidate = Replica.objects.filter(release=story.candidate)
    of_candidate.update(state="failed", reason="load_failed: license expired")
    cause = "Its last try failed: load_failed: license expired"
    reasons = set()
    for state in ("failed", "loading", "loading"):
        of_candidate.update(state=state)
        reasons.add(story.turn().reason)
    assert reasons == {f"Waiting for r2 to be loaded and warm. {cause}"}
    began_earlier(61, "servers_gone")
    assert story.until("cancelled", turns=2).reason.endswith(f" s. {cause}")


def test_an_undo_window_stays_open_while_its_release_has_no_server() -> None:
    story = Story(instant_window_s=600)
    story.until("promoted")
    Rollout.objects.update(undo_until=timezone.now() - timedelta(seconds=1))
    Server.objects.filter(replica__release=story.candidate).update(is_serving=False)
    story.turn(0)
    assert Replica.objects.get(release=story.stable).is_wanted
    fix = story.serve(make_release(story.model))
    actions.start_rollout(actor=story.admin, candidate=fix, environment=story.environment)
    back = actions.roll_back_model(actor=story.admin, model=story.model, environment=story.environment, reason="Back.")
    assert back.state == "reverted" and story.route().stable_id == story.stable.pk  # type: ignore[union-attr]


def test_an_undo_window_ends_once_a_successor_of_its_lost_release_is_promoted() -> None:
    story = Story(timings=replace(AT_ONCE, sweep_every_s=0.0), instant_window_s=600)
    first = story.until("promoted")
    Server.objects.filter(replica__release=story.candidate).update(is_serving=False)
    fix = story.serve(make_release(story.model))
    story.rollout = actions.start_rollout(actor=story.admin, candidate=fix, environment=story.environment)
    story.turn()
    by_hand(story)
    story.gateway.obey()
    story.until("promoted")
    Rollout.objects.filter(pk=first.pk).update(undo_until=timezone.now() - timedelta(seconds=1))
    story.turn(0)
    assert story.route().stable_id == fix.pk and not is_kept(story)


def test_windows_that_a_lost_release_keeps_open_hold_up_no_other() -> None:
    story = Story(timings=replace(AT_ONCE, sweep_every_s=0.0), instant_window_s=600)
    story.until("promoted")
    over = timezone.now() - timedelta(seconds=1)
    Rollout.objects.update(undo_until=over)
    assert [one.pk for one in ended_to_settle(timezone.now())] == [story.rollout.pk]
    Server.objects.filter(replica__release=story.candidate).update(is_serving=False)
    assert ended_to_settle(timezone.now()) == []
