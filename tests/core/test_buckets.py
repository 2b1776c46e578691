"""What gateways count by: the edges of their histograms, and which answers are the server's fault."""

from __future__ import annotations

import grpc
import pytest

from serving.traffic.core.buckets import EDGES_US, SIZE_EDGES
from serving.traffic.core.outcomes import is_failure

#: A gateway gets its edges when it starts and keeps them until it is started anew: a control plane with other edges would
#: take one bucket for another. So these change only together with a restart of every gateway.
EDGES_OF_RUNNING_GATEWAYS_MS = (
    "1 2 3 5 7.5 10 15 20 30 50 75 100 150 200 250 300 400 500 750 "
    "1000 1500 2000 3000 5000 10000 15000 30000 60000 120000 300000 600000"
)
SIZES_OF_RUNNING_GATEWAYS = "512 4096 32768 262144 2000000"


def test_the_edges_are_those_that_running_gateways_count_by() -> None:
    assert " ".join(f"{edge / 1000:g}" for edge in EDGES_US) == EDGES_OF_RUNNING_GATEWAYS_MS
    assert " ".join(map(str, SIZE_EDGES)) == SIZES_OF_RUNNING_GATEWAYS


@pytest.mark.parametrize("edges", [EDGES_US, SIZE_EDGES])
def test_the_edges_rise_and_none_is_lost_in_the_six_digits_that_envoy_writes(edges: tuple[int, ...]) -> None:
    assert list(edges) == sorted(set(edges))
    assert [float(f"{edge:g}") for edge in edges] == list(edges)


#: Source: the meaning of each status, https://grpc.github.io/grpc/core/md_doc_statuscodes.html. The others blame the caller,
#: ask it to wait, or answer it.
SERVERS_FAULT = {"UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}


@pytest.mark.parametrize("status", list(grpc.StatusCode), ids=lambda status: status.name)
def test_a_grpc_status_is_a_failure_where_it_blames_the_server(status: grpc.StatusCode) -> None:
    found = is_failure(http_status=200, grpc_status=status.value[0], was_cut=False)
    assert found == (status.name in SERVERS_FAULT)


@pytest.mark.parametrize(
    ("http_status", "expected"), [(200, False), (429, False), (499, False), (500, True), (504, True)]
)
def test_of_plain_http_every_5xx_is_a_failure(http_status: int, expected: bool) -> None:
    assert is_failure(http_status=http_status, grpc_status=None, was_cut=False) is expected
