"""How a gateway may be set up on its machine, and what is refused."""

from __future__ import annotations

import pytest

from serving.traffic.core.gateway_setup import GatewaySetup

FAR = {"control_planes": "10.0.0.1:18000", "certificate": "/c", "key": "/k", "authority": "/a"}


def test_a_gateway_of_this_machine_needs_no_more_than_a_name() -> None:
    found = GatewaySetup("eu-1", "unix:/run/xds.sock")
    assert found.counters_url == "unix:/run/sluicegate/eu-1-admin.sock" and found.tls is None and found.warning == ""


def test_one_on_another_machine_is_read_over_tls() -> None:
    found = GatewaySetup("eu-1", counters="10.0.0.9:9902", relay="unix:/run/relay.sock", **FAR)
    assert found.counters_url == "https://10.0.0.9:9902" and found.tls is not None


@pytest.mark.parametrize("url", ["https://10.0.0.9:9902", "http://127.0.0.1:9901", "unix:/run/other.sock"])
def test_counters_are_read_where_they_were(url: str) -> None:
    assert GatewaySetup("eu-1", **FAR).read_at(url).counters_url == url


def test_who_can_reach_the_admin_interface_is_told() -> None:
    assert "every user of the gateway's machine" in GatewaySetup("eu-1", "unix:/run/x", admin="127.0.0.1:9901").warning


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"name": "EU 1"}, "no name of a gateway"),
        ({"name": ""}, "no name of a gateway"),
        ({"certificate": "/c"}, "go together"),
        ({"control_planes": "10.0.0.1:1"}, "spiffe://sluicegate/gateway/eu-1"),
        ({"control_planes": "nowhere"}, "--control-planes: 'nowhere' is neither host:port"),
        ({"relay": "10.0.0.1:1"}, "--relay must be unix:/path"),
        ({"heap_mib": 255}, "--heap-mib must be 256 or more"),
        ({"admin": "10.0.0.9:9901"}, "without TLS"),
        ({"counters": "here"}, "--counters: 'here' is neither host:port"),
        ({"admin": "here"}, "--admin: 'here' is neither host:port"),
        ({"relay": "here"}, "--relay: 'here' is neither host:port"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(told: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        GatewaySetup(**{"name": "eu-1", "control_planes": "unix:/run/xds.sock", **told})
