"""The requests of a load: what users will send, by class, and among them the longest that the release declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.ports import GRPC, InferenceServer, PreparedRequests
from validators.core.inputs import Arrays, longest_item, stack
from validators.core.request_classes import LONGEST, classes_of, size_of
from validators.execution.gates.context import GateContext, example_items
from validators.execution.gates.size_mix import Mix, mixed

_COUNT = 64


@dataclass(frozen=True)
class Payloads:
    """Requests to send in turn, and the class of each. `told`: what the evidence says of them, `caveat` the reason."""

    batches: Sequence[Arrays]
    kinds: Sequence[str]
    told: dict[str, Any]
    caveat: str = ""


def payloads_of(context: GateContext) -> Payloads:
    """In an order of chance, the same for the same seed."""
    policy = context.policy.of("load")
    items = example_items(context, _COUNT)
    longest, longest_of = longest_item(context.inputs, context.envelope.get("limits") or {}, items[0])
    count = round(policy["longest_frac"] * _COUNT) if longest_of else 0
    mix = mixed(context, [longest] * count, _COUNT - count) if policy["sizes"] == "seen" else Mix()
    kinds = classes_of([size_of(item) for item in mix.items or items])
    if mix.items:
        items, kinds = [*mix.items, *[longest] * count], [*kinds, *[LONGEST] * count]
    elif longest_of:
        evenly = {int((at + 0.5) * _COUNT / count) for at in range(count)}
        kinds = [LONGEST if at in evenly else kinds[at % len(items)] for at in range(_COUNT)]
        items = [longest if at in evenly else items[at % len(items)] for at in range(_COUNT)]
    order = np.random.default_rng(policy["seed"]).permutation(len(items))
    return Payloads(
        [stack([items[at]], has_batch_axis=context.has_batch_axis) for at in order],
        [kinds[at] for at in order],
        {
            "longest_frac": policy["longest_frac"] if longest_of else 0.0,
            "longest_of": longest_of,
            "class_sizes": _sizes([size_of(item) for item in items], kinds),
            **mix.told,
        },
        mix.caveat,
    )


def requests_to(
    server: InferenceServer, serving: Mapping[str, Any], payloads: Payloads, context: GateContext
) -> PreparedRequests:
    """They are streamed to a release whose `serving` says that it streams. Raises ValueError where a policy's protocol has no streams."""
    protocol, streams = context.policy.of("load")["protocol"], bool(serving.get("decoupled"))
    if streams and protocol != GRPC:
        raise ValueError(
            f"the release streams (serving.decoupled), which {protocol} does not; write load.protocol: grpc"
        )
    return server.prepared(context.model, payloads.batches, protocol=protocol, streams=streams)


def _sizes(sizes: Sequence[int], kinds: Sequence[str]) -> dict[str, list[int]]:
    """{class: [least, most]}: elements of the inputs, and bytes of texts."""
    of_kind = {
        kind: [size for size, own in zip(sizes, kinds, strict=True) if own == kind] for kind in sorted(set(kinds))
    }
    return {kind: [min(own), max(own)] for kind, own in of_kind.items()}
