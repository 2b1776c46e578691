"""What a gate policy demands before it is run: of each threshold, how long that takes, and what a pass can certify.

Every figure is that of the planning which the gates themselves go by: `proof.sizing` and `recovery.surge` of the load,
`certify.caught` of the golden set. What nobody can tell before is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from validators.core import recovery, trace_policy
from validators.core.certify import Caught, caught, judged_slices
from validators.core.entry import advisory_in, policy_in
from validators.core.envelope_values import GATES as ENVELOPE_GATES
from validators.core.expiry import FACTS
from validators.core.gpu_checks import CHECKS
from validators.core.kept_requests import KeepRule
from validators.core.policy import PROTOCOLS, Policy
from validators.core.proof import sizing
from validators.core.seen_sizes import LEAST_SEEN
from validators.core.sweep_policy import most_batchings, run_s

#: Slices of a golden set that are told one by one, the smallest of those that are judged first: it certifies least.
MOST_SLICES: Final = 5


@dataclass(frozen=True)
class Demand:
    """A threshold of a gate. `least_s` to `most_s` seconds; `certifies`: what a pass says, and what it does not."""

    gate: str
    field: str
    demands: str
    certifies: str
    least_s: float | None = None
    most_s: float | None = None


def explain(policy: Policy, *, items: int, slices: Mapping[str, int]) -> list[Demand]:
    """The demands of the policy's gates in their order. `items` and `slices`: of the golden set that it names."""
    told: dict[str, Callable[[Mapping[str, Any]], Iterator[Demand]]] = {
        "contract": _contract, "cold_start": _cold_start, "golden": lambda own: _golden(own, items, slices), "load": _load,
        "resources": _resources, "capacity": lambda own: _capacity(own, policy.of("load")), "gpu": _gpu,
    }  # fmt: skip
    found: list[Demand] = []
    for gate in policy.gates:
        found += told[gate](policy.of(gate))
    return [*found, *_envelope(policy), *_evidence(policy.document)]


def _envelope(policy: Policy) -> Iterator[Demand]:
    own, gates = policy.of("envelope"), [gate for gate in policy.gates if gate in ENVELOPE_GATES]
    if gates:
        breach = "A breach fails its gate" if own["on_breach"] == "fail" else "A breach is a warning"
        demands = f"Declared times and rates hold within {own['tolerance_frac'] * 100:g} %, and limits on memory exactly. {breach}."
        certifies = f"The values that {', '.join(gates)} measure under the declared load; the others are unknown."
        yield Demand("envelope", "envelope.on_breach", demands, certifies)


def _evidence(document: Mapping[str, Any]) -> Iterator[Demand]:
    alike = ", ".join(FACTS[name] for name in FACTS if name in document["evidence"]["same"])
    demands = f"The same {alike} where it serves." if alike else "Nothing of where it serves."
    holds = _lasting(document["evidence"]["max_age_days"])
    yield Demand("evidence", "evidence.same", demands, f"That what was measured is true there, {holds}.")
    for name in document["environments"]:
        advisory, own = sorted(advisory_in(document, name)), policy_in(document, name)
        holds = _lasting(own["evidence"]["max_age_days"])
        advised = f"{', '.join(advisory)} only advise" if advisory else "Every gate holds a release up"
        certifies = f"Nothing of {', '.join(advisory)}." if advisory else "What every gate does."
        yield Demand("evidence", f"environments.{name}", f"{advised}; evidence holds {holds}.", certifies)


def kept(rule: KeepRule | None) -> Iterator[Demand]:
    """What is kept of users' requests, where anything may be."""
    if rule is not None:
        demands = (
            f"Of mirrored requests {rule.most} are kept with stable's answers, {rule.max_bytes} bytes each at most, "
            f"{_lasting(rule.max_age_days)}."
        )
        yield Demand("kept_requests", "kept_requests", demands, "Nothing: no gate asks for them.")


def _lasting(days: float | None) -> str:
    return "for ever" if days is None else f"for {days:g} days"


def _contract(own: Mapping[str, Any]) -> Iterator[Demand]:
    sizes = ", ".join(map(str, own["batch_sizes"]))
    tried = "each size once: one mismatch fails, and a mismatch that comes seldom may pass"
    yield Demand("contract", "contract.batch_sizes", f"Batches of {sizes} are answered as declared.", _says(tried))
    if own["edges"]:
        tried = "each mistake and each limit once, and that an ordinary request is answered after it"
        demands = "Every wrong request is refused as the caller's, and the server goes on."
        yield Demand("contract", "contract.edges", demands, _says(tried))


def _cold_start(own: Mapping[str, Any]) -> Iterator[Demand]:
    one = _says("one start on one node; not how much starts differ")
    yield Demand("cold_start", "cold_start.max_s", f"Ready within {own['max_s']:g} s.", one, None, float(own["max_s"]))
    excess = f"Of {own['inferences']} inferences the first is at most {own['max_first_excess_ms']:g} ms slower than later ones."
    yield Demand("cold_start", "cold_start.max_first_excess_ms", excess, one)


def _golden(own: Mapping[str, Any], items: int, slices: Mapping[str, int]) -> Iterator[Demand]:
    words = {
        "min_accuracy": "right answers at least",
        "min_agreement": "answers as stable's at least",
        "max_accuracy_drop": "accuracy drops at most by",
    }
    asked = [f"{text} {own[name] * 100:g} %" for name, text in words.items() if own[name] is not None]
    demands = f"Of {items} rows: {'; '.join(asked) or 'nothing is asked of all rows'}."
    yield Demand("golden", "golden.set", demands, _lost(caught(items, own)))
    judged = judged_slices(slices, own)
    sizes = sorted((count, name) for name, count in slices.items() if count >= own["min_slice_items"])
    for count, name in sizes[:MOST_SLICES]:
        demands = f"Of the {count} rows of slice {name}: limits of slices, one of {judged} that are judged."
        yield Demand("golden", "golden.max_slice_drop", demands, _lost(caught(count, own, slices=judged)))
    if judged < len(slices):
        few = f"{len(slices) - judged} slices have fewer than {own['min_slice_items']} rows."
        yield Demand("golden", "golden.min_slice_items", few, "Nothing about them by themselves.")


def _load(own: Mapping[str, Any]) -> Iterator[Demand]:
    asked = f"{own['rate_per_s']:g}/s over {PROTOCOLS[own['protocol']]}{trace_policy.words_of(own)}"
    errors = f"At most {own['max_error_frac'] * 100:g} % of requests fail at {asked}."
    measured = "The share of this run, without an interval."
    if own["sizes"] == "seen":
        demands = f"Requests are as large as users' were, by the last rollout that counted {LEAST_SEEN}; before one did, as examples are."
        yield Demand("load", "load.sizes", demands, _says("what follows, for that mix of sizes"))
    if own["slo_ms"] is None:
        lasts = float(own["duration_s"])
        yield Demand("load", "load.max_error_frac", errors, measured, lasts, lasts)
        yield Demand("load", "load.slo_ms", "No latency is asked for.", "Nothing about latency.")
        return
    needs = sizing(own)
    yield Demand("load", "load.max_error_frac", errors, measured, needs.seconds, needs.deadline_s)
    over = (1 - own["slo_quantile"]) * 100
    says = (
        f"at most {over:.3g} % are over, wrongly in no more than {(1 - own['confidence']) * 100:.3g} % of all runs, while slow "
        f"requests come in clumps of {own['least_dispersion']:g} or as the run itself shows"
    )
    can_pass = needs.seconds <= needs.deadline_s
    certifies = _says(says) if can_pass else "Nothing: it can fail, and cannot pass. Raise the rate or the deadline."
    demands = f"{own['slo_quantile'] * 100:g} % within {own['slo_ms']:g} ms; {needs.sentence}."
    yield Demand("load", "load.slo_ms", demands, certifies, needs.seconds, needs.deadline_s)
    if (ttft_slo_ms := own.get("ttft_slo_ms")) is not None:
        demands = f"{own['slo_quantile'] * 100:g} % have the first token within {ttft_slo_ms:g} ms."
        yield Demand("load", "load.ttft_slo_ms", demands, certifies, needs.seconds, needs.deadline_s)
    if (itl_slo_ms := own.get("itl_slo_ms")) is not None:
        demands = f"{own['slo_quantile'] * 100:g} % of those with two responses have a mean of {itl_slo_ms:g} ms from one to the next."
        yield Demand("load", "load.itl_slo_ms", demands, certifies, needs.seconds, needs.deadline_s)
    if recovery.is_asked(own):
        lasts = round(float(recovery.surge(own, seed=int(own["seed"]))[-1]), 1)
        demands = (
            f"Back within the objective {own['recovery_s']:g} s after {own['burst_s']:g} s of {own['burst_factor']:g} times the rate"
            f"{trace_policy.words_of(own)}."
        )
        yield Demand(
            "load", "load.recovery_s", demands, _says("one burst of this size; not a longer one"), lasts, lasts
        )


def _resources(own: Mapping[str, Any]) -> Iterator[Demand]:
    demands = f"A request leaves at most {own['max_growth_bytes']:g} bytes of memory behind, over {own['min_requests']} requests or more."
    wrong = f"wrongly in no more than {(1 - own['confidence']) * 100:.3g} % of all runs"
    leaks = _says(f"no steady leak beyond that, {wrong}; not one in pieces that are seldomer than a ninth of the run")
    yield Demand("resources", "resources.max_growth_bytes", demands, leaks, 0.0, float(own["max_soak_s"]))
    if own["max_cpu_ms"] is not None:
        demands = f"A request takes at most {own['max_cpu_ms']:g} ms of CPU time."
        yield Demand("resources", "resources.max_cpu_ms", demands, "The average of this run, without an interval.")


def _capacity(own: Mapping[str, Any], load: Mapping[str, Any]) -> Iterator[Demand]:
    demands = f"The objective holds at some rate{trace_policy.words_of(load)}."
    wrong = f"wrongly in no more than {(1 - own['confidence']) * 100:.3g} % of all runs"
    certifies = f"the objective at the proven rate, up to {own['most_per_s']:g}/s, {wrong}; not that higher rates fail"
    yield Demand("capacity", "capacity.budget_s", demands, _says(certifies), None, float(own["budget_s"]))
    if sweep := own.get("sweep"):
        rates = ", ".join(f"{share:g}" for share in sorted(sweep["of_proven"]))
        demands = (
            f"Nothing. Of a proven rate {rates} times as much are asked of {most_batchings(sweep)} servers in turn, {run_s(sweep)} s each: "
            "the release's own batching, the others, its own again."
        )
        advises = "Nothing: it advises which batching answers more in time, where that can be told from chance."
        yield Demand("capacity", "capacity.sweep", demands, advises, 0.0, float(sweep["budget_s"]))


def _gpu(own: Mapping[str, Any]) -> Iterator[Demand]:
    checks = "; ".join(CHECKS[name] for name in CHECKS if name in own["must_know"])
    certifies = _says("nothing that the driver told of this run speaks against it; not that the GPU is well afterwards")
    yield Demand("gpu", "gpu.must_know", f"Known of each GPU under load and capacity: {checks}.", certifies, 0.0, 10.0)
    if own["max_power_capped_frac"] is not None:
        demands = f"Its power limit holds it back for at most {own['max_power_capped_frac'] * 100:g} % of the time."
        yield Demand("gpu", "gpu.max_power_capped_frac", demands, "The share of this run, as the driver counts it.")


def _lost(found: Caught) -> str:
    if found.against_stable is None:
        return "Nothing: so few rows, or so little asked, that no loss of rows fails it."
    says = f"a release that loses {found.against_stable * 100:.3g} % of stable's rows fails in nine runs of ten"
    alone = found.without_stable
    if alone is None:
        return _says(f"{says}; without a stable release nothing fails it")
    return _says(f"{says}; without a stable release, one that loses {alone * 100:.3g} %")


def _says(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
