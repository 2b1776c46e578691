"""The credential of requests that force a release."""

from __future__ import annotations

from django.utils.crypto import salted_hmac


def forced_key(environment: str) -> str:
    """40 hex digits that follow from the installation's secret key and the environment's name. Administrators see it."""
    return salted_hmac("sluicegate.forced", environment, algorithm="sha256").hexdigest()[:40]
