"""When a model may sleep, what is never taken for quiet, and who makes room: the least recently used, and no more than it takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.environments.core.sleep_lifecycle import SleepRule
from serving.targets.core.placement import Claim, Demand, Device, Spot, fit_in
from serving.targets.core.sleep import (
    FRESH_S,
    LEAST_S,
    MOST_S,
    MOST_WAKE_S,
    UNKNOWN_WAKE_S,
    Count,
    Quiet,
    Yielder,
    heard,
    is_demand,
    rule_problem,
    to_make_room,
    wake_s,
    why_awake,
)

A, B = Count("a1", 5), Count("b1", 7)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (SleepRule(), ""),
        (SleepRule(LEAST_S, LEAST_S), ""),
        (SleepRule(None, MOST_S), ""),
        (SleepRule(LEAST_S - 1), "unload_after_s is 299; it is from 300 (longer than loading"),
        (SleepRule(MOST_S + 1), "unload_after_s is 2592001"),
        (SleepRule(None, 60), "yields_after_s is 60"),
        (SleepRule(600, 601), "yields_after_s (601) is more than unload_after_s (600)"),
    ],
)
def test_a_rule_that_makes_no_sense_says_why(rule: SleepRule, problem: str) -> None:
    assert rule_problem(rule).startswith(problem) and bool(rule_problem(rule)) is bool(problem)


def test_quiet_begins_when_all_have_told_the_same_again() -> None:
    first = heard(Quiet(), {"a": A, "b": B}, 100)
    assert (first.since, first.read_at, first.silent) == (100, 100, ())
    again = heard(first, {"a": A, "b": B}, 102)
    assert (again.since, again.read_at) == (100, 102)
    assert heard(again, {"a": A, "b": replace(B, requests=8)}, 104).since == 104


def test_a_gateway_that_is_silent_makes_nothing_known_and_has_lost_nothing() -> None:
    last = heard(heard(Quiet(), {"a": A, "b": B}, 100), {"a": A, "b": None}, 102)
    assert (last.since, last.read_at, last.silent) == (100, 100, ("b",))
    assert last.is_known(100 + FRESH_S) and not last.is_known(101 + FRESH_S)
    assert heard(last, {"a": A, "b": B}, 500).since == 100
    assert heard(last, {"a": A, "b": Count("b2", 0)}, 500).since == 500


def test_without_a_gateway_nothing_is_known() -> None:
    assert heard(Quiet(), {}, 100) == Quiet()
    assert heard(heard(Quiet(), {"a": A}, 100), {}, 102).read_at == 100


def test_one_that_is_new_or_began_anew_is_not_known_to_have_been_quiet() -> None:
    last = heard(Quiet(), {"a": A}, 100)
    assert heard(last, {"a": Count("a2", 0)}, 102).since == 102
    assert heard(last, {"a": A, "c": Count("c1", 0)}, 102).since == 102
    gone = heard(heard(last, {"a": A, "c": Count("c1", 0)}, 102), {"a": A}, 104)
    assert (gone.since, set(gone.counts)) == (102, {"a"})


def test_only_a_request_is_a_demand() -> None:
    last = heard(Quiet(), {"a": A}, 100)
    for gateways, asked in (
        ({"a": A}, False),
        ({"a": None}, False),
        ({"a": replace(A, requests=6)}, True),
        ({"a": Count("a2", 0)}, False),
        ({"a": Count("a2", 1)}, True),
        ({"a": A, "c": Count("c1", 0)}, False),
        ({"a": A, "c": Count("c1", 3)}, True),
    ):
        assert is_demand(last, heard(last, gateways, 102)) is asked
    assert not is_demand(Quiet(), last), "what was counted before anybody looked"


def test_what_a_person_had_sleep_is_woken_only_by_what_found_it_asleep() -> None:
    last = heard(Quiet(), {"a": Count("a1", 5, 2)}, 100)
    for gateways, asked in (
        ({"a": Count("a1", 9, 2)}, False),  # what ends now may have begun before
        ({"a": Count("a1", 9, 3)}, True),
        ({"a": Count("a2", 4)}, False),
        ({"a": Count("a2", 4, 1)}, True),
        ({"a": Count("a1", 5, 2), "c": Count("c1", 3)}, False),
        ({"a": Count("a1", 5, 2), "c": Count("c1", 3, 3)}, True),
    ):
        assert is_demand(last, heard(last, gateways, 102), is_by_hand=True) is asked
    assert not is_demand(Quiet(), last, is_by_hand=True)


COUNTS = st.none() | st.builds(Count, st.sampled_from(["1", "2"]), st.integers(0, 3))


@given(st.lists(st.dictionaries(st.sampled_from("abc"), COUNTS), max_size=8))
def test_what_is_quiet_was_told_to_be_so_by_everybody(readings: list[dict[str, Count | None]]) -> None:
    quiet = Quiet()
    for at, gateways in enumerate(readings):
        before, quiet = quiet, heard(quiet, gateways, float(at))
        whole = bool(gateways) and None not in gateways.values()
        assert (quiet.read_at == at) is whole
        assert is_demand(before, quiet) <= (quiet.since == at)
        if quiet.since is not None and quiet.since < at:
            assert all(before.counts[name] == one for name, one in gateways.items() if one is not None)
        if whole:
            assert quiet.counts == gateways


QUIET = heard(heard(Quiet(), {"a": A}, 1000), {"a": A}, 2000)


def awake(after_s: int | None = 900, quiet: Quiet = QUIET, *, now: float = 2000, **over: Any) -> str:
    return why_awake(after_s, quiet, **{"awake_since": 0.0, "needs": (), "now": now, **over})


def test_what_nobody_asked_for_long_enough_may_sleep_and_nothing_else() -> None:
    assert awake() == "" and awake(1000) == ""
    assert awake(1001) == "It was asked, woke, or had something in flight 1000 s ago; it may sleep after 1001 s."
    assert awake(None) == "Nobody said that it may sleep."
    assert awake(needs=["rollout 4 in production would go back to it"]).startswith("It is needed: rollout 4")


def test_what_was_just_woken_is_kept_for_as_long_as_it_may_be_idle() -> None:
    assert (
        awake(awake_since=1101).startswith("It was asked, woke, or had something in flight 899 s")
        and awake(awake_since=1100) == ""
    )


def test_what_is_not_known_is_never_quiet() -> None:
    assert "not known" in awake(quiet=Quiet()) and "not known" in awake(now=2011)
    silent = heard(QUIET, {"a": A, "b": None}, 5000)
    assert awake(quiet=silent, now=5000).startswith("What the gateways count is not known (b)")
    assert awake(quiet=silent, now=5000).endswith(
        "one that serves nobody any more is removed: `sluicegate api POST /gateways/b/remove --if-match '*'`."
    )


def test_a_gateway_that_is_gone_counts_no_more_until_it_is_back() -> None:
    last = heard(heard(Quiet(), {"a": A, "b": B}, 100), {"a": A, "b": None}, 2000, gone={"b", "c"})
    assert (last.since, last.read_at, last.silent, last.gone) == (100, 2000, (), ("b",))
    assert awake(quiet=last) == ""
    assert heard(last, {"a": A, "b": B}, 2002, gone={"b"}).since == 100  # it tells, whatever the control plane heard
    more = heard(last, {"a": A, "b": replace(B, requests=8)}, 2002)
    assert more.since == 2002 and is_demand(last, more)


def test_where_all_gateways_are_gone_nothing_is_known() -> None:
    last = heard(heard(Quiet(), {"a": A}, 100), {"a": None}, 2000, gone={"a"})
    assert last.read_at == 100
    assert awake(quiet=last) == "What the gateways count is not known (a), and that is never taken for quiet."


def test_how_long_a_caller_waits_is_what_was_measured() -> None:
    assert wake_s({"fetch_s": 60.0, "load_s": 1.2, "warmup_s": 0.9}) == 3 + 3
    assert wake_s({}) == UNKNOWN_WAKE_S and wake_s({"load_s": None}) == UNKNOWN_WAKE_S
    assert wake_s({"load_s": 5_000.0}) == MOST_WAKE_S


def spot(node: str, *held: int, memory: int = 100, refusal: str = "") -> Spot:
    return Spot(node, refusal, memory_mib=memory, held=tuple(Claim(one) for one in held))


def yielder(key: int, since: float, **claims: int) -> Yielder:
    return Yielder(key, since, {node: (Claim(mib),) for node, mib in claims.items()})


def test_the_least_recently_used_makes_room_and_no_more_than_it_takes() -> None:
    old, middle, new = yielder(1, 10, a=40), yielder(2, 20, a=40), yielder(3, 30, a=20)
    held = spot("a", 40, 40, 20)
    assert to_make_room(Demand(30), [held], [new, middle, old]) == (1,)
    assert to_make_room(Demand(60), [held], [new, middle, old]) == (1, 2)
    assert to_make_room(Demand(60), [held], [old, new]) == (1, 3)
    assert to_make_room(Demand(90), [held], [old, middle]) == ()


def test_what_its_room_does_not_help_is_left_awake() -> None:
    small, large = yielder(1, 10, a=10), yielder(2, 20, a=90)
    assert to_make_room(Demand(80), [spot("a", 10, 90)], [small, large]) == (2,)


def test_of_two_nodes_the_one_whose_models_were_used_least_recently() -> None:
    spots = [spot("a", 100), spot("b", 100)]
    assert to_make_room(Demand(50), spots, [yielder(1, 30, a=100), yielder(2, 20, b=100)]) == (2,)
    assert to_make_room(Demand(50), [spot("a", 100, refusal="no"), spots[1]], [yielder(1, 5, a=100)]) == ()
    assert to_make_room(Demand(50), [*spots, spot("c")], [yielder(1, 5, a=100)]) == ()


def test_a_device_is_room_too() -> None:
    held = Claim(0, {"GPU-1": None})
    gpu = Spot("a", devices={"GPU-1": Device(80_000)}, held=(held,))
    assert to_make_room(Demand(devices=1, mib_each=8000), [gpu], [Yielder(1, 5, {"a": (held,)})]) == (1,)


MODELS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab"), st.integers(1, 60)), max_size=6)


@given(models=MODELS, kept=st.dictionaries(st.sampled_from("ab"), st.integers(0, 60)), demand=st.integers(1, 120))
def test_nobody_sleeps_in_vain_and_nobody_who_was_used_later_than_need_be(
    models: list[tuple[int, str, int]], kept: dict[str, int], demand: int
) -> None:
    yielders = [yielder(key, since, **{node: mib}) for key, (since, node, mib) in enumerate(models)]
    spots = [spot(node, kept.get(node, 0), *(m for _, at, m in models if at == node), memory=100) for node in "ab"]

    def fits(sleeping: tuple[int, ...]) -> bool:
        for one in spots:
            left = list(one.held)
            for key in sleeping:
                for claim in yielders[key].claims.get(one.node, ()):
                    left.remove(claim)
            if isinstance(fit_in(Demand(demand), replace(one, held=tuple(left))), Claim):
                return True
        return False

    def last_used(sleeping: tuple[int, ...]) -> int:
        return max(models[key][0] for key in sleeping)

    every = [tuple(some) for n in range(len(models) + 1) for some in combinations(range(len(models)), n)]
    chosen = to_make_room(Demand(demand), spots, yielders)
    assert to_make_room(Demand(demand), spots[::-1], yielders[::-1]) == chosen
    if not chosen:
        assert fits(()) or not fits(tuple(range(len(models))))
        return
    assert fits(chosen) and not fits(())
    assert not any(fits(tuple(one for one in chosen if one != key)) for key in chosen)
    assert last_used(chosen) == min(last_used(some) for some in every if some and fits(some))
