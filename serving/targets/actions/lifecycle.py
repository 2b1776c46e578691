"""What may happen to replicas and their servers.

People and the other apps say what is wanted (`ensure_replica`, `release_replica`); the node's agent reports what
is (`record_state`, `record_server`, `mark_serving`, `end_server`). Gateways follow what is reported: every change of
an endpoint sends `NOTIFY sluicegate_routes`, which PostgreSQL delivers when the change is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from ledger.actions.transitions import transition
from ledger.core.errors import Refused, StateChanged
from ledger.core.verbs import EventVerb
from registry.models import Release
from registry.queries import require_runnable
from serving.environments.actions.locks import lock_open, lock_routes, notify_routes
from serving.environments.core.lifecycle import LIVE, MOVES, ReplicaState
from serving.environments.queries.inventory import replicas_in
from serving.models import (
    Environment,
    ListedServer,
    Node,
    NodeGpuReading,
    Replica,
    ReplicaTarget,
    Route,
    Server,
    ServerLog,
    ServerReading,
)
from serving.ports import RunningServer
from serving.targets.actions.placing import append_replica, place_replica
from serving.targets.core.drift import Drift
from serving.targets.core.gpu import GpuReading
from serving.targets.core.use import Reading

_VERBS = {
    (ReplicaState.FETCHING, ReplicaState.LOADING): "deployment.fetched",
    (ReplicaState.LOADING, ReplicaState.WARMING): "deployment.loaded",
    (ReplicaState.WARMING, ReplicaState.READY): "deployment.ready",
    (ReplicaState.FAILED, ReplicaState.FETCHING): "deployment.retried",
}
#: Files that are named of a server whose files differ.
MOST_DRIFT = 50
#: How long what servers were seen to use is kept: a gate that judges it takes no longer.
READINGS_KEPT = timedelta(hours=1)
_VERBS_TO = {ReplicaState.FAILED: "deployment.failed", ReplicaState.GONE: "deployment.gone"}


def ensure_replica(*, actor: Actor, release: Release, environment: Environment, reason: str) -> Replica:
    """A live replica of the release in the environment, made if there was none, tried again if it had failed.

    Of several replicas the newest: the others come and go by themselves (`serving.targets.actions.replicas`).

    Raises:
        Refused: the actor may not, or the release carries code that no release manager waived.
        StateChanged: the release is a draft or retired, or its last replica is still draining; the environment is retired.
        Refused, Unavailable: no node takes it; see `place_replica`.
    """
    require(
        actor,
        Verb.START_ROLLOUT if environment.is_routed else Verb.RUN_GATES,
        release.model.team.slug,
        release.model.slug,
    )
    require_runnable(release)
    with transaction.atomic():
        lock_open(environment)
        found = replicas_in(release, environment).first()
        if found is None:
            return place_replica(actor=actor, release=release, environment=environment, reason=reason)
        if found.state == ReplicaState.DRAINING or (not found.is_wanted and found.state != ReplicaState.FAILED):
            raise StateChanged(
                "deployment_draining",
                f"{release.model.slug} {release.name} is being taken out of {environment.slug}. Ask again when it is gone.",
                replica=found.pk,
            )
        if found.state == ReplicaState.FAILED:
            return _move(found, ReplicaState.FETCHING, actor=actor, reason=reason, is_wanted=True, timings={})
        return found


@transaction.atomic
def release_replica(*, actor: Actor, release: Release, environment: Environment, reason: str) -> Replica | None:
    """The release's replica there, which nobody wants any more; None where it has none. Raises as `drain_replica` does.

    All its replicas go, and the newest is the one; how many were wanted is forgotten.
    """
    lock_routes(environment, release)  # and its replicas, before the first event
    every = list(replicas_in(release, environment))
    found = [drain_replica(actor=actor, replica=one, reason=reason) for one in every]
    ReplicaTarget.objects.filter(release=release, environment=environment).delete()
    return found[0] if found else None


def drain_replica(*, actor: Actor, replica: Replica, reason: str, is_spare: bool = False) -> Replica:
    """Says that the replica is no longer wanted; its agent drains and ends it. Idempotent.

    Raises StateChanged("still_routed") while a gateway sends traffic to its release or holds that as stable, unless it `is_spare`:
    as many others answer as are wanted.
    """
    release, environment = replica.release, replica.environment
    require(
        actor,
        Verb.START_ROLLOUT if environment.is_routed else Verb.RUN_GATES,
        release.model.team.slug,
        release.model.slug,
    )
    with transaction.atomic():
        lock_routes(environment)
        routed = Q(stable=release) | Q(candidate=release, candidate_bp__gt=0)
        if not is_spare and Route.objects.filter(routed, environment=environment).exists():
            raise StateChanged(
                "still_routed",
                f"{release.model.slug} {release.name} still gets traffic in {environment.slug}, or is its stable release. "
                "Move the traffic to another release first.",
                release=release.name,
                environment=environment.slug,
            )
        changed = (
            Replica.objects.filter(pk=replica.pk, is_wanted=True)
            .exclude(state=ReplicaState.GONE)
            .update(is_wanted=False, reason=reason, version=F("version") + 1)
        )
        replica.refresh_from_db()
        if changed:
            state = replica.state
            append_replica(replica, "deployment.drained", actor, reason, from_state=state, to_state=state)
    return replica


def record_state(*, actor: Actor, replica: Replica, to: ReplicaState, reason: str, **changes: Any) -> Replica:
    """Records the state that the agent reached. Raises StateChanged when the row moved meanwhile: read it again."""
    _require(actor, replica)
    with transaction.atomic():
        return _move(replica, to, actor=actor, reason=reason, **changes)


def record_server(*, actor: Actor, replica: Replica, running: RunningServer, digest: str = "") -> Server:
    """Records a server process started for the replica. It gets no traffic before `mark_serving`.

    `digest`: of the manifest that every file was verified against as it was written for the server. Raises StateChanged: the
    replica is gone, as its node was removed meanwhile.
    """
    _require(actor, replica)
    with transaction.atomic():
        live = Replica.objects.select_for_update(no_key=True).filter(pk=replica.pk, state__in=sorted(LIVE))
        if not live.exists():
            raise StateChanged("state_changed", f"Replica {replica.pk} is gone. Its server is ended.")
        server = Server.objects.create(
            replica=replica,
            host=running.host,
            http_port=running.http_port,
            grpc_port=running.grpc_port,
            metrics_port=running.metrics_port,
            pid=running.pid,
            folder=str(running.folder),
            digest=digest,
        )
        _append_server(server, "server.started", actor, "")
    return server


def keep_log(*, actor: Actor, server: Server, text: str) -> None:
    """Keeps the end of the server's log, in the place of what was kept before. Nothing for a server that users reach."""
    replica = server.replica
    _require(actor, replica)
    if not replica.environment.is_routed:
        ServerLog.objects.update_or_create(server=server, defaults={"text": text, "at": timezone.now()})


def mark_serving(*, actor: Actor, server: Server, is_serving: bool, reason: str) -> None:
    """Whether gateways may send traffic to the server. Nothing happens when that is known already, or it is set aside."""
    require(actor, Verb.ADMINISTER, server.replica.release.model.team.slug, server.replica.release.model.slug)
    with transaction.atomic():
        if is_serving:
            if _serves_again(server) and server.replica.recoveries:
                _append_server(server, "server.recovered", actor, reason)
        elif _locked(server) and Server.objects.filter(pk=server.pk, ended_at=None, is_serving=True).update(
            is_serving=False
        ):
            _append_server(server, "server.lost", actor, reason)
            notify_routes()


def _locked(server: Server) -> bool:
    """Locks the server's replica: both publish the same endpoint, and all lock in this order. True."""
    Replica.objects.select_for_update(no_key=True).get(pk=server.replica_id)
    return True


def _serves_again(server: Server) -> bool:
    """Whether it got no traffic before, and gets some now. Under the lock of its replica: somebody may just be setting that aside."""
    replica = Replica.objects.select_for_update(no_key=True).filter(pk=server.replica_id, is_set_aside=False)
    if not replica.exists():
        return False
    rows = Server.objects.filter(pk=server.pk, ended_at=None, is_serving=False)
    if not rows.update(is_serving=True, probed_at=timezone.now()):
        return False
    notify_routes()
    return True


def record_probe(*, actor: Actor, server: Server) -> None:
    """The server answered a probe right just now. One that got no traffic gets some again, unless it is set aside. Raises Refused."""
    _require(actor, server.replica)
    now = timezone.now()
    if Server.objects.filter(pk=server.pk, is_serving=True).update(probed_at=now):
        return
    with transaction.atomic():
        if _serves_again(server):
            _append_server(server, "server.recovered", actor, "It answers again.")


def record_memory(*, actor: Actor, measured: Mapping[int, int]) -> None:
    """How many bytes each of these servers holds now, by its key. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    rows = [Server(pk=pk, memory_bytes=size, memory_at=timezone.now()) for pk, size in measured.items()]
    Server.objects.bulk_update(rows, ["memory_bytes", "memory_at"])


def record_readings(*, actor: Actor, readings: Mapping[int, Reading]) -> None:
    """Keeps what each of these servers, by its key, was seen to use, and lets go of what is older than an hour. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    rows = [
        ServerReading(server_id=pk, at=datetime.fromtimestamp(one.at_s, UTC), **asdict(one.use))
        for pk, one in readings.items()
    ]
    ServerReading.objects.bulk_create(rows)
    ServerReading.objects.filter(at__lt=timezone.now() - READINGS_KEPT).delete()


def record_gpus(*, actor: Actor, node: str, reading: GpuReading, is_kept: bool) -> None:
    """The node's GPUs as they were read last; where `is_kept`, for an hour too, with what a gate may ask for. Raises Refused."""
    require(actor, Verb.ADMINISTER, "")
    Node.objects.filter(name=node).update(gpus=reading.as_json())
    if is_kept:
        at = datetime.fromtimestamp(reading.at_s, UTC)
        NodeGpuReading.objects.create(node_id=node, at=at, gpus=reading.as_json())
        NodeGpuReading.objects.filter(at__lt=timezone.now() - READINGS_KEPT).delete()


def record_exit(*, actor: Actor, server: Server, exit_code: int) -> None:
    """How the server's process ended by itself: its exit status, or less than 0 for the signal that ended it. Raises Refused."""
    require(actor, Verb.ADMINISTER, server.replica.release.model.team.slug, server.replica.release.model.slug)
    Server.objects.filter(pk=server.pk).update(exit_code=exit_code)


def note_trouble(*, actor: Actor, replica: Replica, trouble: str) -> None:
    """What went wrong at a try that is repeated: the row's reason, without an event. Nothing where the row moved meanwhile."""
    _require(actor, replica)
    Replica.objects.filter(pk=replica.pk, version=replica.version).update(reason=trouble)


def adopt_server(*, actor: Actor, server: Server) -> None:
    """A new agent took over the server that an earlier one had started."""
    require(actor, Verb.ADMINISTER, server.replica.release.model.team.slug, server.replica.release.model.slug)
    with transaction.atomic():
        _append_server(server, "server.adopted", actor, "the agent came back and found it alive")


def note_unseen(*, actor: Actor, server: Server, why: str) -> None:
    """Writes that the node's agent could not examine the server. That is no evidence on the server."""
    require(actor, Verb.ADMINISTER, server.replica.release.model.team.slug, server.replica.release.model.slug)
    reason = f"The node's agent cannot look at it: {why}. It stays as it is, and is looked at again."
    with transaction.atomic():
        _append_server(server, "server.unseen", actor, reason)


def record_drift(*, actor: Actor, server: Server, drift: list[Drift]) -> None:
    """The server's files were compared with what was sealed. A difference is logged once, as the event `server.drifted`."""
    require(actor, Verb.ADMINISTER, server.replica.release.model.team.slug, server.replica.release.model.slug)
    found = [one.as_json() for one in drift[:MOST_DRIFT]]
    with transaction.atomic():
        _locked(server)
        row = Server.objects.select_for_update(no_key=True).get(pk=server.pk)
        is_new = bool(found) and found != row.drift
        Server.objects.filter(pk=server.pk).update(drift_checked_at=timezone.now(), drift=found)
        if is_new:
            said = "; ".join(one.words for one in drift[:3])
            more = f" and {len(drift) - 3} more" if len(drift) > 3 else ""
            _append_server(server, "server.drifted", actor, f"Its files are not those that were sealed: {said}{more}.")


def end_server(*, actor: Actor, server: Server, reason: str) -> None:
    """The server process is over. Idempotent."""
    require(actor, Verb.ADMINISTER, server.replica.release.model.team.slug, server.replica.release.model.slug)
    with transaction.atomic():
        _locked(server)
        if Server.objects.filter(pk=server.pk, ended_at=None).update(
            is_serving=False, ended_at=timezone.now(), end_reason=reason
        ):
            _append_server(server, "server.stopped", actor, reason)
            notify_routes()


def register_node(
    *,
    actor: Actor,
    name: str,
    runtimes: list[dict[str, Any]],
    facts: dict[str, Any],
    listed_at: datetime | None = None,
) -> Node:
    """Returns the node by this name, seen now, with its new runtimes and facts. An event records the first time, and the return of
    a node that was removed.

    Args:
        listed_at: when the listing was made that the agent acts for; None for a machine's agent.

    Raises Refused: there is no such listing, or a machine has the name of a listed server.
    """
    require(actor, Verb.ADMINISTER, "")
    with transaction.atomic():
        found = Node.objects.select_for_update(no_key=True).filter(name=name).first()
        if ListedServer.objects.filter(pk=name).values_list("listed_at", flat=True).first() != listed_at:
            if listed_at is None:
                says = f"{name} is the name of a server that an environment lists."
                raise Refused("server_listed", says, node=name)
            raise Refused("server_not_listed", f"{name} was removed from its list, or listed anew.", node=name)
        told = {"runtimes": runtimes, "facts": facts, "seen_at": timezone.now(), "removed_at": None}
        node, is_new = Node.objects.update_or_create(name=name, defaults=told)
        if is_new or (found is not None and (found.seen_at is None or found.removed_at is not None)):
            images = sorted({runtime["image"] for runtime in runtimes})
            append_event(
                verb=EventVerb.NODE_REGISTERED,
                subject_type="node",
                subject_id=name,
                actor=actor,
                facts={"images": images},
            )
    return node


def _require(actor: Actor, replica: Replica) -> None:
    require(actor, Verb.ADMINISTER, replica.release.model.team.slug, replica.release.model.slug)


def _move(replica: Replica, to: ReplicaState, *, actor: Actor, reason: str, **changes: Any) -> Replica:
    if to is ReplicaState.FAILED:
        changes["failed_at"] = timezone.now()
    was = transition(replica, to, moves=MOVES, reason=reason, **changes)
    verb = _VERBS.get((was, to)) or _VERBS_TO.get(to, "deployment.moved")
    append_replica(replica, verb, actor, reason, from_state=was, to_state=to)
    if ReplicaState.READY in (was, to):
        notify_routes()
    return replica


def _append_server(server: Server, verb: str, actor: Actor, reason: str) -> None:
    release = server.replica.release
    append_event(
        verb=verb,
        subject_type="server",
        subject_id=str(server.pk),
        actor=actor,
        reason=reason,
        facts={
            "deployment": server.replica_id,
            "model": release.model.slug,
            "release": release.name,
            "pid": server.pid,
        },
    )
