"""What a model's traffic policy may say: whose requests the gateways let through, how many of them, and whether one may be asked twice.

    tenants:
      header: x-tenant                       # believed only from a trusted proxy: SLUICEGATE_TRUSTED_PROXIES
      named: {gold: {requests_per_s: 200, burst: 300}, bronze: {requests_per_s: 20}}
      others: {requests_per_s: 10}           # everybody who is not named, and every caller who is not believed, together
    idempotent: false                        # asking twice is not asking once; true where it is not said
    retry_on_reset: true                     # also what was in flight on a server that died; false where it is not said

Only named tenants have a bucket: with one for each name that comes, 1,000 random names had no limit at all, as a bucket that was
forgotten comes back full. Source: docs/decisions/0024-tenants.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.schema import Flag, Number, Object, Problem, Record, Text, may, need

#: A count is kept for each, and a gateway never forgets one.
MOST_TENANTS: Final = 50
#: The name under which the shared bucket is counted.
OTHERS: Final = "others"
_MOST_PER_S: Final = 1_000_000
#: No header that a gateway or a protocol reads means a tenant.
_HEADER: Final = Text(
    60,
    pattern=r"(?!(?:grpc-|content-|transfer-|proxy-|x-envoy-|x-sluicegate-|x-forwarded-)|"
    r"(?:host|connection|keep-alive|te|trailer|upgrade|expect|x-request-id)$)[a-z][a-z0-9-]*",
    like="x-tenant",
    says="the name of a header of the callers' own, in lower case",
)  # fmt: skip
_NAME: Final = Text(40, pattern=r"[a-z0-9][a-z0-9_-]*", like="gold", says="a tenant's name (a-z, 0-9, - and _)")
_QUOTA: Final = Record(
    {
        "requests_per_s": need(Number(least=0.01, most=_MOST_PER_S, unit="requests a second")),
        "burst": may(Number(least=1, most=_MOST_PER_S, unit="requests")),
    }
)
TRAFFIC_POLICY: Final = Record(
    {
        "idempotent": may(Flag()),
        "retry_on_reset": may(Flag()),
        "tenants": may(
            Record(
                {"header": need(_HEADER), "named": may(Object(_QUOTA, most=MOST_TENANTS), {}), "others": need(_QUOTA)}
            )
        ),
    },
    elsewhere={"timeout_s": "Write it under objectives.", "attempt_timeout_s": "Write it under objectives."},
)


def contradictions(policy: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a policy whose fields could be read."""
    if policy.get("retry_on_reset") and policy.get("idempotent") is False:
        said = "A request that may not be asked twice cannot be asked again when its connection breaks."
        fix = "Leave out retry_on_reset, or idempotent: false."
        return [Problem("traffic_policy.retry_on_reset", said, fix), *_of_tenants(policy)]
    return _of_tenants(policy)


def _of_tenants(policy: Mapping[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    for name in policy.get("tenants", {}).get("named", {}):
        at = f"traffic_policy.tenants.named.{name}"
        if name == OTHERS:
            said = f"{OTHERS!r} is what everybody is who is not named."
            problems.append(Problem(at, said, "State their quota at traffic_policy.tenants.others."))
        else:
            _NAME.read(name, at, problems)
    return problems


def quotas_per_s(policy: Mapping[str, Any]) -> float | None:
    """Requests a second of all quotas together, the shared one too; None where the policy has no tenants."""
    tenants = policy.get("tenants")
    if not tenants:
        return None
    return sum(float(one["requests_per_s"]) for one in (*tenants["named"].values(), tenants["others"]))
