"""Addresses that Sluicegate connects to when a person names them, such as a webhook's receiver or an issuer of tokens."""

from __future__ import annotations

import ipaddress
import re

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
#: A last label that makes a host an IPv4 address: 127.1, 2130706433, 0x7f.1. Source: WHATWG URL, "ends in a number checker".
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
#: Addresses at which clouds hand out the machine's credentials, beside 169.254.169.254, which is link-local.
_METADATA = {ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")}
#: IPv6 addresses with an IPv4 address in their last four bytes. Sources: RFC 6052 (NAT64), RFC 4291 (compatible), RFC 2765 (SIIT).
_EMBEDDING = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
#: NAT64 of one network's own, and the bytes that hold the IPv4 address by the length of the network's prefix; the bytes after them
#: are 0. Sources: RFC 8215, RFC 6052 section 2.2.
_OWN_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_NAT64_BYTES = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))
#: Bytes 8 to 11 of an IPv6 address whose last four are an IPv4 address, after any prefix. Source: RFC 5214 (ISATAP).
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")
#: All IPv6 addresses that lead through the internet, but for those of documents. Sources: IANA, RFC 9637.
_GLOBAL, _OF_DOCUMENTS = ipaddress.ip_network("2000::/3"), ipaddress.ip_network("3fff::/20")


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
        if not _is_global(each) and not _within(each) and not may_be_private:
            return (
                f"{address} is a private address. Name a public one; or an administrator names it, where "
                "SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE is 1."
            )
    return ""


def _is_global(address: IpAddress) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global
    return address.is_global and address in _GLOBAL and address not in _OF_DOCUMENTS


def _within(address: IpAddress) -> tuple[IpAddress, ...]:
    """The IPv4 addresses that an IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    found: list[IpAddress] = [inner for inner in (address.ipv4_mapped, address.sixtofour) if inner is not None]
    if address.teredo is not None:
        found += address.teredo
    if any(address in network for network in _EMBEDDING) and int(address) > 1:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    packed = address.packed
    if packed[8:12] in _ISATAP:
        found.append(ipaddress.IPv4Address(packed[12:]))
    if address in _OWN_NAT64:
        forms = [bytes(packed[at] for at in places) for places in _NAT64_BYTES if not any(packed[places[-1] + 1 :])]
        found += [ipaddress.IPv4Address(form) for form in forms if any(form)]
    return tuple(found)
