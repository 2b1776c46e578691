"""The examples of a load, mixed so that their sizes have the shares that users' requests had at the gateways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.servers.clients import request_bytes
from validators.core.inputs import Arrays, stack, with_longer_text
from validators.core.seen_sizes import LEAST_SEEN, aim_of, class_of, drawn, unseen_frac
from validators.execution.gates.context import GateContext, example_items

#: Examples that are looked at, so that a size that is rare among them is found.
_LOOKED_AT = 256
#: A larger share of users' requests without an example is said in the reason.
_WORTH_SAYING = 0.05


@dataclass(frozen=True)
class Mix:
    """The items to send, none where the examples are to be sent as they are. `told` is evidence, `caveat` ends the reason."""

    items: Sequence[Arrays] = ()
    told: dict[str, Any] = field(default_factory=lambda: {"sizes_from": "examples"})
    caveat: str = ""


def mixed(context: GateContext, longest: Sequence[Arrays], places: int) -> Mix:
    """So many items that have, with the `longest`, the shares of what was seen by bytes of a request; the same for the same seed.

    Of a class that was seen, and that no example is of, one is made by lengthening a text, where the release declares how long
    it may be.
    """
    seen = context.seen
    if seen is None or seen.requests < LEAST_SEEN or not places:
        return Mix()
    items = example_items(context, _LOOKED_AT)
    classes = [class_of(_size_of(context, item)) for item in items]
    lengthened = []
    for place, count in enumerate(seen.counts):
        made = _of_class(context, place, items[0]) if count and place not in classes else None
        if made is not None:
            items, classes = [*items, made], [*classes, place]
            lengthened.append(place)
    taken = [class_of(_size_of(context, item)) for item in longest]
    chosen = drawn(classes, seen.counts, places, taken=taken, seed=context.policy.of("load")["seed"])
    sent = [*(classes[at] for at in chosen), *taken] if chosen else []
    unseen = unseen_frac([*classes, *taken], seen.counts)
    told = {
        "sizes_from": "seen" if chosen else "examples",
        "sizes_seen": {
            "counts": list(seen.counts), "environment": seen.environment, "since": seen.since_at.isoformat(),
            "until": seen.until_at.isoformat(),
        },
        "sizes_sent": [sent.count(place) for place in range(len(seen.counts))],
        "sizes_lengthened": lengthened,
        "unseen_frac": round(unseen, 6),
    }  # fmt: skip
    caveat = (
        f" For {unseen:.0%} of users' requests there is no example of their size." if unseen > _WORTH_SAYING else ""
    )
    return Mix([items[at] for at in chosen], told, caveat)


def _of_class(context: GateContext, place: int, example: Arrays) -> Arrays | None:
    more = aim_of(place) - _size_of(context, example)
    made = with_longer_text(context.inputs, context.envelope.get("limits") or {}, example, more)
    return made if made is not None and class_of(_size_of(context, made)) == place else None


def _size_of(context: GateContext, item: Arrays) -> int:
    """Bytes of a request of this one item."""
    batch, protocol = stack([item], has_batch_axis=context.has_batch_axis), context.policy.of("load")["protocol"]
    return request_bytes(context.model, batch, protocol=protocol, speaks=context.speaks)
