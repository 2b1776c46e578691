"""Secrets that must be read again, encrypted with the installation's own key, so that a copy of the database tells none."""

from __future__ import annotations

import base64
import hashlib
import hmac

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.utils.encoding import force_bytes

_CONTEXT = b"sluicegate/secret-box/v1"


class Unreadable(Exception):
    """The text was encrypted with another key."""


def encrypt(secret: str) -> str:
    """The secret as it may be stored."""
    return _fernet().encrypt(secret.encode()).decode()


def decrypt(stored: str) -> str:
    """The secret again. Raises Unreadable when the key (SLUICEGATE_SECRET_KEY) is another one now."""
    try:
        return _fernet().decrypt(stored.encode()).decode()
    except InvalidToken:
        raise Unreadable("it was encrypted with another SLUICEGATE_SECRET_KEY") from None


def fingerprint_of(secret: str) -> str:
    """8 hex digits by which people tell two secrets apart, and nobody who has no key of ours finds one."""
    key = hmac.new(_CONTEXT, force_bytes(settings.SECRET_KEY), hashlib.sha256).digest()
    return hmac.new(key, b"fingerprint\0" + secret.encode(), hashlib.sha256).hexdigest()[:8]


def _fernet() -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    derived = [hmac.new(_CONTEXT, force_bytes(key), hashlib.sha256).digest() for key in keys]
    return MultiFernet([Fernet(base64.urlsafe_b64encode(key)) for key in derived])
