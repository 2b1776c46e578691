"""How many requests one server may have in flight: what it rests on, and each premise broken on purpose."""

from __future__ import annotations

import heapq
import math
import random

import pytest

from serving.traffic.core.admission import LEAST_PER_INSTANCE, Proof, Source, admission_of
from serving.traffic.core.routes import IN_FLIGHT_PER_INSTANCE, WELL_WITHIN_S
from sluicegate.cli import push
from validators.core.full_server import measured_when_full

#: A server that takes 20 ms for each request, one at a time, and answers 99 in 100 of 40 a second within 250 ms.
SERVICE_S, OBJECTIVE_S, PROVEN = 0.02, 0.25, 40.0
OVER_ONE = math.ceil(Proof(PROVEN, OBJECTIVE_S).in_flight(1) / 2)  # over one protocol


def shares(bound: int, per_s: float, *, service_s: float = SERVICE_S, clump: int = 1) -> tuple[float, float]:
    """(in time, shed) of requests that come at random in clumps of so many to one server with so many in flight at most."""
    chance, at, free_at = random.Random(7), 0.0, 0.0
    ends: list[float] = []
    in_time = shed = asked = 0
    while asked < 20_000:
        at += chance.expovariate(per_s / clump)
        while ends and ends[0] <= at:
            heapq.heappop(ends)
        for _ in range(clump):
            asked += 1
            if len(ends) >= bound:
                shed += 1
                continue
            free_at = max(free_at, at) + service_s
            heapq.heappush(ends, free_at)
            in_time += free_at - at <= OBJECTIVE_S
    return in_time / asked, shed / asked


@pytest.mark.parametrize(
    ("declared", "proof", "expected"),
    [
        (None, None, (16, Source.DEFAULT)),
        (64, None, (64, Source.DECLARED)),
        (None, Proof(40.0, 0.25), (11, Source.PROVEN)),
        (64, Proof(40.0, 0.25), (11, Source.PROVEN)),
        (5, Proof(40.0, 0.25), (5, Source.DECLARED)),  # what the team stated stays the ceiling
        (11, Proof(40.0, 0.25), (11, Source.DECLARED)),
        (
            None,
            Proof(0.1, 0.25),
            (2 * LEAST_PER_INSTANCE, Source.PROVEN),
        ),  # each instance has one, and the next at hand
        (None, Proof(2000.0, 0.1), (207, Source.PROVEN)),  # large batches are no longer held to eight
        # A load gate saw the server full: the number that it answers in time, at most its load then.
        (None, Proof(900.0, 0.125, "", 32), (32, Source.MEASURED)),
        (None, Proof(200.0, 0.125, "", 64), (25, Source.MEASURED)),
        (None, Proof(8.7, 0.125, "", 16), (16, Source.MEASURED)),  # never less than without a measurement
        (4, Proof(900.0, 0.125, "", 32), (4, Source.DECLARED)),
        (64, Proof(900.0, 0.125, "", 32), (64, Source.DECLARED)),
    ],
)
def test_what_was_proven_within_what_was_declared(
    declared: int | None, proof: Proof | None, expected: tuple[int, Source]
) -> None:
    found = admission_of(declared, 2, proof)
    assert (found.in_flight, found.source) == expected
    is_by_proof = found.source in (Source.PROVEN, Source.MEASURED)
    assert found.well_within_s == (proof.within_s if proof and is_by_proof else WELL_WITHIN_S)


@pytest.mark.parametrize(
    ("declared", "throughput_per_s", "expected"),
    [
        (None, None, (8, Source.DEFAULT)),
        (None, 64.0, (8, Source.DEFAULT)),
        (None, 300.0, (37, Source.ENVELOPE)),
        (12, 300.0, (12, Source.DECLARED)),
    ],
)
def test_a_declared_throughput_is_emptied_in_time(
    declared: int | None, throughput_per_s: float | None, expected: tuple[int, Source]
) -> None:
    found = admission_of(declared, 1, None, throughput_per_s)
    assert (found.in_flight, found.source) == expected


def test_sixteen_callers_of_a_fast_model_are_answered() -> None:
    """A load gate had 32 requests at once on a server that takes 2 ms for each: over one protocol 16 are let through."""
    found = admission_of(None, 1, Proof(500.0, WELL_WITHIN_S, "", 32))
    assert found.in_flight // 2 >= 16
    _, shed = shares(found.in_flight // 2, 500.0 * 0.7, service_s=0.002)
    assert shed < 0.001


def test_a_load_gate_tells_a_bound_only_if_its_full_server_refused_and_broke_nothing() -> None:
    def found(verdict: str = "passed", **evidence: object) -> Proof | None:
        told = {
            "full_per_s": 900.0,
            "full_at_once": 32,
            "full_errors": 0,
            "full_refused": 0,
            "slo_ms": None,
            **evidence,
        }
        return measured_when_full({"gates": [{"gate": "load", "verdict": verdict, "evidence": told}]}, "sha256:ab")

    assert found() == Proof(900.0, WELL_WITHIN_S, "sha256:ab", 32)
    assert found(slo_ms=100) == Proof(900.0, 0.05, "sha256:ab", 32)
    assert found("failed") is found(full_errors=1) is found(full_refused=1) is found(full_per_s=None) is None
    assert measured_when_full({}, "") is measured_when_full({"gates": [{"gate": "load"}]}, "") is None


def test_a_proof_is_kept_as_json_and_its_absence_too() -> None:
    proof = Proof(40.0, 0.25, "sha256:ab")
    assert Proof.from_json(proof.as_json()) == proof
    measured = Proof(900.0, 0.125, "sha256:ab", 32)
    assert Proof.from_json(measured.as_json()) == measured and "at_once" not in proof.as_json()
    assert Proof.from_json(None) is None
    for nothing in ({"per_s": 40.0, "within_s": 0.0}, {"per_s": -1.0, "within_s": 0.25}):
        assert Proof.from_json(nothing) is None


@pytest.mark.parametrize("times", [1.0, 2.0, 3.0])
def test_whoever_is_let_in_is_answered_within_the_objective_however_many_come(times: float) -> None:
    """Over one protocol, which has half of the bound, and over both together, each of whose halves is rounded up."""
    for bound in (OVER_ONE, 2 * OVER_ONE):
        in_time, shed = shares(bound, times * PROVEN)
        assert in_time == pytest.approx(1 - shed)
        assert in_time >= 0.95 * min(1.0, 1 / SERVICE_S / (times * PROVEN))


def test_at_the_proven_rate_few_are_refused_of_callers_who_come_at_random() -> None:
    _, shed = shares(OVER_ONE, PROVEN)
    assert shed < 0.03
    assert shed < shares(4, PROVEN)[1]  # what the default has over one protocol


def test_premise_broken_a_server_of_half_the_speed_is_full_of_requests_that_are_late() -> None:
    """A proof from other hardware: of callers over both protocols nearly none is answered in time, of those over one all are."""
    assert shares(2 * OVER_ONE, 3 * PROVEN, service_s=2 * SERVICE_S)[0] < 0.01
    in_time, shed = shares(OVER_ONE, 3 * PROVEN, service_s=2 * SERVICE_S)
    assert in_time == pytest.approx(1 - shed) and in_time >= 0.95 / (2 * SERVICE_S) / (3 * PROVEN)


def test_premise_broken_callers_in_clumps_are_refused_at_a_rate_that_was_proven() -> None:
    assert shares(OVER_ONE, PROVEN, clump=5)[1] > 0.1 > 3 * shares(OVER_ONE, PROVEN)[1]


def test_a_push_warns_of_the_default_bound_and_not_of_one_that_is_stated() -> None:
    (warning,) = push.warnings_of({"envelope": {"performance": [{"throughput": {"unit": "items_per_s", "value": 9}}]}})
    assert push.IN_FLIGHT == IN_FLIGHT_PER_INSTANCE and f"let {IN_FLIGHT_PER_INSTANCE} requests at a time" in warning
    assert push.warnings_of({}) == [warning]
    assert push.warnings_of({"envelope": {"limits": {"max_concurrency": 4}}}) == []
    stated = {"performance": [{"throughput": {"unit": "requests_per_s", "value": 9}}]}
    assert push.warnings_of({"envelope": stated}) == []
