"""The envelope's rows: each declared value beside the measured one, with a verdict. What was not measured is unknown, never fine.

A row is failed if the measurement refutes the declaration, passed if the measurement is within it under the declared load or a
heavier one, and unknown otherwise. Requests are few and come in clumps: a time fails only if the lower confidence bound of its
quantile is beyond the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from accounts.core.quantities import quantity_text
from validators.core.capacity import same_hardware
from validators.core.envelope_values import VALUES, Evidence, Observed, Reader, Rule, Value
from validators.core.gates import GATES, readers_of
from validators.core.verdict import Judgement, Verdict

#: Two loads are the same if one is within this of the other: the count of requests of a run is a whole number.
_SAME_LOAD: Final = 0.05
UNKNOWN: Final = "unknown"
_MOST_SENTENCES: Final = 3
_PREFERENCE: Final = ("failed", "passed", UNKNOWN)


@dataclass(frozen=True)
class Row:
    """One value. `field` is its path in the envelope; `gate` measured it, or would.

    `declared_for` and `under` are the loads of the declaration and of the measurement, in words; empty if the value has none.
    """

    field: str
    words: str
    unit: str
    declared: float | None
    declared_for: str
    measured: float | None
    gate: str
    verdict: str  # passed, failed or unknown
    under: str
    sentence: str


@dataclass(frozen=True)
class _Declared:
    """A declaration: the number, with its entry's hardware and load, and what its reader needs to know of it."""

    field: str
    number: float
    unit: str
    value: Any
    entry: Mapping[str, Any]


@dataclass(frozen=True)
class _Terms:
    """The terms of a comparison: hardware and GPUs that were measured, tolerance, the time for which a batch may wait to fill, and the
    load gate's rate, under which the resources and the gpu gate measured."""

    hardware: str
    devices: int
    tolerance: float
    queue_delay_ms: float
    load_per_s: float | None


def judged(
    found: Judgement,
    gate: str,
    envelope: Mapping[str, Any],
    policy: Mapping[str, Any],
    *,
    hardware: str,
    uses_gpu: bool,
    queue_delay_ms: float = 0.0,
    load_per_s: float | None = None,
) -> Judgement:
    """A gate's judgement with the rows that it measured in `evidence["envelope"]`: a breach fails it, unless the policy only warns.

    `policy` is the envelope section. A limit that the gate could not read is undecided. `queue_delay_ms`: the time for which the
    release's batcher may wait, which is spent under a lighter load than the declared one. `load_per_s`: the load gate's rate.
    """
    if not GATES[gate].reads or found.verdict in (Verdict.ERRORED, Verdict.SKIPPED):
        return found
    devices = int((envelope.get("accelerator") or {}).get("count") or 1)
    terms = _Terms(hardware, devices, float(policy["tolerance_frac"]), queue_delay_ms, load_per_s)
    pairs = list(_rows_of(gate, found, envelope, terms, uses_gpu=uses_gpu))
    rows = [row for _, row in pairs]
    evidence = {**found.evidence, "envelope": [asdict(row) for row in rows]}
    verdict, reason = found.verdict, found.reason
    holds_up = [row for value, row in pairs if _holds_up(value, row, gate)]
    if holds_up and verdict is Verdict.PASSED:
        verdict, reason = Verdict.UNDECIDED, f"{_together(holds_up)} {reason}"
    if broken := [row for row in rows if row.verdict == "failed"]:
        if policy["on_breach"] == "warn":
            return Judgement(verdict, f"{reason} Warning: {_together(broken)}", evidence)
        return Judgement(Verdict.FAILED, f"{_together(broken)} The gate's own limits: {reason}", evidence)
    return Judgement(verdict, reason, evidence)


def _holds_up(value: Value, row: Row, gate: str) -> bool:
    """Whether a declared value is undecided: a limit that was not read, or a throughput that was searched for and is still open."""
    if row.declared is None or row.verdict != UNKNOWN:
        return False
    if value.rule is Rule.LIMIT:
        return row.measured is None
    return value.rule is Rule.LEAST and GATES[gate].searches and row.measured is not None


def _together(rows: Sequence[Row]) -> str:
    """The first sentences, and the number of the others: an envelope may have hundreds of entries."""
    sentences = [row.sentence for row in rows[:_MOST_SENTENCES]]
    more = f" And {len(rows) - len(sentences)} more values of the envelope." if len(rows) > len(sentences) else ""
    return " ".join(sentences) + more


def table(envelope: Mapping[str, Any], gates: Sequence[Mapping[str, Any]], *, uses_gpu: bool) -> list[dict[str, Any]]:
    """One row for each value, of the gates of a report (`gate`, `verdict`, `evidence`); of several gates that measured it the most telling.

    A value that the envelope does not declare has a row too: its measurement can be declared next.
    """
    rows: dict[str, dict[str, Any]] = {}
    results = {str(one["gate"]): one for one in gates}
    for one in gates:
        for row in (one.get("evidence") or {}).get("envelope") or ():
            if row["field"] not in rows or _rank(row) < _rank(rows[row["field"]]):
                rows[row["field"]] = row
    found = []
    for value in VALUES:
        for declared in _declarations(value, envelope, uses_gpu=uses_gpu):
            field = declared.field if declared else value.field
            gate, why = _not_measured(value, results)
            blank = Row(
                field,
                value.words,
                declared.unit if declared else value.unit,
                declared.number if declared else None,
                _declared_for(value, declared.entry) if declared else "",
                None,
                gate,
                UNKNOWN,
                "",
                why,
            )
            found.append(rows.get(field) or asdict(blank))
    return found


def _rank(row: Mapping[str, Any]) -> tuple[int, bool]:
    return _PREFERENCE.index(row["verdict"]), row["measured"] is None


def _not_measured(value: Value, results: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """(the gate that would measure it, why it did not)."""
    readers = readers_of(value)
    gate = next((gate for gate in readers if gate in results), next(iter(readers)))
    if not results:
        return gate, "No gate has run."
    if gate not in results:
        return gate, f"Not measured: the policy names no {' or '.join(readers)} gate."
    verdict, evidence = results[gate]["verdict"], results[gate].get("evidence") or {}
    if verdict in (Verdict.SKIPPED, Verdict.ERRORED):
        return (
            gate,
            f"The {gate} gate {'was' if verdict == Verdict.SKIPPED else 'is'} {verdict}, and did not measure it.",
        )
    if "envelope" not in evidence:
        return gate, f"The {gate} gate did not compare it with the envelope."
    return gate, "The release does not stream." if value.of_streams else f"The {gate} gate measured none."


def _rows_of(
    gate: str,
    found: Judgement,
    envelope: Mapping[str, Any],
    terms: _Terms,
    *,
    uses_gpu: bool,
) -> Iterator[tuple[Value, Row]]:
    evidence = {"rate_per_s": terms.load_per_s, "devices": terms.devices, **found.evidence}
    for value in VALUES:
        reader = GATES[gate].reads.get(value.field)
        if reader is None:
            continue
        for declared in _declarations(value, envelope, uses_gpu=uses_gpu):
            if declared is not None:
                measured = list(reader(evidence, found.verdict, declared.value))
                yield value, _row(value, declared, gate, measured, terms)
            elif row := _undeclared(value, gate, reader, evidence, found.verdict):
                yield value, row


def _declarations(value: Value, envelope: Mapping[str, Any], *, uses_gpu: bool) -> list[_Declared | None]:
    """Each declaration of the value; [None] if the envelope declares none, and nothing for a GPU that the release does not use."""
    if not value.of_entry:
        found = [_single(value, envelope)]
    else:
        found = [
            _Declared(f"performance[{at}].{value.field}", float(number), unit, given, entry)
            for at, entry in enumerate(envelope.get("performance") or ())
            if (given := _at(entry, value.field)) is not None
            for number, unit in [(given["value"], given["unit"]) if isinstance(given, Mapping) else (given, value.unit)]
        ] or [None]
    return [] if found == [None] and value.of_gpu and not uses_gpu else found


def _single(value: Value, envelope: Mapping[str, Any]) -> _Declared | None:
    """GPU memory is declared for one device; without a peak the least memory counts."""
    field = value.field
    if value.of_gpu:
        accelerator = envelope.get("accelerator") or {}
        if accelerator.get("vendor", "none") == "none":
            return None
        if "memory_mib_peak_declared" not in accelerator:
            field = "accelerator.memory_mib_min"
    given = _at(envelope, field)
    return None if given is None else _Declared(field, float(given), value.unit, given, {})


def _at(found: Any, path: str) -> Any:
    for name in path.split("."):
        found = (found or {}).get(name)
    return found


def _undeclared(value: Value, gate: str, reader: Reader, evidence: Evidence, verdict: Verdict) -> Row | None:
    """What was measured of a value that is not declared; None if a throughput has no unit yet, or nothing was measured."""
    if value.rule is Rule.LEAST:
        return None
    measured = next(reader(evidence, verdict, 0.0), None)
    if measured is None:
        return None
    says = f"{_capital(value.words)}: the envelope declares none."
    return Row(value.field, value.words, value.unit, None, "", measured.value, gate, UNKNOWN, _load(measured), says)


def _row(value: Value, declared: _Declared, gate: str, measured: Sequence[Observed], terms: _Terms) -> Row:
    row = Row(
        declared.field,
        value.words,
        declared.unit,
        declared.number,
        _declared_for(value, declared.entry),
        None,
        gate,
        UNKNOWN,
        "",
        "",
    )
    says = f"Its envelope declares {quantity_text(declared.number, declared.unit)} ({value.words})"
    if value.of_entry and (elsewhere := _elsewhere(value, declared.entry, terms.hardware)):
        return replace(row, sentence=f"{says}{elsewhere}.")
    if not measured:
        return replace(row, sentence=f"{says}; the {gate} gate could not measure it.")
    limit = _limit(value, declared.number, terms.tolerance)
    refuting = [
        one
        for one in measured
        if _is_at_most(one, declared.entry) and _refutes(value, one, limit + _waits_ms(value, one, declared, terms))
    ]
    proving = [one for one in measured if _proves(value, one, limit) and _is_at_least(one, declared.entry)]
    closest = min(measured, key=lambda one: abs((one.rate_per_s or 0.0) - _declared_rate(declared.entry)))
    told = (refuting or proving or [closest])[0]
    row = replace(row, measured=told.value, under=_load(told))
    if refuting and value.rule is Rule.LEAST:
        proven = "no rate is proven" if told.value is None else f"{quantity_text(told.value, declared.unit)} are proven"
        sentence = f"{says}; {proven}, and the objective was missed at {told.bound:.4g} requests/s."
        return replace(row, verdict="failed", sentence=sentence)
    if refuting:
        sentence = f"{says}; {_beyond(told, declared)} were measured{_after_space(_load(told))}."
        return replace(row, verdict="failed", sentence=sentence)
    if proving:
        return replace(
            row,
            verdict="passed",
            sentence=f"{says}; {quantity_text(told.value, declared.unit)} were measured{_after_space(_load(told))}.",
        )
    return replace(row, sentence=f"{says}; {_open(value, told, declared, limit)}.")


def _is_too_few(measured: Observed) -> bool:
    return measured.counted is not None and measured.needed is not None and measured.counted < measured.needed


def _limit(value: Value, declared: float, tolerance: float) -> float:
    if value.rule is Rule.LIMIT:
        return declared
    return declared / (1 + tolerance) if value.rule is Rule.LEAST else declared * (1 + tolerance)


def _waits_ms(value: Value, measured: Observed, declared: _Declared, terms: _Terms) -> float:
    """Milliseconds that a batch waits to fill under a lighter load than the declared one; 0 for what is no latency."""
    is_lighter = value.field.startswith(("latency_ms", "ttft_ms")) and not _is_at_least(measured, declared.entry)
    return terms.queue_delay_ms if is_lighter else 0.0


def _refutes(value: Value, measured: Observed, limit: float) -> bool:
    if measured.bound is None:
        return False
    return measured.bound <= limit if value.rule is Rule.LEAST else measured.bound > limit


def _proves(value: Value, measured: Observed, limit: float) -> bool:
    if measured.value is None or not measured.proves or _is_too_few(measured):
        return False
    return measured.value >= limit if value.rule is Rule.LEAST else measured.value <= limit


def _shape(entry: Mapping[str, Any]) -> tuple[str, float | None]:
    """The measurement's attribute that holds the load, and the declared load; None if the entry declares no load."""
    shape = entry.get("load_shape") or {}
    if shape.get("mode") == "closed":
        return "in_flight", shape.get("concurrency")
    return "rate_per_s", shape.get("rate_per_s")


def _declared_for(value: Value, entry: Mapping[str, Any]) -> str:
    """The load and hardware of a performance entry, as `at 20 requests/s on NVIDIA-L4`; empty outside of one."""
    if not entry:
        return ""
    name, load = _shape(entry)
    load = None if value.of_start else load
    unit = "requests/s" if name == "rate_per_s" else "requests in flight"
    return f"{'' if load is None else f'at {load:g} {unit} '}on {entry['hardware']}"


def _declared_rate(entry: Mapping[str, Any]) -> float:
    name, load = _shape(entry)
    return float(load or 0.0) if name == "rate_per_s" else 0.0


def _is_at_most(measured: Observed, entry: Mapping[str, Any]) -> bool:
    """Whether the load was the declared one or a lighter one, under which a good release is no slower."""
    return _compares(measured, entry, lambda has, load: has <= load * (1 + _SAME_LOAD))


def _is_at_least(measured: Observed, entry: Mapping[str, Any]) -> bool:
    """Whether the load was the declared one or a heavier one."""
    return _compares(measured, entry, lambda has, load: has >= load * (1 - _SAME_LOAD))


def _compares(measured: Observed, entry: Mapping[str, Any], holds: Callable[[float, float], bool]) -> bool:
    """`holds(measured load, declared load)`. A declaration without a load speaks of the load gate's rate, not of a searched one."""
    name, load = _shape(entry)
    if load is None:
        return not measured.is_overload
    has: float | None = getattr(measured, name)
    if has is None:
        return measured.rate_per_s is None and measured.in_flight is None  # it depends on no load
    return holds(has, float(load))


def _elsewhere(value: Value, entry: Mapping[str, Any], hardware: str) -> str:
    """Why no measurement of the gate is comparable with this entry; empty if one is."""
    if not same_hardware(entry["hardware"], hardware):
        return f" on {entry['hardware']}; it was measured on {hardware or 'hardware that its node did not name'}"
    if entry.get("batch_size", 1) != 1:
        return f" in batches of {entry['batch_size']}; a request of the gates has one item"
    if value.rule is Rule.LEAST and (entry.get("load_shape") or {}).get("mode") == "closed":
        return " for a closed load; the gates send requests at a rate"
    return ""


def _open(value: Value, told: Observed, declared: _Declared, limit: float) -> str:
    """Why a measurement neither proves nor refutes."""
    if value.rule is Rule.LEAST:
        proven = "no rate is" if told.value is None else f"{quantity_text(told.value, declared.unit)} are"
        return f"{proven} proven, and the declared rate is not refuted"
    has = f"{quantity_text(told.value, declared.unit)} were measured{_after_space(_load(told))}"
    if told.value is not None and told.value <= limit:
        if _is_too_few(told):
            return f"{has}, of {told.counted} requests, and {told.needed} are needed: raise load.duration_s or load.rate_per_s"
        return f"{has}, {'which was not the declared load' if told.proves else 'which is no proof of it'}"
    return f"{has}, which is not proven beyond chance, or was not the declared load"


def _beyond(told: Observed, declared: _Declared) -> str:
    """The measured value, in as many figures as tell it from the declared one."""
    shown = quantity_text(told.value, declared.unit)
    if told.value is None or told.bound is None or told.bound > told.value:
        return f"more than {shown}"
    if shown == quantity_text(declared.number, declared.unit):
        return f"{told.value:.6g} {declared.unit}".rstrip()
    return shown


def _after_space(words: str) -> str:
    return f" {words}" if words else ""


def _load(measured: Observed) -> str:
    return "" if measured.rate_per_s is None else f"at {measured.rate_per_s:.4g} requests/s"


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"
