"""What keeps an environment from being taken out of use."""

from __future__ import annotations

from collections.abc import Iterator

from ledger.core.errors import DomainError, StateChanged
from rollouts.core.lifecycle import ACTIVE
from rollouts.models import Rollout
from serving.models import Environment
from serving.targets.queries.removal import environments_resting_on, gateways_that_speak
from serving.traffic.core.gateway_standing import SEEN_WITHIN_S
from validators.queries.gate_runs import under_way_in


def obstacles(environment: Environment) -> Iterator[DomainError]:
    """Why it may not be taken out of use now, each with what to do about it."""
    slug = environment.slug
    active = Rollout.objects.filter(environment=environment, state__in=sorted(state.value for state in ACTIVE))
    for one in active.select_related("model", "candidate").order_by("pk"):
        state = one.state.replace("_", " ")
        yield _in_use(
            f"Rollout {one.pk} of {one.model.slug} {one.candidate.name} is {state} in {slug}. Let it end, or abort it first: "
            f"sluicegate rollout abort {one.pk}",
            rollout=one.pk,
        )
    for run in under_way_in(environment):
        yield _in_use(
            f"Gate run {run.pk} of {run.release.model.slug} {run.release.name} is under way in {slug}. Let it end, or cancel it.",
            gate_run=run.pk,
        )
    for name in gateways_that_speak(environment):
        yield _in_use(
            f"Gateway {name} of {slug} is connected, so it may serve users. Drain it on the environment's page, stop "
            f"its Envoy when its requests end, and try again {SEEN_WITHIN_S:g} s later.",
            gateway=name,
        )
    if resting := environments_resting_on(environment):
        yield _in_use(
            f"Gates run in {slug}, and only releases that passed them enter {', '.join(resting)}. Keep it, or change that first: "
            f"sluicegate api PATCH /environments/{resting[0]} needs_passed_report:=false --if-match VERSION",
            environments=resting,
        )


def _in_use(message: str, **facts: object) -> StateChanged:
    return StateChanged("environment_in_use", message, **facts)
