"""The credential of requests that force a release."""

from __future__ import annotations

from django.utils.crypto import salted_hmac


def forced_key(environment: str, number: int) -> str:
    """40 hex digits that follow from the installation's secret key, the environment's name and the key's number. Administrators see it."""
    name = f"{environment}:{number}" if number else environment
    return salted_hmac("sluicegate.forced", name, algorithm="sha256").hexdigest()[:40]
