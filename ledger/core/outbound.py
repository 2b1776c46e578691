"""Addresses that Sluicegate connects to when a person names them, such as a webhook's receiver or an issuer of tokens."""

from __future__ import annotations

import ipaddress
import re

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
#: A last label that makes a host an IPv4 address: 127.1, 2130706433, 0x7f.1. Source: WHATWG URL, "ends in a number checker".
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
#: Addresses at which clouds hand out the machine's credentials, beside 169.254.169.254, which is link-local.
_METADATA = {ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")}
#: IPv6 addresses with an IPv4 address in their last four bytes. Source: RFC 6052 (NAT64), RFC 4291 (compatible).
_EMBEDDING = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))


def host_problem(host: str, *, may_be_private: bool) -> str:
    """Why this service connects to no such host, and what to do; empty if it may. A name is judged again once it is resolved."""
    literal = literal_address(host)
    if literal is None and _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        return "The host is a number that programs read differently. Write an address as four decimal numbers, such as 192.0.2.7."
    if literal is None and re.fullmatch(r"(.+\.)?localhost\.?", host):
        literal = ipaddress.ip_address("127.0.0.1")
    return address_problem(literal, may_be_private=may_be_private) if literal else ""


def literal_address(host: str) -> IpAddress | None:
    """The host as an address, when it is written as one."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def address_problem(address: IpAddress, *, may_be_private: bool) -> str:
    """Why this service connects to no such address, and what to do; empty if it may.

    Every address that another one carries within (IPv4 in IPv6) is looked at as well.
    """
    for each in (address, *_within(address)):
        is_odd = each.is_link_local or each.is_multicast or each.is_unspecified or each in _METADATA
        if is_odd or (each.version == 4 and each.is_reserved):
            return f"{address} is an address that Sluicegate never connects to. Name the receiver's own address."
        if not each.is_global and not _within(each) and not may_be_private:
            return (
                f"{address} is a private address. Name a public one; or an administrator names it, where "
                "SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE is 1."
            )
    return ""


def _within(address: IpAddress) -> tuple[IpAddress, ...]:
    """The IPv4 addresses that an IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    found: list[IpAddress] = [inner for inner in (address.ipv4_mapped, address.sixtofour) if inner is not None]
    if address.teredo is not None:
        found += address.teredo
    if any(address in network for network in _EMBEDDING) and int(address) > 1:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return tuple(found)
