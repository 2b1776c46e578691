"""The load gate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from registry.core.schema import Integer, Number, Problem, Record, Text, may
from validators.core import recovery, token_policy
from validators.core.compare import share_of
from validators.core.envelope_values import QUANTILES, Observed, load_of, times
from validators.core.gates.fields import CONFIDENCE, FRACTION, MILLISECONDS, SECONDS, UNDECIDED, OrNone, OrWord
from validators.core.gates.gate import Demand, Evidence, FormField, Gate, Metric, Plan, Section, sentence, wrongly
from validators.core.load_defaults import LEAST_QUANTILE, MEASURED, MOST_QUANTILE, STATED, inherited
from validators.core.proof import sizing
from validators.core.seen_sizes import LEAST_SEEN
from validators.core.slo import DISPERSION_SAFETY
from validators.core.verdict import Verdict

#: Protocols of a load: the name in `serving.ports`, and the name for people.
PROTOCOLS: Final = {"grpc": "gRPC", "http": "HTTP"}
_DURATION = Number(0, 3600, above=True, unit="seconds")


def _complete(own: Section, stated: Section, read: Mapping[str, Any], objectives: Mapping[str, Any]) -> Section:
    return inherited(own, stated, objectives)


def _contradictions(read: Mapping[str, Any]) -> Iterator[Problem]:
    own = read.get("load") or {}
    yield from token_policy.problems_of(own)


def _explain(own: Section, plan: Plan) -> Iterator[Demand]:
    asked = f"{own['rate_per_s']:g}/s over {PROTOCOLS[own['protocol']]}"
    errors = f"At most {own['max_error_frac'] * 100:g} % of requests fail at {asked}."
    measured = "The share of this run, without an interval."
    if own["sizes"] == "seen":
        demands = f"Requests are as large as users' were, by the last rollout that counted {LEAST_SEEN}; before one did, as examples are."
        yield Demand("load", "load.sizes", demands, sentence("what follows, for that mix of sizes"))
    if own["slo_ms"] is None:
        lasts = float(own["duration_s"])
        yield Demand("load", "load.max_error_frac", errors, measured, lasts, lasts)
        yield Demand("load", "load.slo_ms", "No latency is asked for.", "Nothing about latency.")
        return
    needs = sizing(own)
    yield Demand("load", "load.max_error_frac", errors, measured, needs.seconds, needs.deadline_s)
    yield from _explain_latency(own)
    if recovery.is_asked(own):
        lasts = round(float(recovery.surge(own, seed=int(own["seed"]))[-1]), 1)
        demands = f"Back within the objective {own['recovery_s']:g} s after {own['burst_s']:g} s of {own['burst_factor']:g} times the rate."
        certifies = sentence("one burst of this size; not a longer one")
        yield Demand("load", "load.recovery_s", demands, certifies, lasts, lasts)


def _explain_latency(own: Section) -> Iterator[Demand]:
    needs, quantile = sizing(own), f"{own['slo_quantile'] * 100:g} %"
    says = (
        f"at most {(1 - own['slo_quantile']) * 100:.3g} % are over, {wrongly(own['confidence'])}, while slow "
        f"requests come in clumps of {own['least_dispersion']:g} or as the run itself shows"
    )
    can_pass = needs.seconds <= needs.deadline_s
    certifies = sentence(says) if can_pass else "Nothing: it can fail, and cannot pass. Raise the rate or the deadline."
    asked = {"load.slo_ms": f"{quantile} within {own['slo_ms']:g} ms; {needs.sentence}."}
    if (ttft_slo_ms := own.get("ttft_slo_ms")) is not None:
        asked["load.ttft_slo_ms"] = f"{quantile} have the first token within {ttft_slo_ms:g} ms."
    if (itl_slo_ms := own.get("itl_slo_ms")) is not None:
        asked["load.itl_slo_ms"] = (
            f"{quantile} of those with two responses have a mean of {itl_slo_ms:g} ms from one to the next."
        )
    for field, demands in asked.items():
        yield Demand("load", field, demands, certifies, needs.seconds, needs.deadline_s)


def _metrics(evidence: Evidence) -> Iterator[Metric]:
    requests = evidence.get("requests") or 0
    # The rate that was asked for: what a run offered is a random count, and differs in each of two equal runs.
    rate = evidence.get("rate_per_s", evidence.get("offered_per_s"))
    under = (("rate", rate), protocol_of(evidence), sizes_of(evidence))
    asked = (*under, ("objective", evidence.get("slo_ms")))
    phi = max(1.0, float(evidence.get("phi") or 1.0))
    for name, count, conditions in (("errors", "errors", under), ("over the objective", "over", asked)):
        if requests and isinstance(evidence.get(count), int):
            # Clustered requests weigh less.
            share = share_of(round(evidence[count] / phi), max(1, round(requests / phi)))
            value = evidence[count] / requests
            yield Metric("load", name, "frac", False, value, share.low, share.high, requests, conditions)
    for says, field in (("latency", "latency_ms"), ("first token", "ttft_ms"), ("between tokens", "itl_ms")):
        for name in ("p50", "p95", "p99"):
            if isinstance(value := (evidence.get(field) or {}).get(name), int | float):
                yield Metric("load", f"{says} {name}", "ms", False, value, n=requests, under=under)


def protocol_of(evidence: Evidence) -> tuple[str, Any]:
    """Protocol of the requests; gRPC in evidence from before it had the field."""
    return "protocol", evidence.get("protocol", "grpc")


def sizes_of(evidence: Evidence) -> tuple[str, Any]:
    """Source of the sizes: users' requests or the examples; examples in evidence from before it had the field."""
    return "mix of sizes", evidence.get("sizes_from", "examples")


def _thresholds(own: Section) -> dict[str, float | None]:
    quantile, slo_ms = own.get("slo_quantile"), own.get("slo_ms")
    asked = {f"latency p{quantile * 100:g}": slo_ms} if quantile and slo_ms else {}
    over = round(1 - quantile, 9) if quantile and slo_ms else None
    return {"errors": own.get("max_error_frac"), "over the objective": over, **asked}


def _asked_rate(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
    """Requests, or responses of streams, per second that were answered within the objective at the gate's rate."""
    rate = load_of(evidence)["rate_per_s"]
    if rate is None or "slo_test" not in evidence:
        return
    if declared["unit"] == "tokens_per_s":
        if evidence.get("responses") and verdict is Verdict.PASSED:
            yield Observed(evidence["responses"] * evidence["offered_per_s"] / evidence["requests"])
        return
    test = evidence["slo_test"]
    if verdict is Verdict.PASSED:
        yield Observed(rate)
    elif verdict is Verdict.FAILED and test["log_e_fail"] > -math.log(1 - test["confidence"]):
        yield Observed(None, bound=rate)


def _errors(evidence: Evidence, verdict: Verdict, declared: Any) -> Iterator[Observed]:
    n, phi = int(evidence.get("requests") or 0), max(1.0, float(evidence.get("phi") or 1.0))
    if n:
        share = share_of(round(evidence["errors"] / phi), max(1, round(n / phi)))
        yield Observed(
            evidence["errors"] / n,
            bound=share.low,
            proves=declared > 0,  # no count proves that there are none
            counted=n,
            needed=math.ceil(1 / declared) if declared else None,
            **load_of(evidence),
        )


class _Nothing:
    """null, and no other value."""

    def read(self, value: Any, at: str, problems: list[Problem]) -> Any:
        if value is not None:
            said = "recorded arrivals are not replayed any more."
            problems.append(Problem(at, said, "Remove it; load.arrivals_cv states how bursty the requests are."))
        return None


_SECTION: Final = Record(
    {
        "rate_per_s": may(Number(0, 10_000, above=True, unit="requests per second"), 20),
        "rate_from": may(OrNone(Text(one_of=(STATED, MEASURED), says="where the rate comes from")), None),
        "arrivals_cv": may(Number(0.1, 20), 1),
        # No policy states a trace any more. The field stays in complete policies, so that reports of before keep their policy's digest.
        "trace": may(_Nothing(), None),
        "protocol": may(Text(one_of=tuple(PROTOCOLS), says="a protocol"), "grpc"),
        "generators": may(OrWord("auto", Integer(1, 16, unit="processes")), "auto"),
        "duration_s": may(OrNone(_DURATION), None),
        "max_duration_s": may(OrNone(_DURATION), None),
        "least_dispersion": may(Number(1, 100), DISPERSION_SAFETY),
        "longest_frac": may(FRACTION, 0.125),
        "sizes": may(Text(one_of=("seen", "examples"), says="where sizes come from"), "seen"),
        "slo_ms": may(OrNone(MILLISECONDS), None),
        **{name: may(OrNone(MILLISECONDS)) for name in token_policy.FIELDS},
        "slo_quantile": may(OrNone(Number(LEAST_QUANTILE, MOST_QUANTILE)), None),
        "confidence": may(CONFIDENCE, 0.95),
        "max_error_frac": may(OrNone(FRACTION), None),
        "max_lag_ms": may(MILLISECONDS, None),
        "burst_factor": may(Number(1, 100), 3),
        "burst_s": may(Number(0, 600, unit="seconds"), 3),
        "recovery_s": may(_DURATION, 10),
        "undecided": may(UNDECIDED, "block"),
        "seed": may(Integer(0), 1),
        "timeout_s": may(SECONDS, 10),
    }
)
LOAD: Final = Gate(
    name="load",
    section=_SECTION,
    explain=_explain,
    complete=_complete,
    contradictions=_contradictions,
    runs_alone=True,
    is_watched=True,
    is_compared=True,
    metric_names=("errors", "over the objective", "latency p50", "latency p95", "latency p99"),
    metrics=_metrics,
    thresholds=_thresholds,
    reads={
        **{
            f"{name}.{share}": times(name, share) for name in ("latency_ms", "ttft_ms", "itl_ms") for share in QUANTILES
        },
        "throughput": _asked_rate,
        "error_max_frac": _errors,
    },
    figures=("latency", "rate"),
    form=(
        FormField("rate_per_s", "Load", "requests a second"),
        FormField("protocol", "Load goes over", "grpc or http", "text"),
        FormField("sizes", "Requests as large as", "seen at the gateways, or examples", "text"),
        FormField("duration_s", "Load lasts", "seconds, or until it is proven"),
        FormField("max_duration_s", "Load lasts at most", "seconds"),
        FormField("slo_ms", "Answers within", "milliseconds"),
        FormField("ttft_slo_ms", "First token within", "milliseconds, or none"),
        FormField("itl_slo_ms", "Between tokens at most", "milliseconds on average, or none"),
        FormField("slo_quantile", "At the quantile", "such as 0.99"),
        FormField("max_error_frac", "Errors under load at most", "share from 0 to 1"),
        FormField("recovery_s", "Over a burst within", "seconds"),
        FormField("undecided", "An undecided load", "block or allow", "text"),
    ),
)
