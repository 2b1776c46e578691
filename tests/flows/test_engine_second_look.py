"""A second look on a real database and a fake gateway: a crossing takes the traffic away, and the next one convicts."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.errors import StateChanged
from ledger.models import Event
from rollouts import actions
from rollouts.actions import engine_effects
from rollouts.core.rules import second_look
from rollouts.engine import rollback
from rollouts.models import DecisionRecord, Rollout
from rollouts.queries import view_of
from serving.models import Replica, Server
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.rigs.gateway_rig import wait_until
from tests.support.worlds.factories import make_admin
from tests.support.worlds.rollout_story import Story

pytestmark = pytest.mark.django_db(transaction=True)
LOOKS = {"looks": 2, "after_s": 0, "alpha_second": 0.05}
CROSSINGS = {"worse_than_stable", "objective_breached", "all_failing", "mostly_failing"}
LONG = {**LOOKS, "after_s": 3600}
SHADOW = {"sample_pct": 10, "min_s": 0, "min_samples": 40, "deadline_s": 600}


@pytest.fixture(autouse=True)
def _probed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_look, "PROBED_S", 0.0)


def crossed(story: Story, state: str = "shifting", **fault: Any) -> Rollout:
    """The rollout, whose candidate broke in this state, as soon as its traffic was taken away."""
    story.until("shifting" if state == "paused" else state)
    story.turn()
    if state == "paused":
        act(story, actions.pause, "Lunch.")
    story.gateway.set_arm(story.candidate.digest, **(fault or {"error_frac": 0.5}))
    return story.until("second_look")


def act(story: Story, verb: Any, reason: str) -> Rollout:
    story.rollout.refresh_from_db()
    verb(actor=story.admin, rollout=story.rollout, expected_version=story.rollout.version, reason=reason)
    story.rollout.refresh_from_db()
    return story.rollout


def heal(story: Story) -> None:
    story.gateway.set_arm(story.candidate.digest, error_frac=0.0)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("shifting", marks=pytest.mark.takes("rollout: shifting → second_look")),
        pytest.param("baking", marks=pytest.mark.takes("rollout: baking → second_look")),
        pytest.param("paused", marks=pytest.mark.takes("rollout: paused → second_look")),
    ],
)
def test_a_crossing_takes_the_traffic_away_in_its_very_tick_and_keeps_the_candidate(state: str) -> None:
    story = Story(second_look=LONG)
    done = crossed(story, state)
    assert story.route().candidate_bp == 0 and done.weight_bp == 0 and story.route().candidate_id == story.candidate.pk
    assert Replica.objects.get(release=story.candidate).is_wanted
    assert DecisionRecord.objects.get(rollout=done, action="withdraw").code in CROSSINGS
    event = Event.objects.get(verb="rollout.second_look", subject_id=str(done.pk))
    assert "Look 1 of 2." in event.reason
    for _ in range(4):
        assert story.turn().state == "second_look"
    (crossing,) = view_of(story.rollout)["second_look"]["crossings"]
    assert crossing["weight_bp"] > 0 and crossing["counts"]["bad_candidate"] > 0
    assert crossing["first_bad_at"] <= crossing["decided_at"] <= crossing["zero_at"] <= crossing["confirmed_at"]
    assert view_of(story.rollout)["users"]["errors"] == 0
    assert "Begins again in" in story.rollout.reason and story.rollout.reason.endswith("Look 1 of 2.")


@pytest.mark.takes("rollout: second_look → shifting")
def test_an_incident_that_ends_is_not_the_release() -> None:
    story = Story(second_look=LOOKS)
    crossed(story)
    heal(story)
    again = story.until("shifting")
    assert again.step_index == 0 and again.weight_bp == 2500
    assert [step["is_current"] for step in view_of(again)["steps"]] == [True, False, False]
    done = story.until("promoted")
    assert done.decided_at is None and view_of(done)["clock"]["fault_to_zero_s"] is not None
    assert "Traffic taken away at" in done.reason
    event = Event.objects.get(verb="rollout.promoted", subject_id=str(done.pk))
    assert event.facts["crossings"] == 1 and "Traffic taken away at" in event.reason


def test_a_promotion_that_fails_gives_stable_its_place_back() -> None:
    story = Story(second_look=LONG)
    story.until("baking")
    tick_unheard(story)
    while not story.rollout.engine_state["is_promoting"]:
        story.gateway.obey()
        tick_unheard(story)
    assert story.route().stable_id == story.candidate.pk
    story.gateway.set_arm(story.candidate.digest, error_frac=1.0)
    while story.rollout.state == "baking":
        tick_unheard(story)
    away = story.turn()
    assert away.state == "second_look" and story.stable is not None and not away.engine_state["is_promoting"]
    for _ in range(4):
        story.turn()
        route = story.route()
        assert (route.stable_id, route.candidate_id, route.candidate_bp) == (
            story.stable.pk,
            story.candidate.pk,
            0,
        )
    assert story.rollout.crossings[0]["confirmed_at"] is not None


def tick_unheard(story: Story) -> None:
    """Traffic and a tick whose route the gateway does not take yet."""
    story.gateway.traffic(200)
    story.engine.step()
    story.rollout.refresh_from_db()


def test_what_stays_broken_is_convicted_and_users_see_nothing() -> None:
    story = Story(second_look=LOOKS)
    crossed(story)
    story.until("shifting")
    story.until("rolling_back")
    done = story.until("rolled_back", turns=8)
    view = view_of(done)
    assert view["users"]["errors"] == 0 and done.decided_at is not None and len(done.crossings) == 1
    assert view["clock"]["decided_at"] == view["second_look"]["crossings"][0]["decided_at"]  # of the first crossing
    convicted = view["second_look"]["conviction"]
    assert convicted["decided_at"] == done.decided_at.isoformat() > view["clock"]["decided_at"]
    assert convicted["zero_at"] > convicted["decided_at"] and convicted["decision_to_zero_s"] < 60
    assert [one for one in story.codes() if one in CROSSINGS]
    assert not Replica.objects.get(release=story.candidate).is_wanted


@pytest.mark.takes("rollout: second_look → rolling_back")
def test_a_candidate_that_loses_its_server_meanwhile_is_convicted() -> None:
    story = Story(second_look=LONG)
    crossed(story)
    Server.objects.filter(replica__release=story.candidate).update(is_serving=False)
    story.until("rolling_back", turns=4)
    assert story.codes()[-1] == "servers_gone"
    assert story.until("rolled_back", turns=8).zero_at is not None


@pytest.mark.takes("rollout: second_look → stuck")
def test_gateways_that_do_not_follow_make_it_stuck_and_then_it_is_rolled_back() -> None:
    story = Story(second_look=LONG, ack_deadline_s=0.05)
    story.until("shifting")
    story.turn()
    story.gateway.set_arm(story.candidate.digest, error_frac=0.5)
    refuse(story)
    assert "acknowledged" in story.rollout.reason and story.rollout.decided_at is not None
    story.gateway.obey()
    done = story.until("rolled_back", turns=8)
    assert done.zero_at is not None and view_of(done)["clock"]["fault_to_zero_s"] is not None


def refuse(story: Story) -> None:
    """Traffic and ticks with a gateway that takes no new route, until the rollout is stuck."""

    def is_stuck() -> bool:
        story.gateway.traffic(200)
        story.engine.step()
        story.rollout.refresh_from_db()
        return story.rollout.state == "stuck"

    wait_until(is_stuck, "its deadline of 0.05 s has passed", timeout_s=60)


@pytest.mark.takes("rollout: paused → stuck")
def test_it_is_stuck_though_somebody_pauses_it_meanwhile() -> None:
    story = Story(second_look=LONG, ack_deadline_s=600)
    story.until("shifting")
    story.turn()
    story.gateway.set_arm(story.candidate.digest, error_frac=0.5)
    for _ in range(40):
        story.gateway.traffic(200)
        story.engine.step()
        story.rollout.refresh_from_db()
        if story.rollout.state == "second_look":
            break
    act(story, actions.pause, "Wait for me.")
    Rollout.objects.update(policy={**story.rollout.policy, "ack_deadline_s": 0.01})
    story.engine.cache.forget()
    story.engine.cache._policies.clear()
    refuse(story)
    assert story.rollout.state == "stuck"


@pytest.mark.takes("rollout: second_look → paused")
def test_a_rollout_that_was_paused_stays_paused_at_weight_0_until_it_is_resumed() -> None:
    story = Story(second_look=LOOKS)
    crossed(story, "paused")
    story.until("paused")
    heal(story)
    for _ in range(4):
        assert story.turn().state == "paused" and story.rollout.weight_bp == 0
    act(story, actions.resume, "Back.")
    assert story.until("shifting", turns=4).step_index == 0
    story.until("promoted")


@pytest.mark.takes("rollout: paused → second_look")
def test_a_pause_during_the_wait_holds_the_next_look() -> None:
    story = Story(second_look=LONG)
    crossed(story)
    story.turn()
    act(story, actions.pause, "Look at the logs.")
    assert story.turn().state == "paused" and story.turn().reason.endswith("at 0 %: Look at the logs.")
    act(story, actions.resume, "The database was away.")
    story.until("shifting", turns=4)


def test_a_person_begins_at_once_and_the_crossing_counts() -> None:
    story = Story(second_look=LONG)
    crossed(story)
    for verb in (actions.advance, actions.promote_now):
        with pytest.raises(StateChanged, match="Its traffic was taken away for another look"):
            act(story, verb, "Go.")
    while story.rollout.step_started_at is None:
        story.turn()
    act(story, actions.resume, "The database was away.")
    again = story.until("shifting", turns=4)
    assert again.look == 2 and again.crossings[0]["begun_by"] == story.admin.name
    seen = view_of(again)["second_look"]
    assert seen["crossings"][0]["begun_by"] == story.admin.name and seen["conviction"] is None
    story.until("rolling_back")


def test_the_stages_of_the_look_before_are_not_those_of_the_next() -> None:
    story = Story(second_look=LOOKS, approvals={"step 2": 1})
    story.until("shifting")
    approve(story)
    while story.turn().step_index < 1:
        pass
    story.gateway.set_arm(story.candidate.digest, error_frac=0.5)
    away = view_of(story.until("second_look"))
    assert not any(step["is_current"] or step["is_done"] or step["at"] for step in away["steps"])
    heal(story)
    again = view_of(story.until("shifting"))
    assert [step["is_current"] for step in again["steps"]] == [True, False, False]
    (stage,) = again["approval_stages"]
    assert (stage["given"], stage["missing"], stage["is_entered"]) == (0, 1, False)
    assert again["approvals"][0]["void"] == "before_crossing" and not again["approvals"][0]["was_used"]
    for _ in range(6):
        assert story.turn().step_index == 0
    assert story.codes()[-1] == "awaiting_approval"
    approve(story)
    story.until("promoted")


def approve(story: Story) -> None:
    """Another person's approval of step 2."""
    story.rollout.refresh_from_db()
    actions.approve(actor=make_admin(), rollout=story.rollout, expected_version=story.rollout.version, stage="step 2")


def test_a_person_convicts_or_ends_it_at_once() -> None:
    story = Story(second_look=LONG)
    crossed(story)
    assert act(story, actions.roll_back, "It leaks.").state == "rolling_back"
    assert story.until("rolled_back", turns=8).confirmed_at is not None


@pytest.mark.takes("rollout: shadowing → second_look", "rollout: second_look → shadowing")
def test_a_crossing_of_shadowing_begins_again_there() -> None:
    story = Story(second_look=LOOKS, shadow=SHADOW)
    story.until("shadowing", turns=6)
    for _ in range(20):
        story.gateway.count(story.model.slug, story.candidate.digest, attempts=20, errors=20)
        if story.turn().state == "second_look":
            break
    assert story.route().mirror_bp == 0
    assert story.until("shadowing", turns=8).mirror_bp == 1000


WRITES = {
    "withdraw": (engine_effects, "_withdraw"), "zero": (rollback, "note_acknowledged_zero"),
    "confirm": (rollback, "note_withdrawn"), "begin": (engine_effects, "_weigh"), "convict": (engine_effects, "_roll_back"),
}  # fmt: skip


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_an_engine_that_dies_at_any_write_doubles_nothing(
    write: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(second_look=LOOKS)
    story.until("shifting")
    story.turn()
    story.gateway.set_arm(story.candidate.digest, error_frac=0.5)
    died = dying_at(*WRITES[write], monkeypatch, is_done=is_done)
    for _ in range(120):
        try:
            story.turn()
        except Died:
            story.engine.lead.give_back()
            story.engine = story.new_engine()
        if story.rollout.state == "rolled_back":
            break
    assert died and story.rollout.state == "rolled_back" and len(story.rollout.crossings) == 1
    taken = DecisionRecord.objects.filter(rollout=story.rollout).exclude(action="hold").order_by("pk")
    assert list(taken.values_list("action", flat=True)) == ["request", "start", "withdraw", "start", "roll_back"]
    assert Event.objects.filter(verb="rollout.second_look").count() == 1
    assert view_of(story.rollout)["users"]["errors"] == 0


class Died(BaseException):
    """The engine's process ended."""


def dying_at(module: Any, name: str, monkeypatch: pytest.MonkeyPatch, *, is_done: bool) -> list[str]:
    """Lets the engine die once at this write, after it if `is_done`; returns the list of its calls, to be filled."""
    write, calls = getattr(module, name), list[str]()

    def dies(*args: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == 1 and not is_done:
            raise Died
        written = write(*args, **named)
        if len(calls) == 1:
            raise Died
        return written

    monkeypatch.setattr(module, name, dies)
    return calls
