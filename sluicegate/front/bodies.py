"""ASGI middleware that knows who sends a body, and how long it is, before a byte of it is read.

Django reads a whole body, and spools it to disk, before it authenticates the sender; so any caller could fill the disk under the database.
Parts of uploads carry a signature in their address, which `UploadMiddleware` checks in the same way.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from django.conf import settings

from accounts.api.credentials import Headers, Unknown, require_known
from accounts.core.addresses import API
from ledger.adapters.database_errors import unavailable
from ledger.core.errors import DomainError
from registry.api import parts
from sluicegate.front.messages import App, Message, Receive, Send, header, length_of, refuse, refuse_page
from sluicegate.web_server import know_sender

log = logging.getLogger(__name__)

FILE: Final = re.compile(API + r"/releases/[0-9a-f-]{36}/files/.+", re.DOTALL)
#: A draft that announces the most files, with the longest names; a golden set, by the API or by its page.
_LARGE: Final = re.compile(rf"{API}/models/[^/]+/(releases|golden-sets)(:check)?|/models/[^/]+/golden-sets/add/")
LARGE_BYTES: Final = 16 << 20
#: Every other body: policies of a model are the longest, some 100 KiB.
OTHER_BYTES: Final = 1 << 20
#: What anybody may send where signing in begins, and nowhere else, and in what time. It stays in memory; a name and a password take
#: some hundred bytes, of which a browser makes one packet.
STRANGERS_BYTES: Final = 64 << 10
STRANGERS_S: Final = 5.0
_SIGN_IN: Final = (f"{API}/tokens", f"{API}/tokens:exchange")  # by password, and by a CI job's identity token
_SIGN_OUT: Final = "/sign-out/"  # nothing to come back to
#: A body must come without a pause of this length, and faster than this on the whole. Slower senders are told 408.
SILENT_S: Final = 20.0
WHOLE_S: Final = 30.0
LEAST_BYTES_PER_S: Final = 32 << 10


class LengthNeeded(DomainError):
    """The body's length is not declared."""

    status = 411


class TooLarge(DomainError):
    """The body is too large for this address."""

    status = 413


class TooSlow(DomainError):
    """The body did not arrive in time."""

    status = 408


@dataclass(frozen=True)
class _Rule:
    most_bytes: int
    strangers_bytes: int  # bound of all unauthenticated bodies together
    fix: str = "Send less at once."


class BodyMiddleware:
    """An ASGI application: refuses bodies without a length, over the bound, or of unknown senders; `app` gets the others.

    `require_sender` takes a request's headers and raises `Unknown` unless they say who sends it; it runs in a thread.
    """

    def __init__(self, app: App, require_sender: Callable[[Headers], None] = require_known) -> None:
        self.app = app
        self._require_sender = require_sender
        # A pool of its own: strangers wait for each other, and nobody else for them.
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="senders")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        is_part = scope["type"] == "http" and scope["method"] == "PUT" and parts.PATH.fullmatch(scope["path"])
        if scope["type"] != "http" or is_part:
            await self.app(scope, receive, send)
            return
        try:
            within_s = await self._judge(scope)
        except Unknown as error:
            if _is_page(scope):
                await _send_to_sign_in(scope, send)
            else:
                await refuse(error, scope["path"], send)
            return
        except DomainError as error:
            await _refuse(error, scope, send)
            return
        if length_of(scope):
            await _hand_on(self.app, scope, receive, send, within_s)
        else:
            await self.app(scope, receive, send)

    async def _judge(self, scope: Message) -> float:
        """Deadline of the body, in seconds. Raises for a refused body."""
        if header(scope, b"transfer-encoding"):  # the views behind would read it as empty
            raise LengthNeeded(
                "length_needed",
                "The body comes in chunks, without a Content-Length. Send it with one, as curl does for a file.",
            )
        length, rule = length_of(scope) or 0, _rule_of(scope)
        if length > rule.most_bytes:
            raise TooLarge(
                "too_large",
                f"{length} bytes are more than the {rule.most_bytes} that one request to this address may carry. {rule.fix}",
                max_bytes=rule.most_bytes,
            )
        if length <= rule.strangers_bytes:
            return STRANGERS_S
        await self._ask_who(scope)
        know_sender(scope)
        return WHOLE_S + length / LEAST_BYTES_PER_S

    async def _ask_who(self, scope: Message) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._require_sender, scope["headers"])
        except Exception as error:
            refusal = unavailable(error)
            if refusal is None:
                raise
            log.error("%s: %s", refusal.code, error)
            raise refusal from None


def _rule_of(scope: Message) -> _Rule:
    path = scope["path"]
    if scope["method"] == "PUT" and FILE.fullmatch(path):
        fix = f"Upload the file in parts: POST {API}/uploads, see docs/uploads.md."
        return _Rule(settings.MAX_SIMPLE_UPLOAD_BYTES, 0, fix)
    if path in {settings.LOGIN_URL, *_SIGN_IN}:
        return _Rule(STRANGERS_BYTES, STRANGERS_BYTES)
    return _Rule(LARGE_BYTES if _LARGE.fullmatch(path) else OTHER_BYTES, 0)


def _is_page(scope: Message) -> bool:
    return not scope["path"].startswith("/api/")


async def _refuse(error: DomainError, scope: Message, send: Send) -> None:
    await (refuse_page(error, send) if _is_page(scope) else refuse(error, scope["path"], send))


async def _send_to_sign_in(scope: Message, send: Send) -> None:
    """As the page itself would: most often a form is sent after its session has ended. The body is not read."""
    back = "" if scope["path"] == _SIGN_OUT else "?" + urlencode({"next": scope["path"]}, safe="/")
    headers = [
        (b"location", f"{settings.LOGIN_URL}{back}".encode()),
        (b"content-length", b"0"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _hand_on(app: App, scope: Message, receive: Receive, send: Send, within_s: float) -> None:
    """The request to `app`; a slow body ends as a broken connection, and gets a 408."""
    loop = asyncio.get_running_loop()
    latest = loop.time() + within_s
    is_whole = is_late = is_answered = False

    async def in_time() -> Message:
        nonlocal is_whole, is_late
        if is_whole:  # from here on it only waits for the connection's end
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), min(SILENT_S, latest - loop.time()))
        except TimeoutError:
            is_late = True
            return {"type": "http.disconnect"}
        is_whole = not message.get("more_body", False)
        return message

    async def noted(message: Message) -> None:
        nonlocal is_answered
        is_answered = True
        await send(message)

    await app(scope, in_time, noted)
    if is_late and not is_answered:
        await _refuse(TooSlow("too_slow", "The body did not arrive in time. Send it again."), scope, send)
