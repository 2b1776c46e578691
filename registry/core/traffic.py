"""What a model's traffic policy may say: whose requests the gateways let through, how many of them, and whether one may be asked twice.

    tenants:
      header: x-tenant                       # believed only from a trusted proxy: SLUICEGATE_TRUSTED_PROXIES
      named: {gold: {requests_per_s: 200, burst: 300}, bronze: {requests_per_s: 20}}
      others: {requests_per_s: 10}           # everybody who is not named, and every caller who is not believed, together
    classes:
      header: x-class                        # believed as the tenant's is; may be left out where tenants tell the class
      default: interactive                   # whose class nobody tells
      named: {interactive: {share_pct: 75}, batch: {share_pct: 25, tenants: [bronze, others]}}
    idempotent: false                        # asking twice is not asking once; true where it is not said
    retry_on_reset: true                     # also what was in flight on a server that died; false where it is not said

Only named tenants have a bucket: with one for each name that comes, 1,000 random names had no limit at all, as a bucket that was
forgotten comes back full. A class has its share of the places that a release has for requests in flight. Sources:
docs/decisions/0024-tenants.md, docs/decisions/0028-request-classes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from accounts.core.slugs import slug_near
from registry.core.schema import Flag, Integer, ListOf, Number, Object, Problem, Record, Text, may, need

#: A count is kept for each, and a gateway never forgets one.
MOST_TENANTS: Final = 50
#: Each has clusters of its own on every gateway, and counts.
MOST_CLASSES: Final = 4
#: What the shares of all classes may add up to: with more, a server whose classes are all full would have twice its bound and more.
MOST_SHARES_PCT: Final = 200
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
    rule="small letters, digits and -, beginning with a letter, and none that a gateway or a protocol reads",
)  # fmt: skip
_NAME: Final = Text(
    40,
    pattern=r"[a-z0-9][a-z0-9_-]*",
    like="gold",
    says="a tenant's name",
    rule="small letters, digits, - and _, at most 40 and beginning with a letter or digit",
    near=partial(slug_near, most=40, besides="-_"),
)
_QUOTA: Final = Record(
    {
        "requests_per_s": need(Number(least=0.01, most=_MOST_PER_S, unit="requests a second")),
        "burst": may(Number(least=1, most=_MOST_PER_S, unit="requests")),
    }
)
#: Ends the name of a cluster, in which `_` parts release and protocol.
_CLASS: Final = Text(
    20,
    pattern=r"[a-z0-9][a-z0-9-]*",
    like="batch",
    says="a request class's name",
    rule="small letters, digits and -, at most 20 and beginning with a letter or digit",
    near=partial(slug_near, most=20),
)
_CLASSES: Final = Record(
    {
        "header": may(_HEADER),
        "default": need(_CLASS),
        "named": need(
            Object(
                Record(
                    {
                        "share_pct": need(Integer(1, 100, unit="percent of the bound on what is in flight")),
                        "tenants": may(ListOf(_NAME, most=MOST_TENANTS + 1), []),
                    }
                ),
                most=MOST_CLASSES,
            )
        ),
    }
)
TRAFFIC_POLICY: Final = Record(
    {
        "classes": may(_CLASSES),
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
    problems = [*_of_tenants(policy), *_of_classes(policy)]
    if policy.get("retry_on_reset") and policy.get("idempotent") is False:
        said = "A request that may not be asked twice cannot be asked again when its connection breaks."
        fix = "Leave out retry_on_reset, or idempotent: false."
        problems.append(Problem("traffic_policy.retry_on_reset", said, fix))
    return problems


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


def _of_classes(policy: Mapping[str, Any]) -> list[Problem]:
    classes = policy.get("classes") or {}
    named = classes.get("named")
    if not named:
        empty = "There is no class.", "Name its classes, or leave out classes."
        return [Problem("traffic_policy.classes.named", *empty)] if named == {} else []
    at = "traffic_policy.classes"
    problems: list[Problem] = []
    for name in named:
        _CLASS.read(name, f"{at}.named.{name}", problems)
    if "default" in classes and classes["default"] not in named:
        said = f"{classes['default']!r} is none of the classes."
        problems.append(Problem(f"{at}.default", said, f"Write one of {', '.join(sorted(named))}."))
    given = [name for one in named.values() for name in one.get("tenants", ())]
    if not given and "header" not in classes:
        said = "Nothing tells a request's class, so all would be of the default one."
        problems.append(Problem(f"{at}.header", said, "Name the header that tells it, or the tenants of a class."))
    total = sum(one.get("share_pct", 0) for one in named.values())
    if total > MOST_SHARES_PCT:
        said = f"The shares add up to {total} % of what may be in flight."
        problems.append(Problem(f"{at}.named", said, f"Let them add up to at most {MOST_SHARES_PCT}, better to 100."))
    return [*problems, *_of_their_tenants(policy, named)]


def _of_their_tenants(policy: Mapping[str, Any], named: Mapping[str, Any]) -> list[Problem]:
    tenants = policy.get("tenants")
    known = {*tenants.get("named", {}), OTHERS} if tenants else set()
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    for one, stated in sorted(named.items()):
        at = f"traffic_policy.classes.named.{one}.tenants"
        for name in stated.get("tenants", ()):
            if name not in known:
                fix = "Give them a quota at traffic_policy.tenants.named, or leave them out here."
                problems.append(Problem(at, f"{name!r} is no tenant of this policy.", fix))
            elif name in seen:
                said = f"{name!r} is of {seen[name]} already." if seen[name] != one else f"{name!r} stands here twice."
                problems.append(Problem(at, said, "A tenant is of one class."))
            seen.setdefault(name, one)
    return problems


def shares_pct(policy: Mapping[str, Any]) -> int | None:
    """What the shares of all classes add up to, in percent of the bound; None where the policy has no classes."""
    classes = policy.get("classes")
    return sum(int(one["share_pct"]) for one in classes["named"].values()) if classes else None


def quotas_per_s(policy: Mapping[str, Any]) -> float | None:
    """Requests a second of all quotas together, the shared one too; None where the policy has no tenants."""
    tenants = policy.get("tenants")
    if not tenants:
        return None
    return sum(float(one["requests_per_s"]) for one in (*tenants["named"].values(), tenants["others"]))
