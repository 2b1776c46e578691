"""How a gateway sends each class of requests to places of its own on the same servers.

The filter that finds the tenant finds the class, and writes it into a header that no caller can write: routes go by it. Each class's
routes have the weights of all the others, so that the split does not know of classes; only the clusters behind it are the class's own.
"""

from __future__ import annotations

from typing import Any

from serving.traffic.core.request_classes import RequestClasses

#: What the filter writes: the class, where it is not the default one.
CLASS_HEADER = "x-sluicegate-class"
#: On what was refused because the places of its class were taken.
SHED_BY_CLASS = "request class"


def class_metadata(classes: RequestClasses | None) -> dict[str, Any]:
    """What a virtual host tells the filter of its model's classes."""
    if classes is None:
        return {}
    return {
        "classes": dict.fromkeys((classes.default, *(pool.name for pool in classes.pools[1:])), True),
        "class_header": classes.header,
        "class_of": dict(classes.of_tenants),
        "default_class": classes.default,
    }


def of_class(pool: str) -> list[dict[str, Any]]:
    """What the head of a request of this class has, for a route's match; nothing for that of all other requests."""
    return [{"name": CLASS_HEADER, "string_match": {"exact": pool}}] if pool else []
