"""ASGI middleware that bounds a caller's API requests, and reports the remaining quota.

Counted in this process alone: several web processes allow as many times more. Nothing is looked up for it, so a flood costs neither
the database nor a thread. Signed addresses of parts are not counted: a push of many small files is one piece of work.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from django.conf import settings

from accounts.api.requests import KNOWN
from accounts.core.addresses import API
from accounts.core.rate_limit import MOST_CALLERS, Allowance, Buckets
from ledger.core.errors import Throttled
from registry.api import parts
from sluicegate.front.messages import App, Message, Receive, Send, credential, header, refuse

#: What strangers get of a known caller's quota, and what a token or session that is not known costs the address that sent it.
STRANGERS_SHARE: Final = 0.05
UNKNOWN_COST: Final = 10.0


class RateLimits:
    """An ASGI application: 429 for who asked too much, and the fields `RateLimit` and `RateLimit-Policy` on each other answer.

    A caller is a token, a session, or the address of who shows neither. One whom the API has not let in has no quota of its own,
    whatever it answered (a schema or a 404 is for everybody): who tries made-up tokens spends what its address has.
    """

    def __init__(self, app: App, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self._clock = clock
        self._callers = Buckets(per_minute)
        self._strangers = Buckets(max(1, int(per_minute * STRANGERS_SHARE)))
        self._known: OrderedDict[str, None] = OrderedDict()  # authenticated callers

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_api = scope["type"] == "http" and scope["path"].startswith(f"{API}/")
        if not is_api or parts.PATH.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        caller, address = credential(scope), _address(scope)
        is_known = caller in self._known
        buckets, name = (self._callers, caller) if is_known else (self._strangers, address)
        allowed = buckets.take(name, self._clock())
        if allowed.wait_s:
            error = Throttled(
                "rate_limited",
                f"More than {allowed.quota} requests a minute came from this caller. Wait {allowed.wait_s} s; to learn of an end, "
                "ask the addresses that wait.",
                retry_after_s=allowed.wait_s,
            )
            await refuse(error, scope["path"], _with_fields(send, allowed))
            return

        known: list[bool] = []  # a list: a copy of the state shares this list

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._learn(caller, address, int(message["status"]), is_let_in=bool(known))
            await _with_fields(send, allowed)(message)

        scope.setdefault("state", {})[KNOWN] = known
        await self.app(scope, receive, noted)

    def _learn(self, caller: str, address: str, status: int, *, is_let_in: bool = False) -> None:
        if not caller:
            return
        if status == 401:
            self._known.pop(caller, None)
            self._strangers.charge(address, self._clock(), UNKNOWN_COST)
        elif is_let_in:
            self._known[caller] = None
            self._known.move_to_end(caller)
            if len(self._known) > MOST_CALLERS:
                self._known.popitem(last=False)


def _address(scope: Message) -> str:
    """Address of the request's sender, as seen by the outermost of our own proxies (SLUICEGATE_PROXIES of them)."""
    peer = str((scope.get("client") or ("", 0))[0])
    seen = [one.strip() for one in header(scope, b"x-forwarded-for").decode("latin-1").split(",") if one.strip()]
    return seen[-settings.PROXIES] if 0 < settings.PROXIES <= len(seen) else peer


def _with_fields(send: Send, allowed: Allowance) -> Send:
    async def send_with_fields(message: Message) -> None:
        if message["type"] == "http.response.start":
            fields = [(b"ratelimit-policy", allowed.policy_field.encode()), (b"ratelimit", allowed.field.encode())]
            if allowed.wait_s:
                fields.append((b"retry-after", str(allowed.wait_s).encode()))
            message = {**message, "headers": [*message["headers"], *fields]}
        await send(message)

    return send_with_fields
