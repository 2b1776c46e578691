"""Addresses behind the gateway: read, judged, and written for Envoy."""

from __future__ import annotations

import pytest

from serving.environments.core.addresses import LONGEST_PATH_BYTES, Address, gateway_identity, why_not_served_at


def test_a_gateways_certificate_names_it_by_a_uri() -> None:
    assert gateway_identity("edge-1") == "spiffe://sluicegate/gateway/edge-1"


def test_a_socket_files_path_has_at_most_107_bytes() -> None:
    longest = "/" + "a" * 106
    assert LONGEST_PATH_BYTES == 107
    assert Address.at(f"unix:{longest}") == Address(path=longest)
    for path in (f"{longest}a", "/" + "ä" * 54, "run/p.sock", ""):  # ä takes two bytes
        with pytest.raises(ValueError, match="absolute path of at most 107 bytes"):
            Address.at(f"unix:{path}")


def test_a_port_is_one_of_65535() -> None:
    assert Address.at("p:1") == Address("p", 1)
    assert Address.at("[::1]:65535") == Address("::1", 65535)
    for text in ("p:0", "p:65536", "p:-1", "p:1x", "p", ":1", "p:"):
        with pytest.raises(ValueError, match="neither host:port nor unix:/path"):
            Address.at(text)


@pytest.mark.parametrize(
    ("address", "is_ip", "is_of_this_machine"),
    [
        (Address(path="/run/p.sock"), True, True),
        (Address("127.0.0.1", 1), True, True),
        (Address("127.9.9.9", 1), True, True),
        (Address("::1", 1), True, True),
        (Address("localhost", 1), False, True),
        (Address("192.0.2.7", 1), True, False),
        (Address("2001:db8::7", 1), True, False),
        (Address("0.0.0.0", 1), True, False),
        (Address("gateway.example", 1), False, False),
    ],
)
def test_what_is_resolved_and_what_others_reach(address: Address, is_ip: bool, is_of_this_machine: bool) -> None:
    assert (address.is_ip, address.is_of_this_machine) == (is_ip, is_of_this_machine)


def test_envoy_takes_a_pipe_or_a_socket_address() -> None:
    assert Address(path="/run/p.sock").to_envoy() == {"pipe": {"path": "/run/p.sock"}}
    assert Address("p", 7).to_envoy() == {"socket_address": {"address": "p", "port_value": 7}}


@pytest.mark.parametrize(
    ("address", "networks", "says"),
    [
        ("127.0.0.1", [], ""),
        ("127.0.0.7", ["10.0.0.0/8"], ""),
        ("10.1.2.3", ["192.168.0.0/16", "10.0.0.0/8"], ""),
        ("10.1.2.3", [], "not of this machine alone"),
        ("10.1.2.3", ["10.2.0.0/16"], "in none of 10.2.0.0/16"),
        ("8.8.8.8", ["10.0.0.0/8"], "SLUICEGATE_PRIVATE_NETWORKS"),
        ("0.0.0.0", ["0.0.0.0/0"], "every address"),
        ("::1", [], "no IPv4 address"),
        ("node-7", [], "no IPv4 address"),
        ("", [], "no IPv4 address"),
    ],
)  # fmt: skip
def test_servers_listen_where_only_the_fleet_reaches_them(address: str, networks: list[str], says: str) -> None:
    why = why_not_served_at(address, networks)
    assert says in why if says else why == ""
