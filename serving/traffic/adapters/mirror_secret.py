"""What the prober knows a gateway by."""

from __future__ import annotations

from django.utils.crypto import salted_hmac


def mirror_secret() -> str:
    """64 hex digits that follow from the installation's secret key: control plane and prober have it without being told.

    The control plane writes it into the mirroring routes, so gateways know it, and nobody whom they serve.
    """
    return salted_hmac("sluicegate.mirror", "gateway", algorithm="sha256").hexdigest()
