"""The gateway's filters for tenants: who a request is from, of which class it is, and whether their quota has room for it.

Three filters behind the request guard, which finds the model. The first compares the peer of the connection with the proxies that
are trusted; the second writes down the tenant, one of the model's own names or `others`, and the class, and never what a caller made
up; the third has a bucket for each tenant. Counts go by what was written down, so there are no more series than names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from registry.core.traffic import OTHERS
from serving.control_plane.clusters import NAMESPACE
from serving.control_plane.request_classes import CLASS_HEADER, class_metadata
from serving.core.request_classes import RequestClasses
from serving.core.tenants import Quota, Tenants

#: The name of the filter that limits, under which a virtual host tells it the buckets.
LIMITER = "envoy.filters.http.local_ratelimit"
#: The name of the filter that finds the tenant, under which a virtual host tells it the names.
FILTER = "tenants"
#: Also where this filter writes down what it found, whatever it is called.
_PEERS = "envoy.filters.http.rbac"
_PREFIX = "type.googleapis.com/envoy.extensions.filters.http"
#: On what a quota refused: it tells this answer from that of a full release.
SHED_HEADER, SHED_BY_QUOTA = "x-sluicegate-shed", "tenant quota"

_SCRIPT = f"""
-- Two headers of the tenant's name are read as one text with a comma, which is nobody's name.
function envoy_on_request(handle)
  local known = handle:virtualHost():metadata()
  local header, classes = known:get("header"), known:get("classes")
  if not header and not classes then return end
  local about = handle:streamInfo():dynamicMetadata()
  local peer = about:get("{_PEERS}") or {{}}
  local is_believed = peer["shadow_engine_result"] == "allowed"
  local tenant
  if header then
    local name = is_believed and handle:headers():get(header)
    tenant = name and (known:get("names") or {{}})[name] and name or "{OTHERS}"
    about:set("{NAMESPACE}", "tenant", tenant)
  end
  if not classes then return end
  local default = known:get("default_class")
  local said = known:get("class_header")
  said = is_believed and said and said ~= "" and handle:headers():get(said)
  local class = said and classes[said] and said or tenant and (known:get("class_of") or {{}})[tenant] or default
  about:set("{NAMESPACE}", "class", class)
  local headers = handle:headers()
  local is_made_up = headers:get("{CLASS_HEADER}")
  headers:remove("{CLASS_HEADER}")
  if class ~= default then headers:add("{CLASS_HEADER}", class) elseif not is_made_up then return end
  handle:clearRouteCache() -- the route that was found goes by what the caller wrote there
end
"""


def tenant_filters(trusted: Iterable[str]) -> list[dict[str, Any]]:
    """`trusted`: networks (address/bits) of the proxies whose word on the tenant is believed; nobody's without any."""
    ranges = [one.partition("/") for one in trusted]
    peers = [{"direct_remote_ip": {"address_prefix": at, "prefix_len": int(bits or 32)}} for at, _, bits in ranges]
    believed = {
        "action": "ALLOW",
        "policies": {"proxies": {"permissions": [{"any": True}], "principals": peers}} if peers else {},
    }
    # The script itself says when a route is to be found anew; that must not rest on Envoy's default for changed heads.
    script = {
        "@type": f"{_PREFIX}.lua.v3.Lua",
        "default_source_code": {"inline_string": _SCRIPT},
        "clear_route_cache": False,
    }
    return [
        {"name": _PEERS, "typed_config": {"@type": f"{_PREFIX}.rbac.v3.RBAC", "shadow_rules": believed}},
        {"name": FILTER, "typed_config": script},
        {
            "name": LIMITER,  # where a virtual host tells no bucket it limits nothing
            "typed_config": {"@type": f"{_PREFIX}.local_ratelimit.v3.LocalRateLimit", "stat_prefix": "tenants"},
        },
    ]


def tenant_metadata(tenants: Tenants | None, classes: RequestClasses | None = None) -> dict[str, dict[str, Any]]:
    """The metadata by which a virtual host tells which tenants and classes of requests its model has."""
    told = class_metadata(classes)
    if tenants is not None:
        told |= {"header": tenants.header, "names": {name: True for name, _ in tenants.named}}
    return {FILTER: told} if told else {}


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
