"""A webhook's request: the body, its signature, and the permitted addresses.

Source of the scheme: https://www.standardwebhooks.com (specification 1.0.0): headers `webhook-id`, `webhook-timestamp` and
`webhook-signature: v1,<base64>`, HMAC-SHA256 over `id.timestamp.body`, secrets written `whsec_<base64>`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from ledger.core.canonical import canonical_bytes
from ledger.core.chain import Link
from ledger.core.outbound import host_problem

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
TEST = "webhook.test"
LONGEST_TARGET = 500


def secret_text(raw: bytes) -> str:
    """The secret as its receiver writes it into the settings: `whsec_<base64>`."""
    return SECRET_PREFIX + base64.b64encode(raw).decode()


def secret_key(secret: str) -> bytes:
    """The bytes that sign. Raises ValueError when the text is no secret of ours."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not key or not secret.startswith(SECRET_PREFIX):
        raise ValueError("a webhook's secret is written whsec_<base64>")
    return key


def signatures(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> str:
    """The `webhook-signature` header: one `v1,<base64>` for each secret, with a space between them."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    made = (hmac.new(secret_key(secret), signed, hashlib.sha256).digest() for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in made)


def body_of(event: Link, *, url: str = "") -> bytes:
    """The JSON of an event, equal byte for byte at every attempt. `url`: its page, if known."""
    data = {name: value for name, value in vars(event).items() if name not in {"verb", "at", "prev_hash"}}
    return _body(event.verb, event.at.isoformat(timespec="microseconds"), data | _linked(url))


def body_of_test(webhook: int, at: str, asked_by: str, *, url: str = "") -> bytes:
    """The JSON of a test delivery. It has no event, so it has no `seq`."""
    data = {"seq": None, "subject_type": "webhook", "subject_id": str(webhook), "actor": asked_by}
    return _body(TEST, at, data | _linked(url))


def _linked(url: str) -> dict[str, str]:
    return {"url": url} if url else {}


def _body(verb: str, at: str, data: dict[str, Any]) -> bytes:
    return canonical_bytes({"type": verb, "timestamp": at, "data": data})


def url_problem(url: str, *, may_be_private: bool) -> str:
    """Problem of a webhook's address, with its fix; empty if it may be tried."""
    if len(url) > LONGEST_TARGET:
        return f"The address has {len(url)} characters; {LONGEST_TARGET} are the most."
    if not url.isascii() or not url.isprintable() or " " in url:
        return "The address has blanks or characters outside of ASCII; write them as %XX, and the host as xn--…"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"The address cannot be read: {error}. Write https://host/path."
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        return "Write the address as https://host/path, or http:// inside your own network."
    if parts.username is not None or parts.password is not None:
        return "Leave user and password out of the address; the receiver knows us by the signature."
    if parts.fragment:
        return "Leave out what follows the #; it is not sent."
    return host_problem(host, may_be_private=may_be_private)
