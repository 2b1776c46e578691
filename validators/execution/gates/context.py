"""What a gate may know of the release it judges, and of the stable one it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from serving.ports import InferenceServer
from serving.servers.core.made_up import made_up_items
from serving.servers.core.warm_requests import requests
from serving.targets.core.use import Reading
from validators.core.contract import Tensor, tensors_of
from validators.core.expiry import uses_gpu
from validators.core.golden_set import GoldenItem, Label
from validators.core.gpu_checks import Watch
from validators.core.input_use import same_answers
from validators.core.inputs import Arrays, as_bytes, item_arrays
from validators.core.load import Floats, arrivals_of
from validators.core.policy import Policy
from validators.core.sample import sample_of
from validators.core.seen_sizes import SeenSizes


@dataclass(frozen=True)
class Baseline:
    """The stable release to compare with: its stored answers, or else its server, or neither (`absent_because`)."""

    name: str
    answers: Sequence[Label | None] | None = None
    server: InferenceServer | None = None
    serving: Mapping[str, Any] = field(default_factory=dict)
    absent_because: str = ""

    @property
    def is_asked(self) -> bool:
        return self.answers is None and self.server is not None


class OutOfTime(Exception):
    """The gate has had all the time that its policy gives it."""


@dataclass(frozen=True)
class GateContext:
    """All that a gate may know. `progress(done, total)` may raise, which ends the gate without a verdict: OutOfTime, or what ends the run.

    The count of done work never falls; more work than expected raises the total.
    """

    model: str
    release: str
    serving: Mapping[str, Any]  # of the manifest
    envelope: Mapping[str, Any]
    contract: Mapping[str, Any]  # of the model
    policy: Policy
    server: InferenceServer
    timings: Mapping[str, float]
    progress: Callable[[int, int], None]
    backend: str = ""  # of the release's runtime
    speaks: str = ""  # protocol of the release's server: `registry.core.kinds.spoken_by`
    hardware: str = ""  # what the server computes on, by name; empty where nobody knows
    items: Sequence[GoldenItem] = ()
    baseline: Baseline | None = None
    say: Callable[[str], None] = lambda sentence: None  # what is being done, for who watches
    stable: Callable[[], Baseline | None] = lambda: (
        None
    )  # brings the stable release up beside it; None where there is none
    seen: SeenSizes | None = None  # of users' requests; None where too few were counted
    earlier: Callable[[str], Mapping[str, Any]] = lambda gate: {}  # evidence of a gate that measured this very server
    readings: Callable[[float, float], Sequence[Reading]] = (
        lambda since_s, until_s: ()
    )  # of the server, by the Unix clock
    gpus: Callable[[], Watch] = lambda: Watch(0, 0.0)  # what the node's agent read of its GPUs so far

    def arrivals(self, rate_per_s: float, duration_s: float, *, seed: int) -> Floats:
        """When requests are due at a rate, in the shape that the policy's load asks for."""
        return arrivals_of(self.policy.of("load"), rate_per_s, duration_s, seed=seed)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tensors_of(self.serving, "inputs")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tensors_of(self.serving, "outputs")

    @property
    def uses_gpu(self) -> bool:
        return uses_gpu({"runtime": {"backend": self.backend}, "envelope": self.envelope, "serving": self.serving})

    @property
    def queue_delay_ms(self) -> float:
        """Milliseconds for which the batcher may wait until a batch is full; 0 without one."""
        return float((self.serving.get("dynamic_batching") or {}).get("max_queue_delay_us") or 0) / 1000

    @property
    def has_batch_axis(self) -> bool:
        return int(self.serving["max_batch_size"]) > 0

    @property
    def instances(self) -> int:
        return sum(int(group["count"]) for group in self.serving.get("instance_group") or ({"count": 1},))


def example_items(context: GateContext, most: int) -> list[Arrays]:
    """Up to `most` real items: golden ones of the whole set, else the release's own warm-up, else made-up ones. At least one."""
    if context.items:
        chosen = sample_of(len(context.items), most)
        return [item_arrays(context.inputs, context.items[at].inputs) for at in chosen]
    limits = context.envelope.get("limits") or {}
    if context.serving.get("warmup"):
        with suppress(ValueError):  # the node's agent has reported it
            return _warm_items(requests(dict(context.serving), limits), most, has_batch_axis=context.has_batch_axis)
    return made_up_items(context.inputs, limits, most=most)


def _warm_items(warmup: Sequence[Arrays], most: int, *, has_batch_axis: bool) -> list[Arrays]:
    """Up to `most` different items: the first item of each warm-up request, then the second ones, and so on."""
    depths = [len(next(iter(request.values()))) if has_batch_axis else 1 for request in warmup]
    items: list[Arrays] = []
    for at in range(max(depths)):
        for request, depth in zip(warmup, depths, strict=True):
            if at >= depth or len(items) == most:
                continue
            item = {name: as_bytes(value[at] if has_batch_axis else value) for name, value in request.items()}
            if not any(same_answers(item, known) for known in items):
                items.append(item)
    return items
