"""What a sealed release says of the requests that gateways let through to it."""

from __future__ import annotations

import json
from typing import NamedTuple

from registry.core.envelope import LARGEST_REQUEST_BYTES, declared_per_s
from registry.core.kinds import DEFAULT, kind_of
from registry.core.serving import instances_of
from serving.traffic.core.admission import AdmissionLimit, Proof, admission_of
from serving.traffic.core.routes import REQUEST_BYTES


class RequestBounds(NamedTuple):
    """What gateways let through to one release: see `serving.traffic.core.routes.Arm`, and for what is in flight
    `serving.traffic.core.admission`."""

    declared_in_flight: int | None
    instances: int
    max_request_bytes: int
    has_streams: bool
    max_batch: int
    throughput_per_s: float | None = None  # the largest that the envelope declares in requests
    kind: str = DEFAULT

    def admission(self, proof: Proof | None) -> AdmissionLimit:
        """The bound on requests in flight, with the release's proof."""
        return admission_of(self.declared_in_flight, self.instances, proof, self.throughput_per_s)

    @property
    def max_in_flight(self) -> int:
        """Where nothing is proven."""
        return self.admission(None).in_flight


def bounds_of(manifest: str) -> RequestBounds:
    """The release's own `envelope.limits`: `max_concurrency`; `max_request_bytes`, within what a gateway can hold; `streaming`; how many
    instances of its model there are, and `serving.max_batch_size`. Read from what was sealed, so they never change for a release.
    """
    document = json.loads(manifest) if manifest else {}
    limits = (document.get("envelope") or {}).get("limits") or {}
    return RequestBounds(
        int(limits["max_concurrency"]) if limits.get("max_concurrency") else None,
        max(instances_of(document.get("serving") or {}), 1),
        min(int(limits.get("max_request_bytes") or REQUEST_BYTES), LARGEST_REQUEST_BYTES),
        limits.get("streaming") is True,
        int((document.get("serving") or {}).get("max_batch_size") or 0),
        declared_per_s(document.get("envelope") or {}),
        kind_of(document).name if document else DEFAULT,
    )
