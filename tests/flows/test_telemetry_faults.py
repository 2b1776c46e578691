"""The telemetry fault matrix: every way in which counters can be away or wrong, in every live state, through the real engine.

Not knowing never advances and never takes back; it is said, and it passes by itself. What is proven acts, blind or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ledger.models import Event
from rollouts import actions
from rollouts.models import DecisionRecord
from serving.models import Server
from tests.support.worlds.telemetry_world import BAD, SECONDS, TOTAL, World

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every turn is a second, however soon the next one comes; the gateways acknowledge between two ticks."""
    with SECONDS.installed(monkeypatch, is_frozen=True):
        yield


# -- blind in every state ----------------------------------------------------------------------------------------------

#: What is done to the counters · the code that says so · words of the sentence.
GATEWAY_FAULTS: dict[str, tuple[Callable[[World], object], str, tuple[str, ...]]] = {
    "unreachable": (lambda w: w.telemetry.fail("unreachable"), "provider_down", ("gateway-1", "unreachable")),
    "timeout": (lambda w: w.telemetry.fail("timeout"), "provider_down", ("gateway-1", "timeout")),
    "malformed": (lambda w: w.telemetry.fail("malformed"), "provider_down", ("gateway-1", "malformed")),
    "bug": (lambda w: w.telemetry.crash(), "provider_down", ("gateway-1", "a bug in the adapter")),
    "frozen": (lambda w: [one.freeze() for one in w.gateways.values()], "provider_down", ("gateway-1", "old")),
    "an_hour_behind": (lambda w: w.telemetry.skew(-3600.0), "provider_down", ("gateway-1", "3600 s old")),
    "an_hour_ahead": (lambda w: w.telemetry.skew(3600.0), "provider_down", ("gateway-1", "3600 s ahead")),
    "half_blind": (lambda w: w.telemetry.fail("timeout", "gateway-2"), "provider_down", ("gateway-2", "timeout")),
}
METRICS_FAULTS = ["server_error", "timeout", "unreachable", "not_a_number", "no_data", "stale"]


def blinded(world: World, code: str, words: tuple[str, ...]) -> None:
    """Turns with traffic that would prove everything, were it seen: nothing moves, and it is said why."""
    state, weight = world.rollout.state, world.rollout.weight_bp
    for _ in range(5):
        world.turn(seconds=4)
        assert (world.rollout.state, world.rollout.weight_bp) == (state, weight), world.rollout.reason
        assert world.route().candidate_bp == weight
    last = world.view()["decisions"][0]
    assert (last["action"], last["code"]) == ("hold", code), world.codes()
    assert all(word in last["reason"] for word in words), last["reason"]
    if state != "paused":  # there the person's own words stay in front
        assert all(word in world.view()["reason"] for word in words)


def walk_blind(world: World, fault: Callable[[World], object], code: str, words: tuple[str, ...]) -> None:
    """The fault in every state of one rollout's life, healed each time, to a rollback that counters cannot confirm."""
    world.until("shifting")
    fault(world)
    blinded(world, code, words)
    world.heal()
    world.until_weight(5000)  # shifting goes on by itself

    version = world.rollout.version
    actions.pause(actor=world.admin, rollout=world.rollout, expected_version=version, reason="Lunch.")
    world.rollout.refresh_from_db()
    fault(world)
    blinded(world, code, words)
    world.heal()
    for _ in range(3):
        assert world.turn().state == "paused"
    assert world.codes()[-1] == "paused"
    version = world.rollout.version
    actions.resume(actor=world.admin, rollout=world.rollout, expected_version=version, reason="Back.")

    world.until("baking")
    fault(world)
    blinded(world, code, words)
    world.heal()
    world.turn(0)
    world.turn(0)
    assert "roll_back" not in world.actions() and world.rollout.state in {"baking", "promoted"}


@pytest.mark.parametrize("name", GATEWAY_FAULTS)
def test_blind_gateways_hold_in_every_state_and_their_gap_is_counted_once(name: str) -> None:
    fault, code, words = GATEWAY_FAULTS[name]
    world = World(gateways=2 if name == "half_blind" else 1)
    walk_blind(world, fault, code, words)
    world.turn(0)
    assert world.counted() == world.served()
    world.until("promoted")


@pytest.mark.parametrize("why", METRICS_FAULTS)
def test_a_blind_prometheus_holds_in_every_state_and_its_gap_is_counted_once(why: str) -> None:
    world = World(external=True)
    walk_blind(world, lambda w: w.metrics.fail(why), "no_data", ("checkout", why))
    world.until("promoted")


def test_a_series_that_vanishes_holds_as_a_server_that_is_away_does() -> None:
    world = World(external=True)
    world.until("shifting")
    kept = world.orders[world.candidate.name]
    world.metrics.drop(TOTAL, release=world.candidate.name)
    world.exposes = False
    blinded(world, "no_data", ("checkout of the candidate", "no_data"))
    world.exposes = True
    world.metrics.set(TOTAL, kept, release=world.candidate.name)
    world.until("promoted")


def test_without_a_configured_prometheus_an_external_guard_holds_and_says_which_setting_is_missing() -> None:
    world = World(external=True)
    world.reader.metrics = None
    world.until("shifting")
    blinded(world, "no_data", ("PROMETHEUS_URL",))


def test_a_look_between_two_ticks_forgets_no_reading() -> None:
    world = World(external=True)
    world.bring("shifting")
    before = world.reader.latest(world.rollout.pk)["external_checkout"]
    assert world.engine.poll_pending()  # at those rollouts alone that more than time may move on: none of them
    assert world.reader.latest(world.rollout.pk)["external_checkout"] == before
    assert not isinstance(before, str)


def test_a_guard_that_need_not_have_data_holds_nothing() -> None:
    world = World(external={"must_have_data": False})
    world.metrics.fail("unreachable")
    world.until("promoted")


# -- rollback while blind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["unreachable", "frozen", "an_hour_ahead", "half_blind"])
def test_an_abort_while_blind_ends_and_says_that_counters_could_not_confirm_it(name: str) -> None:
    fault, _, _ = GATEWAY_FAULTS[name]
    world = World(gateways=2 if name == "half_blind" else 1)
    world.until("shifting")
    world.turn()
    fault(world)
    world.turn(seconds=20)
    version = world.rollout.version
    actions.abort(actor=world.admin, rollout=world.rollout, expected_version=version, reason="A hunch.")
    assert world.route().candidate_bp == 0
    world.obey()
    for _ in range(6):  # counters are waited for 30 s
        assert world.turn(50, seconds=4.5).state == "rolling_back"
    world.until("rolled_back", turns=4, requests=50)
    assert world.rollout.zero_at is not None and world.rollout.confirmed_at is None
    assert "counters could not confirm it" in world.view()["reason"]


def test_a_rollback_whose_counters_come_back_in_time_is_confirmed() -> None:
    world = World()
    world.bring("rolling_back")
    world.telemetry.fail("timeout")
    world.obey()
    for _ in range(5):
        assert world.turn(50).state == "rolling_back"
    world.heal()
    done = world.until("rolled_back", turns=6, requests=50)
    assert done.zero_at <= done.confirmed_at and "the counters show it" in done.reason


def test_a_blind_prometheus_holds_up_no_rollback() -> None:
    world = World(external=True)
    world.bring("shifting")
    world.metrics.fail("timeout")
    world.break_candidate()
    world.until("rolling_back", turns=6)
    assert world.until("rolled_back", turns=6).confirmed_at is not None


# -- what is proven acts, blind or not ---------------------------------------------------------------------------------


def test_one_gateway_of_two_proves_a_breach_while_the_other_is_blind() -> None:
    world = World(gateways=2)
    world.bring("shifting")
    world.telemetry.fail("timeout", "gateway-2")
    world.turn()
    world.break_candidate()
    world.until("rolling_back", turns=6)
    breach = DecisionRecord.objects.get(rollout=world.rollout, action="roll_back")
    assert (
        breach.code in {"worse_than_stable", "objective_breached", "mostly_failing"}
        and breach.facts["guard"] == "errors"
    )


def test_a_server_that_is_gone_is_seen_without_any_counter() -> None:
    world = World()
    world.bring("shifting")
    world.telemetry.fail("unreachable")
    world.turn()
    Server.objects.filter(replica__release=world.candidate).update(is_serving=False)
    world.until("rolling_back", turns=4)
    assert "servers_gone" in world.codes()


def test_what_happened_in_the_dark_counts_when_the_light_is_back() -> None:
    world = World()
    world.bring("shifting")
    world.telemetry.fail("timeout")
    world.break_candidate()
    for _ in range(4):
        assert world.turn().state == "shifting"
    world.heal()
    world.until("rolling_back", turns=6)
    assert DecisionRecord.objects.get(rollout=world.rollout, action="roll_back").facts["guard"] == "errors"


def test_failing_orders_take_a_release_back_though_every_answer_is_well() -> None:
    world = World(external=True)
    world.bring("shifting")
    world.orders_failed = {world.stable.name: 0.01, world.candidate.name: 0.2}
    world.until("rolling_back", turns=10)
    breach = DecisionRecord.objects.get(rollout=world.rollout, action="roll_back")
    assert breach.facts["guard"] == "external_checkout" and "Checkout" in breach.reason
    assert world.view()["arms"]["total"]["candidate"]["bad"]["errors"] == 0


# -- counters that begin anew ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["shifting", "paused", "baking"])
def test_a_restart_is_counted_from_zero_and_nothing_twice(state: str) -> None:
    world = World()
    world.bring(state)
    world.turn(0)
    before = world.counted()
    assert before == world.served()
    for gateway in world.gateways.values():
        gateway.restart()
    world.obey()
    world.turn()
    world.turn(0)
    assert world.counted() == before + world.served()
    assert "roll_back" not in world.actions()


@pytest.mark.parametrize("state", ["shifting", "paused", "baking"])
def test_a_fall_without_a_restart_counts_nothing_and_holds_until_telemetry_was_whole(state: str) -> None:
    stage = {"min_s": 10, "min_samples": 40, "deadline_s": 600}
    world = World(steps=[{"weight_pct": 25, **stage}], bake=stage)
    world.bring(state)
    world.turn(0)
    before, weight = world.counted(), world.rollout.weight_bp
    assert before == world.served()
    world.telemetry.reset()
    world.turn(20)
    world.turn(0)
    lost = world.served() - before
    assert world.counted() == before
    world.turn()
    world.turn(0)
    assert world.counted() == world.served() - lost
    assert "roll_back" not in world.actions() and world.rollout.weight_bp == weight
    assert "no_data" in world.codes() or state == "paused"
    if state == "shifting":
        world.until("promoted", turns=200)


@pytest.mark.parametrize("state", ["shifting", "paused", "baking"])
def test_prometheus_counters_that_begin_anew_count_nothing_twice(state: str) -> None:
    world = World(external=True)
    world.bring(state)
    before = world.orders_counted()
    for release in (world.stable, world.candidate):
        world.metrics.set(TOTAL, 3, release=release.name)
        world.metrics.set(BAD, 0, release=release.name)
    world.turn()
    assert world.orders_counted() in {before, 0}  # nothing was added; or a new stage began
    assert "roll_back" not in world.actions()
    if state == "shifting":
        world.until("promoted")


# -- clocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [1, -1])
def test_a_wrong_clock_of_the_engines_host_moves_nothing(hours: int) -> None:
    """The engine goes by the database's time: no minimum is over early, no deadline passes, nothing is stale."""
    stage = {"min_s": 900, "min_samples": 40, "deadline_s": 1800}
    world = World(steps=[{"weight_pct": 25, **stage}], bake=stage, on_undecided="roll_back")
    world.bring("shifting")
    SECONDS.host_ahead_s = 3600.0 * hours
    for _ in range(5):
        assert world.turn().state == "shifting"
    assert world.rollout.weight_bp == 2500 and world.codes()[-1] == "need_more"
    elapsed = world.view()["decisions"][0]["facts"]["elapsed_s"]
    assert 0 <= elapsed < 60


@pytest.mark.parametrize("hours", [1, -1])
def test_a_wrong_clock_of_whoever_acknowledges_holds_up_no_rollback(hours: int) -> None:
    world = World()
    world.bring("shifting")
    SECONDS.host_ahead_s = 3600.0 * hours
    version = world.rollout.version
    actions.abort(actor=world.admin, rollout=world.rollout, expected_version=version, reason="A hunch.")
    world.obey()
    done = world.until("rolled_back", turns=15, requests=50)
    assert done.confirmed_at is not None
    SECONDS.host_ahead_s = 0.0
    assert abs((done.confirmed_at - SECONDS.now()).total_seconds()) < 60


# -- blind for too long ------------------------------------------------------------------------------------------------


def blind_events(world: World) -> int:
    return Event.objects.filter(verb="rollout.blind", subject_id=str(world.rollout.pk)).count()


def test_blind_for_too_long_is_said_loudly_once_each_time() -> None:
    world = World(blind_limit_s=120)
    world.until("shifting")
    for times in (1, 2):
        world.telemetry.fail("timeout")
        for i in range(1, 10):
            world.turn(20, seconds=20)
            assert world.rollout.state == "shifting" and world.rollout.weight_bp == 2500
            assert blind_events(world) == times - (i < 7), i
        last = world.view()["decisions"][0]
        assert last["code"] == "blind" and "blind for over 120 s" in last["reason"] and "gateway-1" in last["reason"]
        assert world.view()["reason"] == last["reason"]
        world.heal()
        if times == 1:
            world.until_code("need_more", requests=1)
    world.until("promoted")
    assert blind_events(world) == 2


def test_blind_for_too_long_takes_back_only_where_the_policy_asks_for_it() -> None:
    world = World(blind_limit_s=120, on_blind="roll_back")
    world.until("shifting")
    world.telemetry.fail("timeout")
    world.turn(seconds=5)
    for _ in range(5):
        assert world.turn(seconds=20).state == "shifting"
    assert world.turn(seconds=25).state == "rolling_back" and world.codes()[-1] == "blind"
    assert "The policy then rolls back" in DecisionRecord.objects.get(rollout=world.rollout, action="roll_back").reason


def test_a_deadline_that_passes_in_the_dark_holds() -> None:
    stage: dict[str, Any] = {"min_s": 0, "min_samples": 40, "deadline_s": 60}
    world = World(steps=[{"weight_pct": 25, **stage}])
    world.until("shifting")
    world.telemetry.fail("timeout")
    for _ in range(4):
        world.turn(seconds=20)
    assert world.rollout.state == "shifting" and world.rollout.weight_bp == 2500
    assert "deadline of 60 s has passed" in world.view()["reason"] and "gateway-1" in world.view()["reason"]
