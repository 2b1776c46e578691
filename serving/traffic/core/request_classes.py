"""Which places a release keeps for which requests: each class of a model's traffic policy has a pool of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pool:
    """`share_pct` of the requests that a release may have in flight. `name` is empty for that of the default class, and for the
    only one of a model without classes."""

    name: str = ""
    share_pct: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.share_pct <= 100:
            raise ValueError(
                f"a class with {self.share_pct} % of the places is never asked, or has more than there are"
            )


#: What a model has whose policy names no classes.
ONE_POOL = (Pool(),)


@dataclass(frozen=True)
class RequestClasses:
    """`header` names the class where it is believed; else the tenant has it (`of_tenants`), else it is `default`.

    `pools`: that of the default class first.
    """

    header: str
    default: str
    pools: tuple[Pool, ...]
    of_tenants: tuple[tuple[str, str], ...] = ()  # (tenant, class)

    @classmethod
    def of(cls, policy: Mapping[str, Any]) -> RequestClasses | None:
        """From a model's traffic policy; None where it names no classes. Raises KeyError, TypeError and ValueError."""
        stated = policy.get("classes")
        if not stated:
            return None
        default, named = str(stated["default"]), stated["named"]
        pools = [Pool(name, int(one["share_pct"])) for name, one in sorted(named.items()) if name != default]
        tenants = sorted((tenant, name) for name, one in named.items() for tenant in one.get("tenants", ()))
        first = Pool("", int(named[default]["share_pct"]))
        return cls(str(stated.get("header", "")), default, (first, *pools), tuple(tenants))
