"""Whether what the gates measured holds where a release is to serve: what must be alike for which gate, and for how long.

A fact that is not known is never the same as another, nor as itself: nobody can tell, so the gate is to run again where
somebody can. What a release does not use cannot make its evidence expire: without a GPU, its model and driver do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from registry.core.gpu_memory import asks_for_gpu
from registry.core.kinds import backend_of
from validators.core.gates import GATES, REPLAYING, WATCHED
from validators.core.gates.gate import FACTS, OF_GPU
from validators.core.telemetry import Knowledge, gpu_facts

#: Facts that a policy demands by default; a kernel is changed too often for what it changes.
USUAL: Final = tuple(name for name in FACTS if name != "kernel")
NONE: Final = "none"


def measured_together(holds: Iterable[str], gates: Iterable[str]) -> frozenset[str]:
    """Of the gates whose results hold, those that need not run again. A gate that watches GPUs and the gates under it hold
    together or not at all: a load under a GPU that was held back is measured again, and watched again."""
    held, watching = frozenset(holds), {name for name in gates if GATES[name].watches}
    together = watching | (frozenset(gates) & {*WATCHED})
    return held - together if watching and not together <= held else held


@dataclass(frozen=True)
class Expired:
    """A line of evidence that does not hold: for these gates, `measured` is not what the release will `serve` on.

    `fact` is one of FACTS, or `age`, `policy`, `golden_set`, `place`. None: nobody knows it, or it is not of this kind.
    """

    fact: str
    gates: tuple[str, ...]
    message: str
    measured: str | None = None
    serves: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "gates": list(self.gates)}


def place_of(node: str | None, facts: Mapping[str, Any], image: str | None) -> dict[str, str | None]:
    """Where something is measured or served: {"node", …FACTS}. `facts` are what the node's agent told; None is unknown."""
    gpu = gpu_facts(facts)
    has_none = gpu["state"] == Knowledge.NONE
    return {
        "node": node,
        "image": image,
        "machine": _text(facts.get("machine")),
        "gpu": NONE if has_none else " + ".join(sorted(map(str, gpu["gpus"] or ()))) or None,
        "driver": NONE if has_none else _text(facts.get("driver")),
        "tensorrt": _tensorrt(facts.get("tensorrt")),
        "cpu_model": _text(facts.get("cpu_model")),
        "cpu_count": _text(facts.get("cpu_count")),
        "kernel": _text(facts.get("system")),
    }


def uses_gpu(manifest: Mapping[str, Any]) -> bool:
    """Whether the release may compute on a GPU: its envelope, an instance group or its backend asks for one."""
    backend = backend_of(manifest)
    return asks_for_gpu(backend, manifest["serving"], manifest.get("envelope") or {})


def results_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A report's gates, each with `measured`; in reports from before that was told by gate, it is the report's own."""
    hardware = body.get("hardware") or {}
    node, image = hardware.get("node"), (body.get("runtime") or {}).get("image")
    facts = hardware.get("facts") or {}
    of_all = {**place_of(node, facts, image), "baseline": (body.get("baseline") or {}).get("manifest_digest")}
    return [{**gate, "measured": gate.get("measured") or of_all} for gate in body.get("gates") or ()]


def expired(
    results: Iterable[Mapping[str, Any]],
    *,
    judged_by: Mapping[str, Any] | None,
    policy: Mapping[str, Any],
    place: Mapping[str, str | None] | None,
    on_gpu: bool,
    now: datetime,
) -> list[Expired]:
    """Every line of these results (of `results_of`) that does not hold under `policy`, on a node like `place`, at `now`.

    `judged_by` and `policy` are documents of gate policies, the former None where nobody knows it; `place` is None where
    nobody knows on which node the release will serve.
    """
    found = list(results)
    if not found:
        return []
    gates = tuple(str(one["gate"]) for one in found)
    if place is None:
        said = "no node with its runtime image and backend takes replicas, so its place is unknown"
        lines = [Expired("place", gates, said)]
    else:
        lines = list(_elsewhere(found, place, _facts_asked(policy, on_gpu=on_gpu)))
    return [
        *_demanded_otherwise(gates, judged_by, policy),
        *lines,
        *_aged(found, policy["evidence"]["max_age_days"], now),
    ]


def _facts_asked(policy: Mapping[str, Any], *, on_gpu: bool) -> list[str]:
    return [name for name in FACTS if name in policy["evidence"]["same"] and (on_gpu or name not in OF_GPU)]


def _elsewhere(
    results: list[Mapping[str, Any]], place: Mapping[str, str | None], facts: Iterable[str]
) -> Iterator[Expired]:
    for fact in facts:
        serves, by_value = place.get(fact), {}  # type: ignore[var-annotated]
        for one in results:
            measured = one["measured"].get(fact)
            if fact in GATES[one["gate"]].depends and (measured is None or measured != serves):
                by_value.setdefault(measured, []).append(one["gate"])
        for measured, gates in by_value.items():
            before = f"measured on {measured}" if measured else "measured where nobody could tell it"
            now = f"node {place['node']} has {serves}" if serves else f"nobody can tell it of node {place['node']}"
            yield Expired(
                fact, tuple(gates), f"{FACTS[fact]} of {_listed(gates)}: {before}, and {now}", measured, serves
            )


def _demanded_otherwise(
    gates: tuple[str, ...], judged_by: Mapping[str, Any] | None, policy: Mapping[str, Any]
) -> Iterator[Expired]:
    """Gates that were judged by other demands than the policy's, and a golden gate that was asked another set."""
    before = {gate: (judged_by or {}).get(gate) for gate in gates}
    for gate in REPLAYING:
        if judged_by is None or gate not in gates:
            continue
        old, new = (document[gate].get("set") for document in (judged_by, policy))
        if old != new:
            yield Expired("golden_set", (gate,), f"{gate} was asked another set than the policy's", old, new)
            before[gate] = {**judged_by[gate], "set": new}
    envelope = (judged_by or {}).get("envelope")
    others = tuple(
        gate
        for gate, section in before.items()
        if section != policy[gate] or (GATES[gate].reads and envelope != policy["envelope"])
    )
    if others:
        was = "was" if len(others) == 1 else "were"
        yield Expired("policy", others, f"{_listed(others)} {was} judged by other demands than the policy's of today")


def _aged(results: list[Mapping[str, Any]], max_age_days: float | None, now: datetime) -> Iterator[Expired]:
    if max_age_days is None:
        return
    for one in results:
        told = one.get("ended_at")
        at = datetime.fromisoformat(told) if told else None
        if at is None or now - at > timedelta(days=max_age_days):
            when = f"{(now - at).days} days ago" if at else "at a time that nobody knows"
            said = f"{one['gate']} was measured {when}, and holds for {max_age_days:g}"
            yield Expired("age", (str(one["gate"]),), f"{said} days", told)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _text(fact: Any) -> str | None:
    return None if fact in (None, "", []) else str(fact)


def _tensorrt(told: Any) -> str | None:
    """An agent says `TensorRT <version>`, or that it is not available and why, which is a fact too."""
    text = _text(told)
    return text if text is None or text.startswith("TensorRT ") else NONE
