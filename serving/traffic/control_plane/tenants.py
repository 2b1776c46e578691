"""What the gateway knows of tenants: who a request is from, of which class it is, and whether their quota has room for it.

A filter before the request guard compares the peer of the connection with the proxies that are trusted. The guard finds the model, and
writes down the tenant, one of the model's own names or `others`, and the class: never what a caller made up. A filter behind it has a
bucket for each tenant. Counts go by what was written down, so there are no more series than names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from serving.traffic.control_plane.clusters import NAMESPACE
from serving.traffic.control_plane.request_classes import class_metadata
from serving.traffic.core.request_classes import RequestClasses
from serving.traffic.core.tenants import Quota, Tenants

#: The name of the filter that limits, under which a virtual host tells it the buckets.
LIMITER = "envoy.filters.http.local_ratelimit"
#: The filter that marks requests of trusted proxies, and where it writes that down, whatever the filter is called.
PEERS = "envoy.filters.http.rbac"
_PREFIX = "type.googleapis.com/envoy.extensions.filters.http"
#: On what a quota refused: it tells this answer from that of a full release.
SHED_HEADER, SHED_BY_QUOTA = "x-sluicegate-shed", "tenant quota"


def peer_filters(trusted: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the filter that marks requests whose peer is a proxy of these networks (address/bits). Without any, there is none, and
    nobody's word on the tenant is believed.
    """
    ranges = [one.partition("/") for one in trusted]
    peers = [{"direct_remote_ip": {"address_prefix": at, "prefix_len": int(bits or 32)}} for at, _, bits in ranges]
    if not peers:
        return []
    believed = {
        "action": "ALLOW",
        "policies": {"proxies": {"permissions": [{"any": True}], "principals": peers}},
    }
    return [{"name": PEERS, "typed_config": {"@type": f"{_PREFIX}.rbac.v3.RBAC", "shadow_rules": believed}}]


def limiter() -> dict[str, Any]:
    """Returns the filter of the buckets. Where a virtual host states no bucket, it limits nothing."""
    return {
        "name": LIMITER,
        "typed_config": {"@type": f"{_PREFIX}.local_ratelimit.v3.LocalRateLimit", "stat_prefix": "tenants"},
    }


def tenant_metadata(tenants: Tenants | None, classes: RequestClasses | None = None) -> dict[str, Any]:
    """Returns a virtual host's metadata on its model's tenants and classes for the request guard; empty without both."""
    told = class_metadata(classes)
    if tenants is not None:
        told |= {"header": tenants.header, "names": {name: True for name, _ in tenants.named}}
    return told


def quotas(tenants: Tenants | None, gateways: int) -> dict[str, dict[str, Any]]:
    """The buckets of one of so many gateways, for a virtual host. They are full anew whenever a gateway takes a new one."""
    if tenants is None:
        return {}
    always = {"numerator": 100, "denominator": "HUNDRED"}
    about = {
        "metadata_key": {"key": NAMESPACE, "path": [{"key": "tenant"}]},
        "descriptor_key": "tenant",
        "source": "DYNAMIC",
    }
    return {
        LIMITER: {
            "@type": f"{_PREFIX}.local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "tenants",
            "filter_enabled": {"default_value": always, "runtime_key": "sluicegate.tenants"},
            "filter_enforced": {"default_value": always, "runtime_key": "sluicegate.tenants_enforced"},
            "token_bucket": _bucket(tenants.others, gateways),  # of whoever matches no descriptor
            "always_consume_default_token_bucket": False,
            "rate_limited_as_resource_exhausted": True,
            "rate_limits": [{"actions": [{"metadata": about}]}],
            "descriptors": [
                {"entries": [{"key": "tenant", "value": name}], "token_bucket": _bucket(quota, gateways)}
                for name, quota in tenants.named
            ],
        }
    }


def _bucket(quota: Quota, gateways: int) -> dict[str, Any]:
    most, at_once, every_s = quota.bucket(gateways)
    return {"max_tokens": most, "tokens_per_fill": at_once, "fill_interval": f"{every_s:.9f}s"}
