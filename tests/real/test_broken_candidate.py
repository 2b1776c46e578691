"""A candidate whose two servers break at half of the traffic: what users lose, and what is charged to it. The table is in docs/fleet.md."""

from __future__ import annotations

import pytest

from benchmarks.broken_candidate import FAULTS, is_sound, measure

pytestmark = pytest.mark.real("envoy")
REQUESTS, CLIENTS = 400, 8


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
@pytest.mark.parametrize("fault", ["error", "unavailable", "hang", "slow_start"])
def test_without_a_control_plane_a_broken_candidate_costs_nobody_an_answer(fault: str, protocol: str) -> None:
    cell = measure(FAULTS[fault], protocol, is_dead=True, requests=REQUESTS, clients=CLIENTS)
    assert cell.lost == 0 and cell.counted.failed > 0
    assert is_sound(FAULTS[fault], cell, REQUESTS), cell


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
@pytest.mark.parametrize("fault", ["bound", "full"])
def test_without_a_control_plane_an_overloaded_candidate_costs_nobody_an_answer(fault: str, protocol: str) -> None:
    cell = measure(FAULTS[fault], protocol, is_dead=True, requests=REQUESTS, clients=2 * CLIENTS)
    assert cell.lost == 0 and cell.counted.shed > 0
    assert is_sound(FAULTS[fault], cell, REQUESTS), cell


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_killed_servers_cost_no_more_than_what_was_in_flight_on_them_and_all_is_charged(protocol: str) -> None:
    cell = measure(FAULTS["kill"], protocol, is_dead=True, requests=REQUESTS, clients=CLIENTS)
    assert cell.lost <= 2 * CLIENTS and cell.counted.failed > 0
    assert is_sound(FAULTS["kill"], cell, REQUESTS), cell


def test_the_last_server_is_set_aside_as_soon_as_the_first() -> None:
    """What breaks a connection is tried nowhere else, so each request that still goes there is lost."""
    cell = measure(FAULTS["reset"], "HTTP", is_dead=True, requests=1500, clients=CLIENTS)
    assert 0 < cell.lost < 150  # half a second's worth, and more, when Envoy hands on one change a second
    assert is_sound(FAULTS["reset"], cell, 1500), cell


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
@pytest.mark.parametrize("fault", ["reset_again", "kill_again"])
def test_a_model_that_retries_resets_loses_no_answer_when_connections_break(fault: str, protocol: str) -> None:
    cell = measure(FAULTS[fault], protocol, is_dead=True, requests=REQUESTS, clients=CLIENTS)
    assert cell.lost == 0 and cell.counted.failed > 0
    assert is_sound(FAULTS[fault], cell, REQUESTS), cell
