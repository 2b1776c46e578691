"""Which proxy leads to an address, by the variables that curl and most programs obey. This machine is never behind one."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_PORTS: Final = {"http": 80, "https": 443}


def proxy_for(url: str, environ: Mapping[str, str]) -> str:
    """The address of the proxy through which this URL is asked, with its scheme; "" for none.

    Source: curl's variables: <scheme>_proxy, else all_proxy, unless no_proxy names the host; capital letters too.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if _is_loopback(host) or _is_excepted(host, parts.port or _PORTS.get(parts.scheme, 0), _value(environ, "no_proxy")):
        return ""
    proxy = _value(environ, f"{parts.scheme}_proxy") or _value(environ, "all_proxy")
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def without_login(proxy: str) -> str:
    """The address without user, password and path, for messages."""
    parts = urlsplit(proxy)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))


def _value(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_excepted(host: str, port: int, no_proxy: str) -> bool:
    """Whether NO_PROXY names the host: by itself, by a domain above it, by its network, each perhaps with a port, or by `*`."""
    return any(_names(entry.strip().lower(), host, port) for entry in no_proxy.split(",") if entry.strip())


def _names(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass
    name, colon, its_port = entry.rpartition(":")
    if colon and its_port.isdigit():
        if int(its_port) != port:
            return False
        entry = name.strip("[]")
    domain = entry.removeprefix("*").removeprefix(".")
    return host == domain or host.endswith(f".{domain}")
