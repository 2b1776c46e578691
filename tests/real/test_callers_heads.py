"""No head that a caller writes in Envoy's name changes what its request counts for, or how often it is tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.ports import ArmCounters
from tests.support.rigs.gateway_rig import Rig, rig

pytestmark = pytest.mark.real("envoy")
CALLS = 20
#: Every request head that Envoy 1.40's router reads or writes, by its documentation.
HEADS = {
    "x-envoy-is-timeout-retry": "true",
    "x-envoy-attempt-count": "7",
    "x-envoy-max-retries": "9",
    "x-envoy-retry-on": "5xx,reset",
    "x-envoy-retry-grpc-on": "internal",
    "x-envoy-retriable-status-codes": "200",
    "x-envoy-retriable-header-names": "content-type",
    "x-envoy-hedge-on-per-try-timeout": "true",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-upstream-rq-per-try-timeout-ms": "1",
    "x-envoy-upstream-rq-timeout-alt-response": "1",
    "x-envoy-expected-rq-timeout-ms": "1",
    "x-envoy-upstream-alt-stat-name": "other",
    "x-envoy-upstream-stream-duration-ms": "1",
    "x-envoy-decorator-operation": "other",
    "x-envoy-internal": "true",
    "x-envoy-force-trace": "true",
    "x-envoy-original-path": "/v2/models/other/infer",
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(Path(tmp_path_factory.mktemp("heads"))) as built:
        built.apply(5000)
        yield built


def of(parts: Rig) -> list[ArmCounters]:
    by_release = parts.counters().by_release
    return [by_release[digest] for digest in (Rig.STABLE, Rig.CANDIDATE)]


@pytest.mark.parametrize("head", HEADS)
def test_a_head_in_envoys_name_changes_no_count(parts: Rig, head: str) -> None:
    before, hits = of(parts), parts.stable.hits + parts.candidate.hits
    statuses = {parts.envoy.http(headers={head: HEADS[head]}).status for _ in range(CALLS)}
    after = of(parts)
    grown = {
        name: sum(getattr(now, name) - getattr(was, name) for was, now in zip(before, after, strict=True))
        for name in ("routed", "decided", "timed", "answered", "failed", "aborted")
    }
    assert statuses == {200}
    assert grown == {"routed": CALLS, "decided": CALLS, "timed": CALLS, "answered": CALLS, "failed": 0, "aborted": 0}
    assert parts.stable.hits + parts.candidate.hits - hits == CALLS


@pytest.mark.parametrize(
    ("heads", "body", "status"),
    [({}, b"[" * 100 + b"]" * 100, 400), ({"inference-header-content-length": "many"}, b"{}", 400)],
    ids=["nested", "no length"],
)
def test_a_refused_request_that_says_it_was_late_counts_nothing(
    parts: Rig, heads: dict[str, str], body: bytes, status: int
) -> None:
    before, hits = of(parts), parts.stable.hits + parts.candidate.hits
    for _ in range(4):
        answer = parts.envoy.http(headers=heads | {"x-envoy-is-timeout-retry": "true"}, body=body)
        assert answer.status == status
    assert [(now.timed, now.decided, now.failed) for now in of(parts)] == [
        (was.timed, was.decided, was.failed) for was in before
    ]
    assert parts.stable.hits + parts.candidate.hits == hits
