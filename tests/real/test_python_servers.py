"""A candidate on MLServer or KServe whose model raises: what users lose, and what is charged to it. The table is in docs/fleet.md."""

from __future__ import annotations

import pytest

from benchmarks.python_servers import Case, is_sound, measure

pytestmark = pytest.mark.real("envoy")
MLSERVER, KSERVE = pytest.mark.real("mlserver"), pytest.mark.real("kserve")
REQUESTS, CLIENTS = 400, 4


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("mlserver", 501, "HTTP", True), marks=MLSERVER, id="mlserver-http"),
        pytest.param(Case("kserve", 500, "HTTP", True), marks=KSERVE, id="kserve-http"),
        pytest.param(Case("kserve", 500, "gRPC", False), marks=KSERVE, id="kserve-grpc"),
    ],
)
def test_an_exception_costs_nobody_an_answer_and_is_charged(case: Case) -> None:
    """Over HTTP their connections end behind such an answer, so there that takes `retry_on_reset`."""
    found = measure(case, REQUESTS, CLIENTS)
    assert found.lost == 0 and found.charged > 0 and is_sound(case, found), found


@pytest.mark.real("kserve")
def test_what_kserve_calls_an_inference_error_is_told_to_callers_as_their_own_and_charged_to_nobody() -> None:
    found = measure(case := Case("kserve", 501, "gRPC", False), REQUESTS, CLIENTS)
    assert found.lost > 0 and (found.of_others, found.charged) == (0, 0) and is_sound(case, found), found
