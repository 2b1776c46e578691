"""Resolves a host that a person named, and leaves out the addresses that Sluicegate never connects to."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ledger.adapters.deadline_http import addresses_of
from ledger.core.outbound import address_problem


class AddressRefused(Exception):
    """Sluicegate connects to no address of the host. The message states why."""


def resolver(host: str, port: int, *, proxy: str, may_be_private: bool) -> Callable[[str, int], Sequence[str]]:
    """Returns the resolver for one connection. It returns checked addresses only, so a name that changes later leads nowhere.

    With a proxy, the proxy resolves the name. The addresses that this machine finds for the host are checked all the same.
    Raises AddressRefused.
    """
    permitted = partial(permitted_addresses, may_be_private=may_be_private)
    if not proxy:
        return permitted
    with suppress(socket.gaierror):
        permitted(host, port)
    return addresses_of


def permitted_addresses(host: str, port: int, *, may_be_private: bool) -> list[str]:
    """Those of the host's addresses that may be connected to. Raises AddressRefused when there are none, socket.gaierror."""
    found, problem = [], "The host has no address."
    for text in addresses_of(host, port):
        address = ipaddress.ip_address(text.partition("%")[0])
        refused = address_problem(address, may_be_private=may_be_private)
        problem = refused or problem
        found += [] if refused else [str(address)]
    if not found:
        raise AddressRefused(problem)
    return found
