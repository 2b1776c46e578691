"""The server on which a gate run's release is tried: asked for, waited for, given back."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import structlog
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import DomainError, StateChanged
from registry.models import Release
from serving.environments.core.endpoints import EndpointState
from serving.targets.platforms import platform_of
from serving.targets.port import Trial
from validators import queries
from validators.core.fault import verdict_of_failure
from validators.core.verdict import Judgement, Verdict
from validators.execution.last_words import of_server
from validators.models import GateRun

_POLL_S = 0.25
#: An earlier replica of the release may take so long to go.
_DRAIN_WAIT_S = 60.0

S = EndpointState
log = structlog.get_logger(__name__)


def staged(
    gate_run: GateRun, release: Release, *, actor: Actor, max_wait_s: float, pulse: Callable[[str], None]
) -> Trial | Judgement:
    """The release in the gate run's environment, once a server of it answers; a judgement if none will.

    `pulse` is told the state now and then, and may raise to end the wait.
    """
    name = release.name
    try:
        _start(gate_run, release, actor=actor, pulse=pulse)
    except DomainError as error:
        return Judgement(
            Verdict.ERRORED, f"{name} could not be deployed: {error.message}", {"code": error.code, **error.facts}
        )
    deadline = monotonic() + max_wait_s
    last_state = S.FETCHING
    while True:
        trial = platform_of(gate_run.environment).trial(release, gate_run.environment)
        assert trial is not None  # its start published a replica
        state = trial.state
        if state is S.READY and trial.server():
            return trial
        evidence = {"state": state.value, "timings": trial.timings, "deployment": trial.replica}
        if state is S.FAILED:
            evidence |= {"last_state": last_state.value, **_last_words(trial)}
            verdict = verdict_of_failure(trial.why, last_state)
            return Judgement(verdict, f"{name} did not become ready: {trial.why}", evidence)
        if state in (S.DRAINING, S.GONE) or not trial.is_wanted:
            return Judgement(
                Verdict.ERRORED, f"Somebody took {name} out of {gate_run.environment.slug}: {trial.why}", evidence
            )
        if monotonic() > deadline:
            detail = f" {trial.why}" if state is S.PENDING else ""
            evidence |= _last_words(trial)
            verdict = verdict_of_failure("", state)
            return Judgement(verdict, f"{name} was still {state} after {max_wait_s:g} s.{detail}", evidence)
        last_state = state
        pulse(f"{name} is {state} in {gate_run.environment.slug}")
        sleep(_POLL_S)


def _last_words(trial: Trial) -> dict[str, Any]:
    """Of its newest server, if it had one."""
    server = trial.server_before(timezone.now())
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
            platform_of(environment).stop(release, environment, actor=actor, reason=f"gate run {gate_run.pk} is over")
        except DomainError as error:
            log.warning("not_drained", release=release.name, code=error.code)


def _start(gate_run: GateRun, release: Release, *, actor: Actor, pulse: Callable[[str], None]) -> None:
    """Raises DomainError."""
    environment = gate_run.environment
    deadline = monotonic() + _DRAIN_WAIT_S
    while True:
        try:
            return platform_of(environment).start(
                release, environment, actor=actor, reason=f"for gate run {gate_run.pk}"
            )
        except StateChanged:
            if monotonic() > deadline:
                raise
            pulse(f"waiting for the last replica of {release.name} to go")
            sleep(_POLL_S * 2)
