"""Where a replica goes: what refuses a node, how replicas are spread, and what they hold of it."""

from __future__ import annotations

from typing import Any

import pytest

from serving.targets.core.placement import Choice, Claim, Demand, Device, Spot, choose, claim_of, demand_of, fit_in

GIB = 1024


def spot(node: str, **over: Any) -> Spot:
    return Spot(**{"node": node, **over})


@pytest.mark.parametrize(
    ("envelope", "demand"),
    [
        ({}, Demand()),
        ({"host": {"memory_mib_min": 512}}, Demand(512)),
        ({"accelerator": {"vendor": "none", "count": 3}}, Demand()),
        ({"accelerator": {"vendor": "nvidia"}}, Demand(devices=1, mib_each=0)),
        ({"accelerator": {"vendor": "nvidia", "memory_mib_min": 8000}}, Demand(devices=1, mib_each=8000)),
        (
            {"accelerator": {"vendor": "nvidia", "memory_mib_min": 8000, "memory_mib_peak_declared": 9000, "count": 2}},
            Demand(devices=2, mib_each=9000),
        ),
        ({"accelerator": {"vendor": "nvidia", "exclusive": True}}, Demand(devices=1, mib_each=None)),
        (
            {"accelerator": {"vendor": "nvidia", "mig": {"profiles": ["1g.10gb"]}}},
            Demand(devices=1, mib_each=0, profiles=("1g.10gb",)),
        ),
    ],
)
def test_what_an_envelope_asks_of_a_node(envelope: dict[str, Any], demand: Demand) -> None:
    assert demand_of(envelope) == demand


def test_replicas_are_spread_over_nodes_before_fit() -> None:
    assert choose(Demand(), [spot("a", alike=1), spot("b", rank=1)]).node == "b"
    assert choose(Demand(), [spot("a", alike=1), spot("b", rank=1, alike=1)]).node == "a"


def test_of_equals_the_better_fit_then_the_most_room_then_the_first() -> None:
    assert choose(Demand(), [spot("a", rank=1), spot("b")]).node == "b"
    assert choose(Demand(), [spot("a", memory_mib=1000), spot("b", memory_mib=2000)]).node == "b"
    held = (Claim(1500),)
    assert choose(Demand(), [spot("a", memory_mib=1000), spot("b", memory_mib=2000, held=held)]).node == "a"
    assert choose(Demand(), [spot("a"), spot("b")]).node == "a"


def test_where_no_memory_is_declared_the_node_that_holds_the_fewest_takes_it() -> None:
    """A candidate would be put beside its stable release while another node stands empty, and be lost with it."""
    spots = [spot("a", memory_mib=1000, held=(Claim(),)), spot("b", memory_mib=1000)]
    assert choose(Demand(), spots).node == "b"
    assert choose(Demand(), [spot("a", memory_mib=1000, held=(Claim(),)), spot("b", memory_mib=900)]).node == "a"


def test_every_node_that_refuses_says_why() -> None:
    found = choose(Demand(900), [spot("a", refusal="It has no GPU."), spot("b", memory_mib=1000, held=(Claim(200),))])
    assert found == Choice(refused=("a: It has no GPU.", "b: 800 MiB of memory are left of 1000, and it declares 900."))
    assert choose(Demand(), []) == Choice()


def test_what_a_node_does_not_tell_refuses_nothing() -> None:
    assert fit_in(Demand(10**9, 4, None), spot("a")) == Claim(10**9)


def test_memory_is_held_by_who_is_there() -> None:
    node = spot("a", memory_mib=4 * GIB, held=(Claim(GIB), Claim(2 * GIB)))
    assert node.free_mib == GIB
    assert fit_in(Demand(GIB), node) == Claim(GIB)
    assert fit_in(Demand(GIB + 1), node) == "1024 MiB of memory are left of 4096, and it declares 1025."


TWO = {"g0": Device(80_000), "g1": Device(80_000)}


def test_devices_are_shared_by_memory_and_whole_ones_by_nobody() -> None:
    shared = spot("a", devices=TWO, held=(Claim(0, {"g0": 60_000}),))
    # the fuller one that will do, so that a whole one stays whole
    assert fit_in(Demand(devices=1, mib_each=20_000), shared) == Claim(0, {"g0": 20_000})
    assert fit_in(Demand(devices=1, mib_each=20_001), shared) == Claim(0, {"g1": 20_001})
    assert fit_in(Demand(devices=1, mib_each=None), shared) == Claim(0, {"g1": None})
    assert fit_in(Demand(devices=2, mib_each=None), shared) == "1 devices of 2 are free for it, and it declares 2."
    whole = spot("a", devices=TWO, held=(Claim(0, {"g0": None}), Claim(0, {"g1": 1})))
    assert fit_in(Demand(devices=1, mib_each=None), whole) == "0 devices of 2 are free for it, and it declares 1."
    assert fit_in(Demand(devices=1, mib_each=80_000), whole) == (
        "0 devices with 80000 MiB of 2 are free for it, and it declares 1."
    )
    assert fit_in(Demand(devices=1, mib_each=0), whole) == Claim(0, {"g1": 0})


def test_a_device_that_does_not_tell_its_size_is_given_away() -> None:
    unknown = spot("a", devices={"g0": Device()}, held=(Claim(0, {"g0": 5}),))
    assert fit_in(Demand(devices=1, mib_each=10**6), unknown) == Claim(0, {"g0": 10**6})


def test_slices_are_taken_by_their_profile_and_never_as_whole_devices() -> None:
    sliced = spot("a", devices={"m0": Device(10_000, "1g.10gb"), "m1": Device(40_000, "3g.40gb")})
    asked = Demand(devices=1, mib_each=None, profiles=("3g.40gb",))
    assert fit_in(asked, sliced) == Claim(0, {"m1": None})
    assert (
        fit_in(Demand(devices=1, mib_each=0), sliced) == "0 devices with 0 MiB of 0 are free for it, and it declares 1."
    )


def test_a_claim_is_read_as_it_was_written() -> None:
    one = Claim(512, {"g0": None, "g1": 5})
    assert claim_of(one.as_json()) == one and claim_of({}) == Claim()
