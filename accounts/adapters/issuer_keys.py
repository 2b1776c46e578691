"""Published addresses and keys of issuers, cached: an issuer can be away for an hour without blocking sign-ins.

Numbers are those of docs/identity.md. One cache for each process; nothing in it is the only copy of anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accounts.adapters.issuer_http import IssuerUnreachable, get_json, url_problem

#: Seconds for which a reading is fresh, between two readings at least, and for which old keys serve.
FRESH_S, RETRY_S, LONGEST_S = 600.0, 30.0, 86400.0
MOST_KEYS = 100
_SUFFIX = "/.well-known/openid-configuration"
_LONGEST_WAIT_S = 12.0


class IssuerAway(Exception):
    """Nothing is known of the issuer's keys, or nothing new for a day."""


@dataclass(frozen=True)
class Discovery:
    """The issuer's checked metadata: requests to all its addresses are permitted."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    says_iss: bool = False  # RFC 9207: its answers to a sign-in name it


@dataclass(frozen=True)
class _Known:
    discovery: Discovery
    keys: tuple[Mapping[str, Any], ...]
    read_at: float


def discover(url: str, get: Callable[[str], dict[str, Any]] = get_json) -> Discovery:
    """The issuer's own description. Raises IssuerUnreachable, also when it names another issuer."""
    told = get(url.rstrip("/") + _SUFFIX)
    if told.get("issuer") != url:
        raise IssuerUnreachable(f"it calls itself {str(told.get('issuer'))[:200]!r}, and not {url!r}")
    addresses = {}
    for name in ("jwks_uri", "authorization_endpoint", "token_endpoint"):
        addresses[name] = str(told.get(name) or "")
        if (name == "jwks_uri" or addresses[name]) and (problem := url_problem(addresses[name])):
            raise IssuerUnreachable(f"its {name} cannot be used: {problem}")
    return Discovery(url, says_iss=told.get("authorization_response_iss_parameter_supported") is True, **addresses)


@dataclass
class IssuerCache:
    """Descriptions and keys by issuer. `now` is in monotonic seconds."""

    get: Callable[[str], dict[str, Any]] = get_json
    now: Callable[[], float] = time.monotonic
    _known: dict[str, _Known] = field(default_factory=dict)
    _tried_at: dict[str, float] = field(default_factory=dict)
    _problems: dict[str, str] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _own: threading.Lock = field(default_factory=threading.Lock)

    def keys(self, url: str, kid: str | None) -> tuple[Mapping[str, Any], ...]:
        """The issuer's keys; read again when they are old, or when none of them is called `kid`. Raises IssuerAway."""
        return self._read(url, lambda known: kid is None or any(key.get("kid") == kid for key in known.keys)).keys

    def discovery(self, url: str) -> Discovery:
        """Raises IssuerAway."""
        return self._read(url, lambda known: True).discovery

    def problem(self, url: str) -> str:
        """Why the last reading failed, or empty."""
        return self._problems.get(url, "")

    def read_now(self, url: str) -> tuple[Discovery, int]:
        """(description, number of keys) as the issuer has them at this moment. Raises IssuerUnreachable."""
        known = self._fetch(url)
        return known.discovery, len(known.keys)

    def forget(self, url: str) -> None:
        for cache in (self._known, self._tried_at, self._problems):
            cache.pop(url, None)

    def _read(self, url: str, suffices: Callable[[_Known], bool]) -> _Known:
        known = self._usable(url)
        if known is not None and self.now() - known.read_at < FRESH_S and suffices(known):
            return known
        with self._own:
            lock = self._locks.setdefault(url, threading.Lock())
        # With keys that may still serve, a caller does not wait for another caller's reading of a slow issuer.
        if lock.acquire(timeout=_LONGEST_WAIT_S) if known is None else lock.acquire(blocking=False):
            try:
                self._try(url)
            finally:
                lock.release()
        known = self._usable(url)
        if known is None:
            raise IssuerAway(self.problem(url) or "its keys are being read; try again in a few seconds")
        return known

    def _try(self, url: str) -> None:
        """One reading, unless there was one a moment ago."""
        tried = self._tried_at.get(url)
        if tried is not None and self.now() - tried < RETRY_S:
            return
        self._tried_at[url] = self.now()
        try:
            self._fetch(url)
        except IssuerUnreachable as error:
            self._problems[url] = str(error)

    def _fetch(self, url: str) -> _Known:
        discovery = discover(url, self.get)
        listed = self.get(discovery.jwks_uri).get("keys")
        if not isinstance(listed, list) or len(listed) > MOST_KEYS:
            raise IssuerUnreachable(f"its keys are no list of at most {MOST_KEYS}")
        keys = tuple(key for key in listed if isinstance(key, dict) and key.get("use", "sig") == "sig")
        self._known[url] = _Known(discovery, keys, self.now())
        self._problems.pop(url, None)
        return self._known[url]

    def _usable(self, url: str) -> _Known | None:
        known = self._known.get(url)
        return known if known is not None and self.now() - known.read_at < LONGEST_S else None


#: This process's own.
ISSUERS = IssuerCache()
