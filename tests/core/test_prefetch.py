"""Which releases' files a node keeps ready, as far as they fit, and that the first weight waits for those that are under way."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollouts.core.decide import decide
from rollouts.core.decision import Action, Code
from rollouts.core.lifecycle import RolloutState
from rollouts.core.room import Room
from serving.core.prefetch import Kept, Reason, plan_to_keep
from tests.core.test_decide import BREACHES, snapshot
from tests.core.test_room import SHADOWED

S = RolloutState


def kept(name: str, reason: Reason = Reason.STABLE, **blobs: int) -> Kept:
    return Kept(name, reason, blobs)


def names(every: tuple[Kept, ...]) -> list[str]:
    return [one.release for one in every]


def test_candidates_go_before_what_is_served_and_that_before_stable_ones() -> None:
    asked = [kept("s", a=5), kept("w", Reason.SERVED, b=5), kept("c", Reason.CANDIDATE, d=5), kept("t", e=5)]
    plan = plan_to_keep(asked, 15, set())
    assert names(plan.keep) == ["c", "w", "s"] and names(plan.no_room) == ["t"]
    assert plan.blobs == {"a", "b", "d"}


def test_a_blob_takes_its_room_once_and_none_where_a_server_uses_it() -> None:
    plan = plan_to_keep([kept("one", shared=8, own=1), kept("two", shared=8, other=1)], 10, set())
    assert names(plan.keep) == ["one", "two"]
    assert names(plan_to_keep([kept("one", shared=8, own=1)], 1, {"shared"}).keep) == ["one"]


def test_what_is_too_large_keeps_out_nothing_that_is_smaller() -> None:
    plan = plan_to_keep([kept("large", Reason.CANDIDATE, a=11), kept("small", b=10)], 10, set())
    assert (names(plan.no_room), names(plan.keep)) == (["large"], ["small"])


SHARED = st.dictionaries(st.sampled_from("abcdef"), st.just(3), min_size=1)


@given(
    asked=st.lists(
        st.builds(Kept, st.uuids().map(str), st.sampled_from(Reason), SHARED), unique_by=lambda one: one.release
    ),
    room=st.integers(-5, 30),
    in_use=st.sets(st.sampled_from("abcdef")),
)
def test_never_more_than_there_is_room_for_and_nothing_is_forgotten(
    asked: list[Kept], room: int, in_use: set[str]
) -> None:
    plan = plan_to_keep(asked, room, in_use)
    assert sorted(names(plan.keep) + names(plan.no_room)) == sorted(one.release for one in asked)
    assert 3 * len(plan.blobs - in_use) <= max(room, 0)
    for one in plan.no_room:
        assert 3 * len(one.blobs.keys() - plan.blobs - in_use) > 0


PREPARED: dict[str, Any] = {"state": S.PREPARING, "step_index": -1, "weight_bp": 0}
FETCHING = Room(fetching=("b", "c"), ready_on=2, may_serve=5)


def test_the_first_weight_waits_for_every_node_that_fetches_the_files_still() -> None:
    held = decide(snapshot(**PREPARED, room=FETCHING))
    assert (held.action, held.code) == (Action.HOLD, Code.PREPARING)
    assert (
        held.reason
        == "r2 is warm, and its files are ready on 2 of 5 nodes that may serve it: b and c fetch them still."
    )
    assert (held.facts["fetching"], held.facts["ready_on"], held.facts["held"]) == (["b", "c"], 2, "start")
    one = decide(snapshot(**PREPARED, room=Room(fetching=("b",), ready_on=1, may_serve=2)))
    assert one.reason.endswith("1 of 2 nodes that may serve it: b fetches them still.")
    many = decide(snapshot(**PREPARED, room=Room(fetching=tuple("abcde"), may_serve=5)))
    assert many.reason.endswith("0 of 5 nodes that may serve it: a, b, c and 2 more fetch them still.")
    assert decide(snapshot(**PREPARED, room=Room(ready_on=4, may_serve=4))).action is Action.START


def test_copies_wait_too_since_a_weight_follows_them_and_nothing_later_does() -> None:
    assert decide(snapshot(**PREPARED, policy=SHADOWED, room=FETCHING)).code is Code.PREPARING
    assert decide(snapshot(room=FETCHING)).action is Action.ADVANCE
    for breach, code in BREACHES:
        assert decide(snapshot(**breach, room=FETCHING)).code is code


def test_nothing_of_it_is_kept_beside_the_counts_of_a_tick() -> None:
    assert FETCHING.as_json() == {} and Room.from_json(Room(4, 1, 4, ready_on=3).as_json()) == Room(4, 1, 4)
