"""The server on which a gate run's release is tried: asked for, waited for, given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import structlog
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import DomainError, StateChanged
from registry.models import Release
from serving.actions import ensure_deployment, release_deployment
from serving.core.lifecycle import DeploymentState
from serving.models import Deployment
from serving.queries import ready_server, server_before
from validators import queries
from validators.core.fault import verdict_of_failure
from validators.core.verdict import Judgement, Verdict
from validators.execution.last_words import of_server
from validators.models import GateRun

_POLL_S = 0.25
#: How long an earlier deployment of the same release may take to go before this one cannot be made.
_DRAIN_WAIT_S = 60.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Ready:
    """A deployment with a server that answered a real inference."""

    deployment: Deployment


def staged(
    gate_run: GateRun, release: Release, *, actor: Actor, max_wait_s: float, pulse: Callable[[str], None]
) -> Ready | Judgement:
    """The ready deployment of a release in the gate run's environment; a judgement where there will be none.

    `pulse` is told the state now and then, and may raise to end the wait.
    """
    name = release.name
    try:
        deployment = _ensured(gate_run, release, actor=actor, pulse=pulse)
    except DomainError as error:
        return Judgement(
            Verdict.ERRORED, f"{name} could not be deployed: {error.message}", {"code": error.code, **error.facts}
        )
    deadline = monotonic() + max_wait_s
    last_state = DeploymentState.FETCHING.value
    while True:
        deployment.refresh_from_db()
        if deployment.state == DeploymentState.READY and ready_server(release, gate_run.environment):
            return Ready(deployment)
        evidence = {"state": deployment.state, "timings": deployment.timings, "deployment": deployment.pk}
        if deployment.state == DeploymentState.FAILED:
            verdict = verdict_of_failure(deployment.reason, last_state)
            evidence |= {"last_state": last_state, **_last_words(deployment)}
            return Judgement(verdict, f"{name} did not become ready: {deployment.reason}", evidence)
        if deployment.state in (DeploymentState.DRAINING, DeploymentState.GONE) or not deployment.is_wanted:
            return Judgement(
                Verdict.ERRORED,
                f"Somebody took {name} out of {gate_run.environment.slug}: {deployment.reason}",
                evidence,
            )
        if monotonic() > deadline:
            verdict = verdict_of_failure("", deployment.state)
            evidence |= _last_words(deployment)
            return Judgement(verdict, f"{name} was still {deployment.state} after {max_wait_s:g} s.", evidence)
        last_state = deployment.state
        pulse(f"{name} is {deployment.state} in {gate_run.environment.slug}")
        sleep(_POLL_S)


def _last_words(deployment: Deployment) -> dict[str, Any]:
    """Of its newest server; nothing where there was none."""
    server = server_before(deployment, timezone.now())
    return {"server": of_server(server)} if server else {}


def withdraw(gate_run: GateRun, *, actor: Actor) -> None:
    """Gives its servers back, unless another gate run needs them. Not in an environment with a gateway: there users may."""
    environment = gate_run.environment
    if environment.is_routed:
        return
    for release in filter(None, (gate_run.release, gate_run.baseline)):
        if queries.is_needed_by_another(gate_run, release):
            continue
        try:
            release_deployment(
                actor=actor, release=release, environment=environment, reason=f"gate run {gate_run.pk} is over"
            )
        except DomainError as error:
            log.warning("not_drained", release=release.name, code=error.code)


def _ensured(gate_run: GateRun, release: Release, *, actor: Actor, pulse: Callable[[str], None]) -> Deployment:
    """Raises DomainError."""
    deadline = monotonic() + _DRAIN_WAIT_S
    while True:
        try:
            return ensure_deployment(
                actor=actor,
                release=release,
                environment=gate_run.environment,
                reason=f"for gate run {gate_run.pk}",
            )
        except StateChanged:
            if monotonic() > deadline:
                raise
            pulse(f"waiting for the last deployment of {release.name} to go")
            sleep(_POLL_S * 2)
