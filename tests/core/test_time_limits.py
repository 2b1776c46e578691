"""No constant contradicts a model's `timeout_s`, from 1 to 600 s; and the table of limits matches the code."""

from __future__ import annotations

import pytest

from serving.traffic.adapters import envoy_bootstrap
from serving.traffic.control_plane import listener, virtual_hosts
from serving.traffic.core.request_limits import LONGEST_S, Limits, limits_stated
from tests.support.house import time_limits
from tests.support.house.time_limits import APART, FOLLOWING, PAGE

TIMES_S = (1, 2, 5, 9.9, 10, 10.1, 30, 59, 60, 61, 299, 300, 301, 590, 599, 600)


def test_the_page_holds_the_limits_of_the_code() -> None:
    page = PAGE.read_text()
    assert page == time_limits.written(page), "make time-limits"


@pytest.mark.parametrize(
    "limit", [one for one in FOLLOWING if one.covers], ids=lambda one: f"{one.who}: {one.what[:40]}"
)
@pytest.mark.parametrize("timeout_s", TIMES_S)
def test_a_request_that_takes_its_whole_time_meets_no_other_limit(limit: time_limits.Follows, timeout_s: float) -> None:
    assert limit.at(timeout_s) >= timeout_s


def test_what_does_not_cover_a_request_ends_none() -> None:
    """The first attempt goes on beside the second one, and no user waits for a shadow request."""
    assert {(one.who, one.what.partition(",")[0]) for one in FOLLOWING if not one.covers} == {
        ("gateway", "first attempt"), ("prober", "one shadow request"),
    }  # fmt: skip


def test_the_gateways_own_timers_end_after_the_longest_request() -> None:
    """Envoy ends what stands still, and a request that its server works on stands still."""
    manager = listener.listener("m", "127.0.0.1", 1)["filter_chains"][0]["filters"][0]["typed_config"]
    for name in ("stream_idle_timeout", "request_timeout"):
        assert float(manager[name].rstrip("s")) > LONGEST_S
    assert float(manager["stream_idle_timeout"].rstrip("s")) > float(manager["request_timeout"].rstrip("s"))
    assert "max_connection_duration" not in str(manager) and "max_stream_duration" not in str(manager)


@pytest.mark.parametrize("timeout_s", TIMES_S)
def test_a_stream_may_pause_as_long_as_a_request_may_take(timeout_s: float) -> None:
    assert virtual_hosts.stream_idle_s(timeout_s) > timeout_s
    assert virtual_hosts.stream_idle_s(timeout_s) >= virtual_hosts.STREAM_IDLE_S


@pytest.mark.parametrize("timeout_s", TIMES_S)
def test_a_whole_alone_has_room_for_two_attempts_of_which_none_is_late_too_soon(timeout_s: float) -> None:
    found = limits_stated({"timeout_s": timeout_s}, Limits())
    assert found.timeout_s == timeout_s and found.attempt_timeout_s <= timeout_s
    if timeout_s > 10:
        assert 2 * found.attempt_timeout_s <= timeout_s and found.attempt_timeout_s >= 0.2 * timeout_s
    else:
        assert found.attempt_timeout_s == min(2, timeout_s)


def test_an_attempt_alone_makes_room_for_two() -> None:
    assert limits_stated({"attempt_timeout_s": 30}, Limits()) == Limits(60, 30)
    assert limits_stated({"attempt_timeout_s": 400}, Limits()) == Limits(600, 400)
    assert limits_stated({}, Limits(7, 3)) == Limits(7, 3)
    assert limits_stated({"timeout_s": 60, "attempt_timeout_s": 60}, Limits()) == Limits(60, 60)


def test_every_limit_states_why_it_contradicts_nothing() -> None:
    assert all(one.why for one in APART) and all(one.why for one in FOLLOWING)
    assert len({(one.who, one.what) for one in APART}) == len(APART)
    assert float(envoy_bootstrap.PATIENT_S) < LONGEST_S  # the only limit that may end a request
