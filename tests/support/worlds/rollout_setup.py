"""Rollouts as tests need them: asked for, brought somewhere by an engine that is not there, with reports signed here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.canonical import canonical_bytes, sha256_of
from registry.models import Release
from registry.signing import installation_keys
from rollouts import actions
from rollouts.models import Rollout
from serving.models import Environment, Node, Replica, RequestExample
from serving.traffic.actions.routes import set_route
from tests.support.worlds.factories import (
    make_actor,
    make_admin,
    make_environment,
    make_model,
    make_release,
    make_replica,
    make_server,
    make_user,
)
from validators.core.expiry import place_of
from validators.core.policy import parse_policy as parse_gate_policy
from validators.models import GateRun, Report

OBJECTIVES = {"errors_max_frac": 0.01}


def production(**over: Any) -> Environment:
    return make_environment("production", **{"needs_passed_report": False, **over})


def release_of(model: Any = None, **over: Any) -> Release:
    return make_release(model or make_model(objectives=OBJECTIVES), **over)


def stable_server() -> Replica:
    """The one server of production's stable release, on the node `local`."""
    release = make_release()
    serves(release)
    replica = make_replica(release, production(), state="ready")
    make_server(replica)
    return replica


def started(**over: Any) -> Rollout:
    return actions.start_rollout(
        actor=make_admin(), candidate=over.pop("candidate", None) or release_of(), environment=production(**over)
    )


def put(rollout: Rollout, state: str, **columns: Any) -> Rollout:
    """The rollout as if the engine had brought it there."""
    Rollout.objects.filter(pk=rollout.pk).update(state=state, **columns)
    rollout.refresh_from_db()
    return rollout


def report_for(
    release: Release,
    verdict: str = "passed",
    *,
    manifest: str = "",
    policy: str = "",
    gates: Sequence[Mapping[str, Any]] = (),
    forged: dict[str, str] | None = None,
) -> Report:
    """A report signed here, with these gates; `forged` columns are changed after that."""
    asked = parse_gate_policy(release.model.gate_policy, release.model.objectives)
    policy_digest = policy or asked.digest
    gate_run = GateRun.objects.create(
        release=release,
        environment=make_environment("staging"),
        policy={},
        policy_digest=policy_digest,
        state="finished",
        verdict=verdict,
        requested_by="test",
    )
    named = {"manifest_digest": manifest or release.digest or "", "policy_digest": policy_digest, "verdict": verdict}
    body = canonical_bytes({**named, "gate_run": gate_run.pk, "gates": list(gates), "policy": asked.document})
    signature, key_id = installation_keys.sign(sha256_of(body))
    signed = {"body": body.decode(), "digest": sha256_of(body), "signature": signature, "key_id": key_id}
    return Report.objects.create(gate_run=gate_run, release=release, **{**named, **signed, **(forged or {})})


#: What the agent of a node tells of it, as far as evidence depends on it.
TOLD = {"machine": "x86_64", "cpu_model": "EPYC", "cpu_count": 16, "system": "Linux 6.1", "gpus": [], "tensorrt": "not"}


def proven_on(node: Node, release: Release, *gates: str) -> Report:
    """A passed report of these gates, measured just now on this node."""
    place = {**place_of(node.name, node.facts, json.loads(release.manifest)["runtime"]["image"]), "baseline": None}
    now = timezone.now().isoformat()
    told = {
        "verdict": "passed",
        "reason": "Fine.",
        "evidence": {},
        "measured": place,
        "started_at": now,
        "ended_at": now,
    }
    return report_for(release, gates=[{"gate": gate, **told} for gate in gates])


def serves(release: Release) -> None:
    """All of production's traffic for the model goes to this release."""
    set_route(
        actor=Actor.system("test"), environment=production(), model=release.model, stable=release, reason="It serves."
    )


def promoted(*, warm_s: float | None = 600, is_ready: bool = True) -> tuple[Rollout, Release]:
    """(a promoted rollout, the release before it), which is still warm."""
    rollout, stable = with_stable()
    serves(rollout.candidate)
    if is_ready:
        make_server(make_replica(stable, rollout.environment, state="ready"))
    until = None if warm_s is None else timezone.now() + timedelta(seconds=warm_s)
    return put(rollout, "promoted", weight_bp=10_000, undo_until=until), stable


def with_stable(**policy: Any) -> tuple[Rollout, Release]:
    """A rollout over a stable release, live at 25 %."""
    model = make_model(objectives=OBJECTIVES, rollout_policy=policy)
    stable, candidate = release_of(model), release_of(model)
    serves(stable)
    rollout = started(candidate=candidate)
    set_route(
        actor=Actor.system("test"),
        environment=production(),
        model=model,
        stable=stable,
        candidate=candidate,
        candidate_bp=2500,
        fence=7,
        reason="Step 1.",
    )
    return put(rollout, "shifting", step_index=1, weight_bp=2500), stable


def awaiting(**policy: Any) -> tuple[Rollout, Actor, Actor]:
    """(rollout, its requester, an unrelated release manager). Without a policy it is the environment that asks."""
    author = make_user(team="search", role=Role.RELEASE_MANAGER)
    requester, manager = make_actor(Role.RELEASE_MANAGER), make_actor(Role.RELEASE_MANAGER)
    model, environment = make_model(objectives=OBJECTIVES, rollout_policy=policy), production(needs_approval=not policy)
    serves(release_of(model))
    candidate = release_of(model, author=author)
    return (
        actions.start_rollout(actor=requester, candidate=candidate, environment=environment),
        requester,
        manager,
    )


def frozen_now(why: str = "Year-end closing") -> dict[str, Any]:
    """A policy that freezes at every time of every day."""
    return {"freeze_windows": [{"why": why}]}


def slow_request(rollout: Rollout, **over: Any) -> RequestExample:
    """A request of the candidate's that was slow, as its gateway told it."""
    about = {
        "environment": rollout.environment, "candidate": rollout.candidate, "release": rollout.candidate, "kind": "slow",
        "gateway": "gateway-1", "at": timezone.now(), "request_id": "5f1c2f0e-1111-4f64-9d2b-0c6f3f7f8a11", "took_ms": 912.5,
        "http_status": 200, "address": "127.0.0.1:8001", **over,
    }  # fmt: skip
    return RequestExample.objects.create(**about)
