"""The gateway's request guard: what of a request would harm a server is refused before any server hears of it.

One message of 30 bytes, or a body of 88, ends a Triton server or its model's process; a hundred kilobytes of brackets do, too. Nobody
has to be known to send them. So the gateway takes each request whole, reads what its JSON or its message claims, and answers itself:

    refused                                                        HTTP    gRPC
    JSON nested too deeply, too many names, a length that lies     400     -
    shapes that claim more elements than the request has bytes     400     INVALID_ARGUMENT 3
    a batch larger than any release of the model declares          400     INVALID_ARGUMENT 3
    too many fields, what is no message, more than one message     -       INVALID_ARGUMENT 3
    a body or a message that is compressed                         415     INVALID_ARGUMENT 3
    a body above what the model takes, JSON above what is read     413     RESOURCE_EXHAUSTED 8
    a head that is too large                                       431     RESOURCE_EXHAUSTED 8
    a gRPC path with a query, -bin metadata that are no base64     -       INVALID_ARGUMENT 3
    a content type of gRPC on an HTTP call (a route refuses it)    415     INVALID_ARGUMENT 3
    another method than POST (a route refuses it)                  405     UNIMPLEMENTED 12
    a head or a body that does not come in time                    408     INVALID_ARGUMENT 3

It also writes down the tenant and the class of a request (`serving.traffic.control_plane.tenants`), because a filter of its own costs
each request as much again.

Messages of gRPC streams pass unread (docs/decisions/0014-the-request-guard.md), so streams have a route only where asked for.

Source of every number: measured on Triton 2.51 and Envoy 1.40; `tests/real/test_request_guard.py` holds the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from registry.core.traffic import OTHERS
from serving.traffic.control_plane.calls import NAMING_PATHS, STREAM_HEADER
from serving.traffic.control_plane.clusters import NAMESPACE, SHED
from serving.traffic.control_plane.own_answers import ALL_STATISTICS, ASKS_READY, DRAINED, HEALTH_CHECK, HEALTH_OF_MODEL
from serving.traffic.control_plane.request_classes import CLASS_HEADER
from serving.traffic.control_plane.response_filters import AWAITED, BODY_HEADER
from serving.traffic.control_plane.stream_model import STREAM_FILTER
from serving.traffic.control_plane.tenants import PEERS
from serving.traffic.core.outcomes import Refused

#: The name of the filter, under which a virtual host tells it what its model takes.
FILTER = "request_guard"
MODEL_HEADER = "x-sluicegate-model"
#: Seconds in which the body of a request must have come. A caller that stalls or drips holds memory here, and no server.
BODY_WITHIN_S = 60.0
#: What the header says of a request whose model has no routes, or is not read yet: the name of no model.
UNKNOWN_MODEL = "-"

#: Levels of JSON. Triton's parser recurses: 36,500 levels pass, 42,000 end the process. Eight dimensions of data need eleven.
MOST_DEPTH = 64
#: Names of one JSON document. Triton looks through a list for each of its parameters: 1,000 take 9 ms of a thread, 5,000 take
#: 121 ms, 100,000 more than 30 s. 200 inputs and as many outputs, the most that a release declares, have under 2,000.
MOST_NAMES = 2000
#: Fields of one message, of its inputs and their parameters; as many as names.
MOST_FIELDS = 2000
#: Bytes of JSON. The filter holds its worker, and all that the worker does for others, for 3 ms for each megabyte, and for 9 on a machine
#: that has four times as much to do as it can. Source: `python -m benchmarks.request_guard`.
MOST_JSON_BYTES = 4 * 2**20
#: Bytes of a gRPC question about a server or a model.
MOST_QUESTION_BYTES = 16 * 1024
#: Bytes of a gRPC call's metadata, with 32 for each line. gRPC servers refuse some calls from 8 KiB on, and the gateway adds lines.
MOST_METADATA_BYTES = 7 * 1024
#: Dimensions of one tensor; numpy takes no more.
MOST_DIMS = 32
#: Of one dimension, and of all beside a 0: the registry's own limit, and nothing overflows that multiplies eight bytes by it.
LARGEST_SIZE = 2**31 - 1
#: Bytes in which a shape is written in JSON.
SHAPE_TEXT = 1024


def request_guard(*, is_drained: bool = False) -> dict[str, Any]:
    """The HTTP filter. `is_drained`: the gateway answers that it is not ready; all other requests are answered as ever."""
    limits = {
        "model_header": f'"{MODEL_HEADER}"',
        "unknown_model": f'"{UNKNOWN_MODEL}"',
        "body": f'"{BODY_HEADER}"',
        "awaited": f'"{AWAITED}"',
        "depth": MOST_DEPTH,
        "names": MOST_NAMES,
        "fields": MOST_FIELDS,
        "json": MOST_JSON_BYTES,
        "question": MOST_QUESTION_BYTES,
        "dims": MOST_DIMS,
        "size": LARGEST_SIZE,
        "shape_text": SHAPE_TEXT,
        "metadata": MOST_METADATA_BYTES,
        "encodings": "{ identity = true, gzip = true, deflate = true }",
        "about": f'"{NAMESPACE}"',
        "shed": f'"{SHED}"',
        "by_caller": f'"{Refused.BY_CALLER}"',
        "stream_filter": f'"{STREAM_FILTER}"',
        "peers": f'"{PEERS}"',
        "others": f'"{OTHERS}"',
        "class_header": f'"{CLASS_HEADER}"',
        "all_statistics": f'"{ALL_STATISTICS}"',
        "check": f'"{HEALTH_CHECK}"',
        "check_model": f'"{HEALTH_OF_MODEL}"',
        "drained": f'"{DRAINED}"' if is_drained else "nil",
        "names_itself": "{" + ", ".join(f'["{path}"] = true' for path in NAMING_PATHS) + "}",
        "stream_header": f'"{STREAM_HEADER}"',
        "asks_ready": "{" + ", ".join(f'["{path}"] = true' for path in ASKS_READY) + "}",
    }
    table = ", ".join(f"{name} = {value}" for name, value in limits.items())
    return {
        "name": FILTER,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": f"local LIMITS = {{ {table} }}\n{_script()}"},
        },
    }


def incoming_route(limits: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The route of a request while its body comes. The request guard takes it off before the request is sent on, so that
    the name of a cluster here is of none. `limits`: what `limits_metadata` returned.
    """
    return {
        "name": "incoming",
        "metadata": {"filter_metadata": limits or {}},
        "match": {"prefix": "/", "headers": [{"name": BODY_HEADER, "string_match": {"exact": AWAITED}}]},
        "route": {"cluster": "none", "max_stream_duration": {"max_stream_duration": f"{BODY_WITHIN_S:.3f}s"}},
    }


@cache
def _script() -> str:
    return Path(__file__).with_suffix(".lua").read_text(encoding="utf-8")


def limits_metadata(
    max_request_bytes: int, max_batch: int, least_deadline_ms: float, *, tells_tenants: bool
) -> dict[str, dict[str, str]]:
    """Returns metadata for the filter, of a virtual host and of its routes: the model's limits as one text.

    Args:
        max_request_bytes: largest request.
        max_batch: items in a batch; 0 for no limit.
        least_deadline_ms: a call whose own deadline is shorter is no evidence against a release that misses it.
        tells_tenants: whether the virtual host states tenants or classes.
    """
    return {
        FILTER: {"limits": f"{max_request_bytes} {max_batch or ''} {least_deadline_ms:.0f} {'tells' * tells_tenants}"}
    }
