"""Every way in which a gateway's counters can be wrong, on a real Envoy: with a proxy before its admin port that spoils answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from serving.envoy import EnvoyCounters
from serving.envoy_bootstrap import FLUSH_S
from serving.ports import GatewayCounters, GatewayError
from tests.faulty_proxy import FaultyProxy, faulty_proxy
from tests.gateway_rig import MODEL, Rig, rig

pytestmark = [pytest.mark.real("envoy"), pytest.mark.timeout(240)]

#: How the proxy spoils the page → what the reader says.
REASONS = {
    "error": "malformed",
    "busy": "malformed",
    "hang": "timeout",
    "trickle": "timeout",
    "refuse": "unreachable",
    "garbage": "malformed",
    "nan": "malformed",
    "empty": "malformed",
    "cut": "malformed",
}


# -- what the reader says ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("envoy")) as built:
        built.apply(5000)
        yield built


@pytest.fixture
def proxy(parts: Rig) -> Iterator[FaultyProxy]:
    with faulty_proxy(parts.envoy.admin_url) as one:
        yield one


def users(parts: Rig, n: int = 6) -> None:
    for _ in range(n):
        assert parts.envoy.http().status == 200
    time.sleep(2 * FLUSH_S + 0.05)


def read(counters: EnvoyCounters, proxy: FaultyProxy, timeout_s: float = 1.0) -> GatewayCounters:
    return counters.read(gateway="gateway-1", admin_url=proxy.url, models=[MODEL], timeout_s=timeout_s)[MODEL]


@pytest.mark.parametrize("mode", sorted(REASONS))
def test_every_way_to_answer_badly_has_its_reason_and_loses_no_count(parts: Rig, proxy: FaultyProxy, mode: str) -> None:
    counters = EnvoyCounters()
    users(parts)
    before = read(counters, proxy)
    proxy.mode = mode
    for _ in range(2):  # the second on whatever connection the first left behind
        began = time.monotonic()
        with pytest.raises(GatewayError) as caught:
            read(counters, proxy, timeout_s=0.5)
        assert time.monotonic() - began < 1.2
        assert caught.value.reason == REASONS[mode] and "gateway-1" in caught.value.message
    users(parts)
    proxy.mode = "ok"
    after = read(counters, proxy)
    assert after.epoch == before.epoch
    assert after.user_requests == before.user_requests + 6


def test_a_page_that_stands_still_grows_old(parts: Rig, proxy: FaultyProxy) -> None:
    counters = EnvoyCounters()
    users(parts)
    proxy.mode = "frozen"
    first = read(counters, proxy)
    users(parts)
    time.sleep(2.0)
    later = read(counters, proxy)
    assert later.user_requests == first.user_requests
    assert (later.read_at - first.read_at).total_seconds() < 1.2
    proxy.mode = "ok"
    assert read(counters, proxy).user_requests == first.user_requests + 6
    assert (read(counters, proxy).read_at - later.read_at).total_seconds() > 1.0
