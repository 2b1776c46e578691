"""A rollout in replicas: its servers come ahead of the weight, agents place them, and what has no room is not opened."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import StateChanged
from rollouts.actions.tick_records import ENGINE
from rollouts.core.replay import replay
from rollouts.core.tick_history import rows_in
from rollouts.engine import surge
from rollouts.models import DecisionRecord
from rollouts.queries.replay import history_of
from serving.models import Node, Replica, ReplicaTarget, Route, Server
from serving.targets.actions.replicas import continue_placing, scale_release
from serving.traffic.queries.admission import admissions_of
from serving.traffic.queries.endpoints import HEARD_WITHIN
from tests.core.test_capacity_plan import CAPACITY
from tests.flows.test_engine_people import act, turns
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.worlds.factories import make_node, make_server, resealed
from tests.support.worlds.rollout_setup import report_for
from tests.support.worlds.rollout_story import Story

pytestmark = pytest.mark.django_db(transaction=True)
AGENT = Actor.system("agent:local")


@pytest.fixture(autouse=True)
def _ask_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surge, "RETRY_S", 0.0)


def heartbeat(*, is_up: bool = True) -> list[str]:
    """The agents place what is to be placed, and where `is_up` bring it up; what they could not."""
    troubles = continue_placing(actor=AGENT)
    for one in Replica.objects.filter(is_wanted=True).exclude(state="ready") if is_up else ():
        Replica.objects.filter(pk=one.pk).update(state="ready")
        make_server(one, http_port=9000 + 3 * one.pk)
    return troubles


def in_replicas(stable: int, **policy: Any) -> Story:
    """The candidate of a stable release with so many replicas."""
    story = Story(**policy)
    assert story.stable is not None
    scale_release(
        actor=story.admin, release=story.stable, environment=story.environment, replicas=stable, reason="more users"
    )
    heartbeat()
    return story


def asked(story: Story) -> int | None:
    return ReplicaTarget.objects.filter(release=story.candidate).values_list("replicas", flat=True).first()


def waits(story: Story, needed: int) -> bool:
    story.turn()
    return f"needs {needed} servers of r2" in story.rollout.reason


def until_it_waits(story: Story, needed: int) -> None:
    for _ in range(40):
        if waits(story, needed):
            return
    raise AssertionError((story.rollout.state, story.rollout.reason, story.codes()))


def test_the_candidates_servers_come_ahead_of_each_weight_and_the_new_stable_keeps_as_many() -> None:
    story = in_replicas(4, instant_window_s=600)
    story.until("shifting")
    story.turn()
    assert story.rollout.weight_bp == 2500 and asked(story) == 2  # 25 % takes one of four; what 50 % takes is asked for
    until_it_waits(story, 2)
    assert story.rollout.weight_bp == 2500
    assert story.rollout.reason.startswith("Ready to go on, but 50 % needs 2 servers of r2, and 1 answers: waiting for")
    heartbeat()
    story.turn()
    assert story.rollout.weight_bp == 5000
    until_it_waits(story, 4)  # of 95 %, the bake
    heartbeat()
    rollout = story.until("promoted")
    assert asked(story) == 4 and Server.objects.filter(replica__release=story.candidate).count() == 4
    heartbeat()
    for release in (story.stable, story.candidate):  # the way back is kept whole while the promotion may be undone
        assert Replica.objects.filter(release=release, is_wanted=True).count() == 4
    said = ReplicaTarget.objects.get(release=story.candidate)
    assert (said.changed_by, said.version) == (ENGINE.name, 2) and said.reason.startswith(
        f"Rollout {rollout.pk} goes to"
    )


def test_the_first_weight_waits_for_its_servers_too() -> None:
    story = in_replicas(8)
    until_it_waits(story, 2)
    assert (story.rollout.state, story.rollout.weight_bp, asked(story)) == ("preparing", 0, 2)
    heartbeat()
    story.until("shifting")


def test_a_first_release_waits_for_those_that_it_declares() -> None:
    story = Story(with_stable=False)
    resealed(story.candidate, envelope={"lifecycle": {"replicas": {"min": 2}}})
    for _ in range(3):
        story.turn(0)
    assert story.rollout.state == "preparing"
    assert "100 % needs 2 servers of r1, and 1 answers" in story.rollout.reason
    heartbeat()
    story.turn(0)
    assert story.rollout.state == "shifting" and asked(story) is None


def test_a_replayed_rollout_waits_for_servers_when_it_did() -> None:
    story = in_replicas(4)
    until_it_waits(story, 2)
    turns(story, 3)
    heartbeat()
    until_it_waits(story, 4)
    rows = list(rows_in(history_of(story.rollout)))
    told = DecisionRecord.objects.filter(rollout=story.rollout, actor=ENGINE.name)
    again = {one.tick: one.decision for one in replay(rows, story.rollout.effective_policy)}
    shared = [(one.tick, one.action, one.code) for one in told.order_by("tick") if one.tick in again]
    assert [code for _, _, code in shared].count("needs_replicas") == 2
    assert [(tick, again[tick].action.value, again[tick].code.value) for tick, _, _ in shared] == shared
    assert sum(one.code == "needs_replicas" for one in again.values()) >= 5


def test_one_replica_is_never_asked_for_and_costs_one_look() -> None:
    story = Story()
    story.until("shifting")
    story.gateway.traffic(50)
    with CaptureQueriesContext(connection) as taken:
        story.engine.step()
    assert sum("serving_scale" in one["sql"] for one in taken.captured_queries) == 1
    story.until("promoted")
    assert not ReplicaTarget.objects.exists() and "needs_replicas" not in story.codes()


def test_what_somebody_asked_for_and_what_is_declared_is_never_scaled_down() -> None:
    story = Story()
    resealed(story.stable, envelope={"lifecycle": {"replicas": {"min": 2}}})  # type: ignore[arg-type]
    scale_release(
        actor=story.admin, release=story.candidate, environment=story.environment, replicas=3, reason="to be safe"
    )
    heartbeat()
    story.until("promoted")
    assert asked(story) == 3 and ReplicaTarget.objects.get(release=story.candidate).version == 1


def test_it_is_told_why_no_server_comes() -> None:
    Node.objects.all().delete()
    make_node("local", facts={"memory_bytes": 1000 << 20})
    story = Story()
    needs = {"host": {"memory_mib_min": 400}}
    for release in (story.stable, story.candidate):
        resealed(release, envelope=needs)  # type: ignore[arg-type]
    Replica.objects.update(claim={"memory_mib": 400, "devices": {}})
    resealed(story.stable, envelope={**needs, "lifecycle": {"replicas": {"min": 2}}})  # type: ignore[arg-type]
    until_it_waits(story, 2)
    assert heartbeat() != []
    turns(story, 3)
    assert "waiting for one more. No node has room for" in story.rollout.reason
    assert "200 MiB of memory are left of 1000, and it declares 400." in story.rollout.reason


def test_an_envelope_that_declares_fewer_is_told_and_not_overruled() -> None:
    story = Story()
    resealed(story.candidate, envelope={"lifecycle": {"replicas": {"max": 1}}})
    resealed(story.stable, envelope={"lifecycle": {"replicas": {"min": 4}}})  # type: ignore[arg-type]
    until_it_waits(story, 2)
    turns(story, 2)
    assert asked(story) is None and "its envelope declares no more" in story.rollout.reason


def test_taking_it_back_waits_for_no_server_and_forgets_how_many_were_asked_for() -> None:
    story = in_replicas(4)
    until_it_waits(story, 2)
    story.gateway.set_arm(story.candidate.digest or "", error_frac=1.0)
    story.until("rolled_back")
    assert asked(story) is None


def test_a_person_may_skip_the_proof_and_not_the_servers() -> None:
    story = in_replicas(4)
    story.until("shifting")
    for verb, weight, needed in (("advance", "50 %", 2), ("promote_now", "95 %", 4)):
        with pytest.raises(StateChanged, match=f"{weight} needs {needed} servers of r2, and 1 answers") as refused:
            act(story, verb)
        assert refused.value.code == "needs_replicas"
        assert (
            f"/models/{story.model.slug}/releases/r2/replicas environment=production replicas:=N"
            in refused.value.message
        )
    story.turn()
    heartbeat()
    assert act(story, "advance").weight_bp == 5000
    story.turn()
    scale_release(
        actor=story.admin, release=story.candidate, environment=story.environment, replicas=4, reason="at once"
    )
    heartbeat()
    assert act(story, "promote_now").state == "baking"
    story.until("promoted")


def test_servers_of_a_node_that_is_silent_are_not_counted_for_more_weight() -> None:
    """The node may have died with them: for a minute nobody says so, and the weight would rest on the one that is left."""
    story = in_replicas(4)
    until_it_waits(story, 2)
    heartbeat()
    newest = Replica.objects.filter(release=story.candidate).latest("pk")
    silent = make_node("silent", seen_at=timezone.now() - 2 * HEARD_WITHIN)
    Replica.objects.filter(pk=newest.pk).update(node=silent)
    turns(story, 3)
    assert (story.rollout.state, story.rollout.weight_bp) == ("shifting", 2500)
    assert story.rollout.reason.endswith("waiting for one more. 1 more is on a node that was not heard of lately.")
    with pytest.raises(StateChanged, match="50 % needs 2 servers of r2, and 1 answers"):
        act(story, "advance")
    Node.objects.update(seen_at=timezone.now() - 2 * HEARD_WITHIN)  # whoever looks was away, or the database
    story.turn()
    assert story.rollout.weight_bp == 5000


def proven(per_s: float) -> list[dict[str, Any]]:
    return [{"gate": "capacity", "verdict": "passed", "evidence": {**CAPACITY, "capacity_per_s": per_s}}]


def test_what_a_server_is_proven_for_is_not_exceeded() -> None:
    story = Story()
    report_for(story.candidate, gates=proven(0.01))
    report_for(story.stable, gates=proven(1e9))  # type: ignore[arg-type]
    story.until("shifting")
    turns(story)
    assert (story.rollout.state, story.rollout.weight_bp) == ("shifting", 2500)
    assert (
        "at 50 % r2 would get" in story.rollout.reason and "its one server is proven for 0.01." in story.rollout.reason
    )
    assert story.codes()[-1] == "needs_replicas"
    with pytest.raises(StateChanged, match="Advancing skips waiting for proof, not for servers: at 50 % r2") as refused:
        act(story, "advance")
    assert refused.value.code == "no_room"
    rows = list(rows_in(history_of(story.rollout)))
    assert list(replay(rows, story.rollout.effective_policy))[-1].decision.facts["because"] == "no_room"
    with CaptureQueriesContext(connection) as taken:
        story.turn()
    assert not any("validators_report" in one["sql"] for one in taken.captured_queries)  # read once


def test_the_bound_rests_on_what_was_proven_when_the_candidate_came() -> None:
    story = Story()
    report_for(story.candidate, gates=proven(1e9))
    story.until("shifting")
    route = Route.objects.get(model=story.model)
    assert route.proven[str(story.candidate.pk)]["per_s"] == 1e9
    report_for(story.candidate, gates=proven(2e9))
    story.until("promoted")
    route.refresh_from_db()
    assert route.stable == story.candidate and route.proven[str(story.candidate.pk)]["per_s"] == 1e9
    assert admissions_of(story.candidate)[story.environment.pk].source == "proven"


def test_stable_must_be_able_to_take_it_all_back() -> None:
    story = Story()
    report_for(story.stable, gates=proven(0.01))  # type: ignore[arg-type]
    turns(story)
    assert story.rollout.weight_bp == 2500 and "r1, the way back, may have to take" in story.rollout.reason
