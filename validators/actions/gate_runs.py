"""What may happen to golden sets and gate runs: the verbs of people and of the worker that runs the gates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from accounts.core.access import Actor, Verb, require, require_version
from ledger.actions import append_event, enqueue
from ledger.actions.transitions import transition
from ledger.adapters.apart import run_sized
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.core.errors import Invalid, StateChanged
from registry.actions import attest, put_blob
from registry.actions.releases import lock_release
from registry.core.attestations import GATES_TYPE, gate_evidence
from registry.models import Release, ServedModel
from registry.queries import manifest_of, require_runnable
from registry.signing import installation_keys
from serving.environments.actions.locks import lock_open
from serving.environments.queries.inventory import find_environment
from serving.models import Environment
from serving.targets.queries import get_environment
from validators import queries
from validators.actions.report_body import report_body
from validators.core.attested import predicate_facts
from validators.core.contract import tensors_of
from validators.core.entry import entry
from validators.core.evidence import plain
from validators.core.gate_diff import metrics_of
from validators.core.gates import REPLAYING
from validators.core.golden_fit import Misfit, misfit_of_lines
from validators.core.golden_set import sizes_of
from validators.core.lifecycle import MOVES, UNFINISHED, GateRunState
from validators.core.policy import Policy
from validators.core.verdict import Judgement, Verdict
from validators.models import GateResult, GateRun, GoldenSet, Measurement, Report
from validators.queries.expiry import passed_gate_run, reusable
from validators.queries.model_policy import policy_of

QUEUE = "validate"
JOB_KIND = "gate_run"
#: The event of arriving in a state.
ARRIVED = {
    GateRunState.QUEUED: "gate_run.requested",
    GateRunState.RUNNING: "gate_run.started",
    GateRunState.FINISHED: "gate_run.finished",
    GateRunState.CANCELLED: "gate_run.cancelled",
}


def add_golden_set(*, actor: Actor, model: ServedModel, data: bytes) -> tuple[GoldenSet, bool]:
    """(the golden set of these JSON lines, whether it was added now).

    Raises:
        Invalid: `golden_set_invalid`, with the lines in facts["errors"]; values are checked against the model's contract.
    """
    require(actor, Verb.EDIT_MODEL, model.team.slug, model.slug)
    tensors = tensors_of(model.contract, "inputs"), tensors_of(model.contract, "outputs")
    items, slices = run_sized(len(data), sizes_of, data, *tensors)
    blob = put_blob(data)
    with transaction.atomic():
        found, is_new = GoldenSet.objects.get_or_create(
            model=model,
            digest=sha256_of(data),
            defaults={"blob": blob, "items": items, "slices": slices, "created_by_id": actor.user_id},
        )
        if is_new:
            append_event(
                verb="golden_set.added",
                subject_type="model",
                subject_id=model.slug,
                actor=actor,
                facts={"digest": found.digest, "items": found.items, "slices": found.slices},
            )
    return found, is_new


def request_gate_run(
    *,
    actor: Actor,
    release: Release,
    environment: Environment | None = None,
    only_expired: bool = False,
    unless_passed: bool = False,
) -> tuple[GateRun, bool]:
    """(the release's gate run under its model's gate policy, whether it was created): else the one that has not finished.

    `unless_passed`: else also the one whose gates passed, if its whole report still holds.

    `only_expired`: what the newest report proved and still holds is taken over with its own dates, and those gates do not run.

    Raises:
        StateChanged: the release is a draft or retired; the environment is retired.
        Refused: it brings code that nobody waived.
        Invalid: the gate policy cannot be read, or does not fit the release; the environment has users.
        NotFound: the policy names a golden set that the model does not have.
    """
    model = release.model
    require(actor, Verb.RUN_GATES, model.team.slug, model.slug)
    require_runnable(release)
    policy = _checked_policy(release)
    where = environment or get_environment("staging")
    if where.is_routed:
        raise Invalid(
            "environment_has_users",
            f"{where.slug} serves users, and a gate's load must not reach them. Run the gates in an environment without a "
            "gateway, such as staging.",
            field="environment",
        )
    with transaction.atomic():
        lock_release(release)  # two requests at once make one gate run
        lock_open(where)
        found = queries.gate_runs().filter(release=release, state__in=UNFINISHED).first()
        if found is None and unless_passed:
            found = passed_gate_run(release, policy.digest)
        if found is not None:
            return found, False
        gate_run = GateRun.objects.create(
            release=release,
            environment=where,
            policy=policy.document,
            policy_digest=policy.digest,
            requested_by=actor.name,
        )
        taken = _taken_over(release, policy) if only_expired else {}
        GateResult.objects.bulk_create(
            GateResult(gate_run=gate_run, gate=gate, position=position, **taken.get(gate, {}))
            for position, gate in enumerate(policy.gates)
        )
        _append(gate_run, actor, "", GateRunState.QUEUED, "requested", reused=sorted(taken))
        enqueue(kind=JOB_KIND, key=f"{JOB_KIND}:{gate_run.pk}", args={"gate_run": gate_run.pk}, queue=QUEUE)
    return gate_run, True


def cancel_gate_run(*, actor: Actor, gate_run: GateRun, reason: str, expected_version: int | None = None) -> GateRun:
    """Ends it without a report; the gate that runs stops at its next step. Raises Stale, StateChanged."""
    require(actor, Verb.RUN_GATES, gate_run.release.model.team.slug, gate_run.release.model.slug)
    require_version(gate_run.version, expected_version, f"Gate run {gate_run.pk}")
    with transaction.atomic():
        return _move(
            gate_run, GateRunState.CANCELLED, actor=actor, reason=reason or "cancelled", ended_at=timezone.now()
        )


def begin_gate_run(*, actor: Actor, gate_run: GateRun) -> GateRun:
    """Running, with the stable release of now as its baseline. One that a dead worker left running goes on as it was."""
    if gate_run.state == GateRunState.RUNNING:
        return gate_run
    baseline = _baseline_of(gate_run.release)
    with transaction.atomic():
        return _move(
            gate_run,
            GateRunState.RUNNING,
            actor=actor,
            reason="its gates run",
            started_at=timezone.now(),
            baseline=baseline,
        )


def record_judgement(
    *, actor: Actor, gate_result: GateResult, judgement: Judgement, measured: Mapping[str, str | None] | None = None
) -> bool:
    """Writes a gate's verdict, once. False when it has one already: the first one wins.

    `measured`: the `validators.core.expiry.place_of` the node where it ran; None where it did not come to that.
    """
    release = gate_result.gate_run.release
    with transaction.atomic():
        now = timezone.now()
        written = GateResult.objects.filter(pk=gate_result.pk, verdict="").update(
            verdict=judgement.verdict,
            reason=judgement.reason,
            evidence=plain(judgement.evidence),
            measured=_measured(measured, gate_result.gate_run),
            ended_at=now,
            started_at=gate_result.started_at or now,
            progress_done=F("progress_total"),
        )
        if written:
            append_event(
                verb="gate.judged",
                subject_type="gate_run",
                subject_id=gate_result.gate_run_id,
                actor=actor,
                to_state=judgement.verdict,
                reason=judgement.reason,
                facts={"model": release.model.slug, "release": release.name, "gate": gate_result.gate},
            )
    gate_result.refresh_from_db()
    return bool(written)


def finish_gate_run(*, actor: Actor, gate_run: GateRun, facts: dict[str, Any]) -> Report:
    """Seals the report of a gate run whose gates all have a verdict, and ends it. `facts` (hardware, versions) go into it.

    Raises StateChanged when a gate has no verdict yet, or the gate run is not running.
    """
    runs = list(gate_run.results.select_related("reused_from").order_by("position"))
    if any(not run.verdict for run in runs):
        raise StateChanged(
            "gates_unfinished", f"Gate run {gate_run.pk} has gates without a verdict.", gate_run=gate_run.pk
        )
    verdict, reason = entry([(run.gate, Verdict(run.verdict)) for run in runs], gate_run.policy)
    body = canonical_bytes(plain(report_body(gate_run, runs, verdict, reason, facts)))
    digest = sha256_of(body)
    signature, key_id = installation_keys.sign(digest)
    with transaction.atomic():
        _move(gate_run, GateRunState.FINISHED, actor=actor, reason=reason, verdict=verdict, ended_at=timezone.now())
        report = Report.objects.create(
            gate_run=gate_run,
            release=gate_run.release,
            manifest_digest=gate_run.release.digest or "",
            policy_digest=gate_run.policy_digest,
            verdict=verdict,
            body=body.decode(),
            digest=digest,
            signature=signature,
            key_id=key_id,
        )
        Measurement.objects.bulk_create(
            Measurement(report=report, gate=one.gate, name=one.name, unit=one.unit, value=one.value)
            for run in runs
            for one in metrics_of(run.gate, run.evidence)
        )
        attest(
            actor=actor,
            release=gate_run.release,
            predicate_type=GATES_TYPE,
            predicate=gate_evidence(report_digest=digest, **predicate_facts(json.loads(body))),
            about=digest,
        )
        append_event(
            verb="report.sealed",
            subject_type="gate_run",
            subject_id=gate_run.pk,
            actor=actor,
            to_state=verdict,
            reason=reason,
            facts={
                "model": report.release.model.slug,
                "release": report.release.name,
                "digest": digest,
                "manifest_digest": report.manifest_digest,
                "policy_digest": report.policy_digest,
                "key_id": key_id,
            },
        )
    return report


def give_up_gate_run(*, actor: Actor, gate_run: GateRun, why: str) -> None:
    """Ends a gate run whose job failed for good as errored, without a report. Nothing happens to a finished one."""
    reason = f"The gates could not be run to their end: {why}"
    with transaction.atomic():
        _hold(gate_run)
        if gate_run.state == GateRunState.QUEUED:
            _move(gate_run, GateRunState.RUNNING, actor=actor, reason=reason, started_at=timezone.now())
        if gate_run.state != GateRunState.RUNNING:
            return
        for position, run in enumerate(gate_run.results.filter(verdict="").order_by("position")):
            judgement = Judgement(Verdict.ERRORED, reason)
            if position:
                judgement = Judgement(Verdict.SKIPPED, "An earlier gate could not be run.")
            record_judgement(actor=actor, gate_result=run, judgement=judgement)
        _move(
            gate_run,
            GateRunState.FINISHED,
            actor=actor,
            reason=reason,
            verdict=Verdict.ERRORED,
            ended_at=timezone.now(),
        )


def _hold(gate_run: GateRun) -> None:
    """Keeps others, a worker that is slow among them, from writing to it and its results; for who tells of several, before the first. It
    is then what they left."""
    gate_run.refresh_from_db(from_queryset=GateRun.objects.select_for_update(no_key=True))
    list(gate_run.results.select_for_update(no_key=True).order_by("pk"))


def _checked_policy(release: Release) -> Policy:
    """The model's policy, checked against what the release has."""
    policy = policy_of(release.model)
    for name in policy.document["environments"]:
        if find_environment(name) is None:  # a misspelt one would hold releases up, and nobody would know why
            field, fix = f"environments.{name}", "Name one that is there, or leave it out."
            said = f"The gate policy speaks of {name}, and there is no such environment."
            raise Invalid("gate_policy_invalid", said, errors=[{"field": field, "message": said, "fix": fix}])
    for gate in REPLAYING:
        if policy.asked_set is None:
            continue
        data = queries.golden_lines(release.model, policy.asked_set)
        outputs = tensors_of(manifest_of(release)["serving"], "outputs")
        found: Misfit | None = run_sized(len(data), misfit_of_lines, policy.of(gate), data, outputs)
        if found:
            raise Invalid(
                "gate_policy_invalid",
                f"The gate policy does not fit {release.name}: {found.message}.",
                errors=[{"field": found.field, "message": f"{found.message}.", "fix": found.fix}],
            )
    return policy


def _baseline_of(release: Release) -> Release | None:
    """The release that users are served by now, unless it is this one."""
    route = queries.stable_route(release.model)
    return route.stable if route and route.stable_id != release.pk else None


def _taken_over(release: Release, policy: Policy) -> dict[str, dict[str, Any]]:
    """{gate: the columns of its result} for those that need not run again."""
    report, results = reusable(release, policy, _baseline_of(release))
    return {
        one["gate"]: {
            "verdict": one["verdict"],
            "reason": one["reason"],
            "evidence": one["evidence"],
            "measured": one["measured"],
            "reused_from": report,
            "started_at": parse_datetime(one["started_at"]),
            "ended_at": parse_datetime(one["ended_at"]),
        }
        for one in results
    }


def _measured(place: Mapping[str, str | None] | None, gate_run: GateRun) -> dict[str, str | None]:
    return {} if place is None else {**place, "baseline": gate_run.baseline.digest if gate_run.baseline else None}


def _move(gate_run: GateRun, to: GateRunState, *, actor: Actor, reason: str, **changes: Any) -> GateRun:
    was = transition(gate_run, to, moves=MOVES, reason=reason, **changes)
    _append(gate_run, actor, was, to, reason, verdict=gate_run.verdict)
    return gate_run


def _append(gate_run: GateRun, actor: Actor, was: str, to: GateRunState, reason: str, **facts: Any) -> None:
    release = gate_run.release
    append_event(
        verb=ARRIVED[to],
        subject_type="gate_run",
        subject_id=gate_run.pk,
        actor=actor,
        from_state=str(was),
        to_state=str(to),
        reason=reason,
        facts={"model": release.model.slug, "release": release.name, "digest": release.digest, **facts},
    )
