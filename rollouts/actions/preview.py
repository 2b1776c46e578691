"""Preview of a rollout, with its problems, before it is requested. Creates nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings

from accounts.core.access import Actor, Verb, may, require
from accounts.core.quantities import weight_text
from ledger.core.errors import DomainError
from registry.core.coupling import changed_parts
from registry.core.coupling import warning as coupled
from registry.models import Release
from registry.queries import manifest_of
from rollouts.actions.start import (
    admitted_by,
    check_release,
    gate_policy_digest,
    policy_for,
    refuse_beside,
    refuse_frozen_start,
    refuse_own_policy,
    refuse_tried_before,
    stable_beside,
)
from rollouts.actions.weaker_policies import fewer_approvals, refuse_weaker, weakened_by
from rollouts.core.capacity import shortage
from rollouts.core.decision import listed
from rollouts.core.headroom import Headroom
from rollouts.core.policy import FULL_BP, Policy, Source
from rollouts.core.policy_weakening import differing_fields
from rollouts.core.preview import PolicyPreview, preview
from rollouts.core.watch.forecast import watch_forecast
from rollouts.models import Rollout
from rollouts.queries.approvals import MOST_NAMES, approvers_of
from rollouts.queries.beside import Beside, beside
from rollouts.queries.obstacles import does_not_hold
from rollouts.queries.prometheus_guards import query_problems
from rollouts.queries.rolled_back import MOST_TOLD, rolled_back_before
from rollouts.queries.rollout_view import frozen_view
from rollouts.queries.target import who_replaces
from rollouts.queries.traffic import Traffic, supposed
from serving.environments.core.sleep_lifecycle import SleepState
from serving.models import Environment
from serving.targets.platforms import platform_of
from serving.targets.port import Forecast
from serving.targets.queries.sleep import sleep_of
from serving.traffic.queries.routes import WarmRoute, warm_route
from serving.wiring import external_metrics
from validators.queries import closest_report
from validators.queries.entry import advice_of
from validators.queries.expiry import expired_of

#: What helps where a release would run nowhere, by the code of `serving.targets.port.Forecast`.
_REMEDIES = {
    "does_not_fit": "Add a node that it fits, or correct its envelope in a new release.",
    "no_node": "Nodes count that were heard of lately. Start one with that runtime.",
}
#: For the queries of one guard together: someone waits for the answer.
CHECK_TIMEOUT_S = 2.0
#: Codes of refusals that a preview says in words of its own.
_SAID_ELSEWHERE = {"frozen": "frozen_now", "already_stable": "already_stable"}


@dataclass(frozen=True)
class Warned:
    """`code` is stable. `level`: `refused` (the start would be), `warning`, or `note` (good to know)."""

    code: str
    level: str
    message: str

    def to_json(self) -> dict[str, str]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class _Asked:
    actor: Actor
    candidate: Release
    environment: Environment
    policy: Mapping[str, Any] | None
    plan: Policy
    warm: WarmRoute
    stable: Release | None
    forecast: Forecast
    beside: Beside
    traffic: Traffic
    found: PolicyPreview
    again: bool
    weaker: list[str]


def preview_rollout(
    *,
    actor: Actor,
    candidate: Release,
    environment: Environment,
    policy: Mapping[str, Any] | None = None,
    rate_per_s: float | None = None,
    again: bool = False,
) -> dict[str, Any]:
    """What `start_rollout` with the same arguments would do: stages, times, detection, approvals, and warnings with codes.

    `rate_per_s`: an assumed rate instead of the measured rate.

    Raises Refused (the actor may not start rollouts) and Invalid (the policy cannot be read); whatever else would refuse the
    start is among the warnings.
    """
    require(actor, Verb.START_ROLLOUT, candidate.model.team.slug, candidate.model.slug)
    plan = policy_for(candidate, environment, policy)
    warm = warm_route(candidate.model, environment)
    stable = warm.route.stable if warm.route else None
    platform, replicas = platform_of(environment), warm.wanted or 1
    forecast = platform.forecast(candidate, environment, replicas=replicas) if candidate.manifest else Forecast()
    found_beside = beside(candidate.model, environment)
    traffic = supposed(found_beside.traffic, rate_per_s)
    found = preview(
        plan,
        rate_per_s=traffic.rate_per_s,
        error_frac=traffic.error_frac or 0.0,
        slow_frac=traffic.slow_frac,
        has_stable=stable is not None,
    )
    weaker = weakened_by(candidate, environment, plan)
    asked = _Asked(
        actor, candidate, environment, policy, plan, warm, stable, forecast, found_beside, traffic, found, again, weaker
    )
    warnings = list(_warnings(asked))
    return {
        "model": candidate.model.slug,
        "undo_window_s": plan.instant_window_s if stable is not None else 0,
        "candidate": candidate.name,
        "stable": stable.name if stable else None,
        "rollback_target": stable.name if stable and warm.is_stable_warm else None,
        "environment": environment.slug,
        "policy": plan.document,
        "policy_digest": plan.digest,
        "traffic": traffic.to_json(),
        **found.to_json(),
        "approvals": [{"stage": stage, "needed": count} for stage, count in plan.approvals.items()],
        "watch": [asdict(one) for one in watch_forecast(plan, traffic.rate_per_s)],
        "frozen": frozen_view(plan),
        "can_start": not any(one.level == "refused" for one in warnings),
        "warnings": [one.to_json() for one in warnings],
    }


def _warnings(asked: _Asked) -> Iterator[Warned]:
    for refuse in _refusals(asked):
        try:
            refuse()
        except DomainError as error:
            yield Warned(_SAID_ELSEWHERE.get(error.code, error.code), "refused", error.message)
    yield from _of_report(asked)
    yield from _of_former(asked)
    yield from _of_stable(asked)
    yield from _of_capacity(asked)
    yield from _of_traffic(asked)
    yield from _of_sources(asked)
    yield from _of_own_policy(asked)
    yield from _of_people(asked)


def _refusals(asked: _Asked) -> list[Callable[[], object]]:
    """What `start_rollout` asks first, but for the report."""
    return [
        lambda: refuse_own_policy(asked.actor, asked.candidate, asked.policy),
        lambda: refuse_weaker(asked.actor, asked.candidate, asked.weaker),
        lambda: check_release(asked.candidate, asked.environment),
        lambda: refuse_frozen_start(asked.actor, asked.candidate, asked.environment, asked.plan),
        lambda: refuse_beside(asked.beside.ongoing, asked.environment),
        *([] if asked.again else [lambda: refuse_tried_before(asked.candidate, asked.environment)]),
        lambda: stable_beside(asked.candidate, asked.environment, asked.warm.route),
    ]


def _of_report(asked: _Asked) -> Iterator[Warned]:
    candidate, level = asked.candidate, "refused" if asked.environment.needs_passed_report else "warning"
    policy_digest = gate_policy_digest(candidate)
    report, is_present = closest_report(candidate, policy_digest)
    if report is None:
        yield Warned("report_missing", level, f"No gate has proven {candidate.name}. Run its gates first.")
        return
    if not is_present:
        said = f"The gates of {candidate.name} ran under another gate policy than the present one."
        again = f"Run again what changed: sluicegate gates {candidate.model.slug}/{candidate.name} --only-expired."
        yield Warned("expired_report", level, f"{said} {again}")
        return
    try:
        admitted_by(report, candidate, asked.environment, policy_digest, asked.forecast)
    except DomainError as error:
        yield Warned(error.code, "refused", error.message)
    else:
        is_held = asked.environment.needs_passed_report  # then this was asked just now
        if not is_held and (lines := expired_of(report, asked.environment, release=candidate, forecast=asked.forecast)):
            yield Warned("expired_report", "warning", does_not_hold(candidate, asked.environment, lines))
    for gate, reason in advice_of(report, asked.environment):
        said = f"{gate} did not pass, which holds nothing up in {asked.environment.slug}: {reason}"
        yield Warned("advisory_gate", "warning", said)


def _of_former(asked: _Asked) -> Iterator[Warned]:
    """What happened to this very release here before."""
    before = rolled_back_before(asked.candidate, asked.environment)
    if not before:
        return
    last = before[0]
    at = f" at {last.at:%Y-%m-%d %H:%M} UTC" if last.at else ""
    times = f"{MOST_TOLD} times or more" if len(before) >= MOST_TOLD else f"{len(before)} times in all"
    more = f" It was rolled back {times}." if len(before) > 1 else ""
    said = f"Rollout {last.rollout} rolled {asked.candidate.name} back in {last.environment}{at}: {last.why}{more}"
    yield Warned("rolled_back_before", "warning", f"{said} A release never changes: give the reason to start it again.")


def _of_stable(asked: _Asked) -> Iterator[Warned]:
    candidate, stable = asked.candidate, asked.stable
    if stable is None:
        yield Warned(
            "no_stable",
            "warning",
            f"{asked.environment.slug} serves no release of {candidate.model.slug} yet: {candidate.name} takes all traffic in "
            "one step, is held to the absolute objectives only, and there is nothing to roll back to.",
        )
        return
    if stable.pk == candidate.pk or not candidate.manifest:
        return
    parts = changed_parts(manifest_of(stable), manifest_of(candidate))
    if said := coupled(parts, candidate.name, stable.name):
        yield Warned("coupled_change", "warning", said)


def _of_capacity(asked: _Asked) -> Iterator[Warned]:
    candidate, stable = asked.candidate, asked.stable
    if stable is not None and not asked.warm.is_stable_warm:
        yield _of_cold(asked, stable)
    if not candidate.manifest:
        return
    forecast = asked.forecast
    if forecast.beside is None:
        yield Warned(forecast.code, "warning", f"{forecast.why} {_REMEDIES[forecast.code]}")
        return
    if stable is not None:
        yield from _of_replicas(asked)
    machine, held = forecast.beside
    own = {f"{candidate.model.slug} {candidate.name}": manifest_of(candidate)["envelope"]}
    why = shortage(machine.facts, {**held, **own})
    if why:
        said = f"Node {machine.name} may lack room for the candidate beside its present servers: {why}."
        yield Warned("no_capacity_for_rollback", "warning", f"{said} Free room, or add a node.")


def _of_cold(asked: _Asked, stable: Release) -> Warned:
    """That stable has no server, and whether the rollout brings it one."""
    where, candidate, plan = asked.environment.slug, asked.candidate.name, asked.plan
    sleep = sleep_of(asked.environment.pk, stable.model_id)
    if sleep is None:
        by = who_replaces(plan, stable.pk)
        said = (
            f"{stable.name} has no serving server in {where}: there is no rollback target. {candidate} is prepared; if {stable.name} "
            f"does not answer by then, {by}, and it is held to the absolute objectives only."
        )
        return Warned("no_capacity_for_rollback", "warning", said)
    wakes = (
        f"is being woken in {where}" if sleep.state == SleepState.WAKING else f"sleeps in {where} and is woken first"
    )
    said = f"{stable.name}, the rollback target, {wakes}: the rollout sends no traffic before a server of it answers"
    about = f", in about {sleep.wake_s} s if a node has room" if sleep.wake_s else ""
    return Warned("no_capacity_for_rollback", "warning", f"{said}{about}. {sleep.trouble}".rstrip())


def _of_replicas(asked: _Asked) -> Iterator[Warned]:
    """Missing capacity of the candidate on its way to stable's number of servers."""
    candidate, headroom = asked.candidate, Headroom(asked.warm.wanted)
    plan = asked.plan.facing(has_stable=True)
    weights = [*(step.weight_bp for step in plan.steps), plan.bake.weight_bp, FULL_BP]
    alone = [weight_bp for weight_bp in weights if headroom.needed_at(weight_bp) == 1]
    if alone:
        till = "" if alone[-1] == FULL_BP else f" up to {weight_text(alone[-1])}"
        said = f"{candidate.name} will have one server{till}: a server problem looks like a bad release"
        yield Warned("one_server", "note", f"{said}, and causes a rollback. Use two servers.")
    needed = headroom.needed_at(FULL_BP)
    fit = asked.forecast.replicas
    if fit >= needed:
        return
    stop = next(weight_bp for weight_bp in weights if headroom.needed_at(weight_bp) > fit)
    said = f"{weight_text(stop)} needs {headroom.needed_at(stop)} servers of {candidate.name}, and the nodes have room for {fit}"
    yield Warned("needs_replicas", "warning", f"{said}: the rollout would wait there. Free room, or add a node.")


def _of_traffic(asked: _Asked) -> Iterator[Warned]:
    rate, plan = asked.traffic.rate_per_s, asked.plan
    if rate is None:
        said = f"There is no count yet of the traffic of {asked.candidate.model.slug} in {asked.environment.slug} yet"
        yield Warned("traffic_unknown", "note", f"{said}, so the preview shows no times.")
        return
    thin = [f"{one.name} ({weight_text(one.weight_bp)})" for one in asked.found.stages if one.is_late]
    if thin:
        said = f"At {rate:g} requests/s {listed(thin)} will not see enough before the deadline. {asked.found.in_hours}"
        yield Warned("thin_traffic", "warning", said)
    elif asked.found.total_s is not None and asked.found.total_s > plan.deadline_s:
        said = f"At {rate:g} requests/s the rollout takes about {asked.found.total_s / 3600:.1f} h"
        yield Warned("thin_traffic", "warning", f"{said}, longer than its deadline of {plan.deadline_s / 3600:.1f} h.")


def _of_sources(asked: _Asked) -> Iterator[Warned]:
    sources = {guard.source: guard for guard in asked.plan.guards if not guard.is_dry_run}
    shadows = asked.plan.facing(has_stable=asked.stable is not None).shadow is not None
    if not settings.PROBER_ADDRESS and (Source.PROBER in sources or shadows):
        blind = ["shadowing"] * shadows + ["the guard on wrong answers"] * (Source.PROBER in sources)
        who = f"{listed(blind)} {'count' if len(blind) > 1 else 'counts'}"
        yield Warned(
            "no_prober",
            "warning",
            f"No prober is configured, and {who} nothing without one. Set SLUICEGATE_PROBER_ADDRESS, or leave them out.",
        )
    if not settings.PROMETHEUS_URL and Source.PROMETHEUS in sources:
        yield Warned(
            "no_metrics",
            "warning",
            f"No metrics are configured, and the guard on {sources[Source.PROMETHEUS].words} asks for them. Set "
            "PROMETHEUS_URL, or leave the guard out.",
        )
    elif Source.PROMETHEUS in sources:
        yield from _of_queries(asked)


def _of_queries(asked: _Asked) -> Iterator[Warned]:
    """Each query is asked once, now."""
    whole = Rollout(
        model=asked.candidate.model,
        environment=asked.environment,
        candidate=asked.candidate,
        stable=asked.stable,
        policy=asked.plan.document,
    )
    for said in query_problems(whole, external_metrics(), timeout_s=CHECK_TIMEOUT_S):
        yield Warned("query_says_nothing", "warning", f"{said.rstrip('.')}. Try it in Prometheus.")


def _of_own_policy(asked: _Asked) -> Iterator[Warned]:
    """How the plan differs from the model's own policy."""
    model = asked.candidate.model
    if asked.weaker and may(asked.actor, Verb.APPROVE_ROLLOUT, model.team.slug, model.slug):
        yield Warned("fewer_approvals", "warning", fewer_approvals(model.slug, asked.weaker))
    own = policy_for(asked.candidate, asked.environment, None)
    names = [name for name in differing_fields(own.document, asked.plan.document) if name != "preset"]
    if names:
        said = f"This rollout does not follow the own policy of {model.slug}: {listed(names)} differ"
        yield Warned("other_policy", "warning", f"{said}{'s' if len(names) == 1 else ''}.")


def _of_people(asked: _Asked) -> Iterator[Warned]:
    plan, candidate = asked.plan, asked.candidate
    if plan.approvals:
        stages = listed(f"{count} for {stage}" for stage, count in plan.approvals.items())
        excluded = {pk for pk in (candidate.author_id, asked.actor.user_id) if pk is not None}
        people = approvers_of(candidate.model, excluded)
        who = f"approvers: {', '.join(people)}" if people else "no person may approve yet"
        is_enough = len(people) >= min(max(plan.approvals.values()), MOST_NAMES)
        yield Warned("approval_needed", "note" if is_enough else "warning", f"It takes approvals, {stages}; {who}.")
    last = asked.beside.former
    if last is not None and last.policy_digest != plan.digest:
        names = differing_fields(last.policy, plan.document)
        said = f"The last rollout here, {last.pk}, followed another policy: {listed(names)} differ"
        yield Warned("policy_changed", "note", f"{said}{'s' if len(names) == 1 else ''}.")
