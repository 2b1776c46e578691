"""Classes of requests on a real gateway: the flood of one is refused, another loses nothing, and only who is believed picks a class."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving.ports import TenantCounters
from serving.traffic.core.request_classes import Pool, RequestClasses
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import Arm
from serving.traffic.core.tenants import Quota, Tenants
from tests.support.rigs.gateway_rig import KEY, Rig, Traffic, grpc_infer, rig, wait_until

pytestmark = pytest.mark.real("envoy")
#: Callers of these tests come from this machine.
TRUSTED = ("127.0.0.0/8",)
POOLS = (Pool("", 75), Pool("batch", 25))
CLASSES = RequestClasses("x-class", "interactive", POOLS)
#: Of 32 requests 16 over each protocol: 12 interactive ones, and 4 of a batch.
BOUND, INTERACTIVE, BATCH = 32, 12, 4


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path, trusted=TRUSTED) as built:
        yield built


def stable(parts: Rig, max_in_flight: int = BOUND) -> Arm:
    return Arm("r1", Rig.STABLE, (parts.stable.endpoint,), max_in_flight)


def over_http(parts: Rig, **heads: str) -> Callable[[], str]:
    """Asks once: what became of it."""
    headers = {name.replace("_", "-"): value for name, value in heads.items()}

    def ask() -> str:
        answer = parts.envoy.http(headers=headers)
        return "answered" if answer.status == 200 else f"{answer.status} {answer.headers.get('x-sluicegate-shed', '')}"

    return ask


def over_grpc(channel: grpc.Channel, **heads: str) -> Callable[[], str]:
    metadata = tuple((name.replace("_", "-"), value) for name, value in heads.items())

    def ask() -> str:
        code = grpc_infer(channel, metadata=metadata)[0]
        return "answered" if code is grpc.StatusCode.OK else code.name

    return ask


REFUSED = {"http": "429 request class", "grpc": "RESOURCE_EXHAUSTED"}


@pytest.fixture(params=["http", "grpc"])
def ask(parts: Rig, request: pytest.FixtureRequest) -> Iterator[Callable[..., Callable[[], str]]]:
    if request.param == "http":
        yield partial(over_http, parts)
        return
    with parts.envoy.channel() as channel:
        yield partial(over_grpc, channel)


def refused_by(ask: Any) -> str:
    return REFUSED["http" if ask.func is over_http else "grpc"]


def full(parts: Rig, pool: ThreadPoolExecutor, ask: Callable[[], str], places: int) -> list[Any]:
    """So many requests in flight, and as many that were refused beside them. Only while stable answers nobody."""
    asked = [pool.submit(ask) for _ in range(2 * places)]
    wait_until(lambda: sum(one.done() for one in asked) >= places, f"{places} are refused")
    return asked


def test_a_full_class_is_refused_while_the_other_has_all_of_its_places(parts: Rig, ask: Any) -> None:
    parts.apply(None, stable=stable(parts), classes=CLASSES)
    batch, interactive = ask(x_class="batch"), ask()
    with ThreadPoolExecutor(2 * (INTERACTIVE + BATCH)) as pool, parts.stable.held():
        asked = full(parts, pool, batch, BATCH)
        others = [pool.submit(interactive) for _ in range(INTERACTIVE)]
        wait_until(lambda: parts.stable.hits == BATCH + INTERACTIVE, "all that may be are in flight")
        assert batch() == refused_by(ask)
    assert Counter(one.result() for one in asked) == {"answered": BATCH, refused_by(ask): BATCH}
    assert Counter(one.result() for one in others) == {"answered": INTERACTIVE}


def test_without_classes_the_flood_takes_the_place_of_everybody(parts: Rig, ask: Any) -> None:
    parts.apply(None, stable=stable(parts))
    with ThreadPoolExecutor(2 * (INTERACTIVE + BATCH)) as pool, parts.stable.held():
        full(parts, pool, ask(x_class="batch"), INTERACTIVE + BATCH)
        assert ask()() in {"429 ", "RESOURCE_EXHAUSTED"}


def test_under_saturation_one_class_keeps_its_requests_and_the_other_is_shed(parts: Rig, ask: Any) -> None:
    """A flood in closed loop, five times as many callers as its class has places, beside as many callers as the other has."""
    parts.apply(None, stable=stable(parts), classes=CLASSES)
    parts.stable.delay_s = 0.02
    done, flood = threading.Event(), Counter[str]()

    def flooding() -> Counter[str]:
        batch, seen = ask(x_class="batch"), Counter[str]()
        while not done.is_set():
            said = batch()
            seen[said] += 1
            flood[said] += 1
        return seen

    with ThreadPoolExecutor(INTERACTIVE + 5 * BATCH) as pool:
        callers = [pool.submit(flooding) for _ in range(5 * BATCH)]
        wait_until(lambda: flood[refused_by(ask)] >= 50, "the flood is shed")
        kept = [pool.submit(lambda: Counter(ask()() for _ in range(20))) for _ in range(INTERACTIVE)]
        interactive = sum((one.result() for one in kept), Counter())
        done.set()
        batch = sum((one.result() for one in callers), Counter())
    assert interactive["answered"] >= 0.95 * 20 * INTERACTIVE
    assert set(batch) == {"answered", refused_by(ask)} and batch[refused_by(ask)] >= 50


def test_where_both_are_too_many_each_is_answered_by_its_share(parts: Rig, ask: Any) -> None:
    """Three times as many callers as places on both sides; who is refused waits, so that callers leave a busy machine to the gateway."""
    parts.apply(None, stable=stable(parts), classes=CLASSES)
    parts.stable.delay_s = 0.2
    done, answered = threading.Event(), Counter[str]()

    def asking(one: str) -> None:
        again = ask(x_class=one)
        while not done.is_set():
            if again() == "answered":
                answered[one] += 1
            else:
                done.wait(0.1)

    with ThreadPoolExecutor(3 * (INTERACTIVE + BATCH)) as pool:
        for one, places in (("interactive", INTERACTIVE), ("batch", BATCH)):
            for _ in range(3 * places):
                pool.submit(asking, one)
        wait_until(lambda: answered["batch"] >= 60, "answers to the smaller class")
        done.set()
    assert 2 <= answered["interactive"] / answered["batch"] <= 4.5  # 3, where nothing is late


def test_a_refusal_tells_that_the_places_of_its_class_are_taken(parts: Rig) -> None:
    parts.apply(None, stable=stable(parts, 2), classes=CLASSES)
    parts.stable.delay_s = 0.0
    with ThreadPoolExecutor(1) as pool, parts.stable.held():
        held = pool.submit(over_http(parts, x_class="batch"))
        wait_until(lambda: parts.stable.hits == 1, "one in flight")
        refused = parts.envoy.http(headers={"x-class": "batch"})
    assert held.result() == "answered"
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert b"places of this class of requests are taken" in refused.body


@pytest.mark.parametrize("trusted", [TRUSTED, ("10.20.0.0/16",)])
def test_a_class_is_what_a_trusted_proxy_says_or_what_the_tenant_has(tmp_path: Path, trusted: tuple[str, ...]) -> None:
    tenants = Tenants("x-tenant", (("acme", Quota(1e6, 1e6)), ("bulk", Quota(1e6, 1e6))), Quota(1e6, 1e6))
    classes = RequestClasses("x-class", "interactive", (Pool("", 75), Pool("batch", 1)), (("bulk", "batch"),))
    is_believed = trusted is TRUSTED
    with rig(tmp_path, trusted=trusted) as parts:
        parts.apply(None, stable=stable(parts), classes=classes, tenants=tenants)
        if is_believed:
            with ThreadPoolExecutor(1) as pool, parts.stable.held():
                held = pool.submit(over_http(parts, x_class="batch"))
                wait_until(lambda: parts.stable.hits == 1, "the place is taken")
                of_batch = [
                    parts.envoy.http(headers=heads).status
                    for heads in (
                        {"x-class": "batch"},
                        {"x-tenant": "bulk"},
                        {"x-tenant": "bulk", "x-class": "nonsense"},
                    )
                ]
            assert held.result() == "answered" and of_batch == [429] * 3
        for heads in (
            {},
            {"x-class": "nonsense"},
            {"x-class": "batch, interactive"},
            {"x-tenant": "acme"},
            {"x-tenant": "bulk", "x-class": "interactive"},
            {"x-sluicegate-class": "batch"},
            {"x-sluicegate-class": "batch", "x-class": "interactive"},
            *([] if is_believed else [{"x-class": "batch"}, {"x-tenant": "bulk"}]),
        ):
            assert parts.envoy.http(headers=heads).status == 200
        found = parts.counters().by_class
        assert set(found) == ({"interactive", "batch"} if is_believed else {"interactive"})
        assert found["interactive"].answered == found["interactive"].requests == (7 if is_believed else 9)


def test_a_class_that_a_caller_makes_up_takes_no_place_of_it(parts: Rig, ask: Any) -> None:
    """While the only place of a batch is taken: the route was found by the caller's head, and is found anew without it."""
    parts.apply(None, stable=stable(parts, BOUND // BATCH), classes=CLASSES)
    with ThreadPoolExecutor(3) as pool, parts.stable.held():
        held = pool.submit(ask(x_class="batch"))
        wait_until(lambda: parts.stable.hits == 1, "the place is taken")
        assert ask(x_class="batch")() == refused_by(ask)
        others = [pool.submit(ask(x_sluicegate_class="batch", **said)) for said in ({}, {"x_class": "interactive"})]
        wait_until(lambda: parts.stable.hits == 3 or any(one.done() for one in others), "both are in flight")
    assert [one.result() for one in (held, *others)] == ["answered"] * 3
    assert parts.counters().by_class["batch"].requests == 2


def test_a_forced_release_is_no_way_out_of_a_class(parts: Rig) -> None:
    """It holds one place beside those of all classes, whichever class it is of."""
    parts.apply(None, stable=stable(parts), classes=CLASSES, allows_forced=True)
    key = {"x_sluicegate_release": "r1", "x_sluicegate_release_key": KEY}
    batch = over_http(parts, x_class="batch", **key)
    with ThreadPoolExecutor(2 * BATCH) as pool, parts.stable.held():
        asked = [pool.submit(batch) for _ in range(2 * BATCH)]
        wait_until(lambda: sum(one.done() for one in asked) == 2 * BATCH - 1, "all but one are refused")
        assert over_http(parts, **key)().startswith("429")
    assert Counter(one.result().partition(" ")[0] for one in asked) == {"answered": 1, "429": 2 * BATCH - 1}


def test_what_a_class_is_refused_is_counted_by_class_and_is_no_failure(parts: Rig) -> None:
    parts.apply(None, stable=stable(parts), classes=CLASSES)
    with ThreadPoolExecutor(2 * BATCH) as pool, parts.stable.held():
        full(parts, pool, over_http(parts, x_class="batch"), BATCH)
    for _ in range(3):
        parts.envoy.http()
    parts.stable.mode = "error"
    parts.envoy.http(headers={"x-class": "batch"})
    found = parts.counters()
    assert found.by_class == {
        "interactive": TenantCounters(requests=3),
        "batch": TenantCounters(requests=2 * BATCH + 1, shed=BATCH, errors=1),
    }
    assert found.by_tenant == {}
    assert found.by_class["batch"].latency_us[30_000_000] == BATCH
    arm = found.by_release[Rig.STABLE]
    assert (arm.routed, arm.decided, arm.failed, arm.shed) == (3 + 2 * BATCH + 1, 3 + BATCH + 1, 1, BATCH)
    assert arm.by_class == {"batch": BATCH + 1}
    assert sum(one == 3 + 2 * BATCH + 1 for one in arm.size_bytes.values()) == len(arm.size_bytes)


def test_both_classes_are_split_alike_and_what_one_hands_back_takes_its_own_places(parts: Rig) -> None:
    parts.apply(5_000, stable=stable(parts), classes=CLASSES)
    for heads in ({}, {"x-class": "batch"}):
        by = Counter(parts.envoy.http(headers=heads).release for _ in range(40))
        assert set(by) == {"r1", "r2"}
    parts.apply(10_000, stable=stable(parts), classes=CLASSES)
    parts.candidate.mode = "error"
    with ThreadPoolExecutor(2 * BATCH) as pool, parts.stable.held():
        before = parts.stable.hits
        asked = [pool.submit(over_http(parts, x_class="batch")) for _ in range(2 * BATCH)]
        wait_until(lambda: sum(one.done() for one in asked) >= BATCH, "what stable has no place for is told")
        other = pool.submit(over_http(parts))
        wait_until(lambda: parts.stable.hits == before + BATCH + 1, "one of the default class is handed back")
    assert Counter(one.result() for one in asked) == {"answered": BATCH, "429 request class": BATCH}
    assert other.result() == "answered"


def test_what_a_candidate_has_no_place_for_takes_one_of_its_class_on_stable(parts: Rig) -> None:
    candidate = Arm(
        "r2", Rig.CANDIDATE, (parts.candidate.endpoint,), 2
    )  # 16 times as much: 4 places for a batch, 12 for the rest
    patient = Limits(60.0, 30.0)
    parts.apply(10_000, stable=stable(parts), candidate=candidate, classes=CLASSES, limits=patient)
    batch = over_http(parts, x_class="batch")
    with ThreadPoolExecutor(3 * BATCH) as pool, parts.candidate.held():
        asked = [pool.submit(batch) for _ in range(BATCH)]
        wait_until(lambda: parts.candidate.hits == BATCH, "the candidate's places are taken")
        assert parts.envoy.http(headers={"x-class": "batch"}).release == "r1"
        with parts.stable.held():
            handed = [pool.submit(batch) for _ in range(2 * BATCH)]
            wait_until(lambda: sum(one.done() for one in handed) >= BATCH, "stable has no place for the rest")
        other = pool.submit(over_http(parts))
        wait_until(lambda: parts.candidate.hits == BATCH + 1, "the default class has places there")
    assert Counter(one.result() for one in handed) == {"answered": BATCH, "429 request class": BATCH}
    assert {one.result() for one in (*asked, other)} == {"answered"}


def test_classes_that_come_and_go_lose_no_request(parts: Rig) -> None:
    tenants = Tenants("x-tenant", (), Quota(1e6, 1e6))
    by_tenant = RequestClasses("", "interactive", POOLS, (("others", "batch"),))
    parts.apply(None, tenants=tenants)
    traffic = Traffic(parts.envoy)
    for classes in (by_tenant, None, CLASSES, by_tenant, None):
        parts.apply(None, tenants=tenants, classes=classes)
        traffic.go_on()
    assert set(traffic.stop()) == {""}
    assert set(parts.counters().by_class) == {"interactive", "batch"}
