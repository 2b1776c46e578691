"""Reconciles one replica: brings it to its desired state and keeps it there.

A reconciler reads its row, takes the one step that the row's state needs, and reads again; so it can be killed
anywhere, and the next one goes on from the row. What it learned is written to the row before anything else happens:
above all, a server that does not answer is taken out of the gateways first and brought back afterwards.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.core.access import Actor
from ledger.core.errors import StateChanged
from registry.core.kinds import kind_of
from registry.queries import manifest_of
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Replica, Server
from serving.ports import InferenceError, LaunchError, LaunchSpec, RunningServer
from serving.targets import actions, queries
from serving.targets.agent import health_check, warmup
from serving.targets.agent.leaving import Leaving, leaving_of
from serving.targets.agent.log_tail import LogTail
from serving.targets.agent.node_launcher import ClosableServer, Connect, NodeLauncher
from serving.targets.agent.timings import AgentTimings, load_timeout_of, request_s, warmup_timeout_of
from serving.targets.core.health import (
    Health,
    HealthTracker,
    Probe,
    ProbeResult,
    Timeouts,
    verdict,
    why_hung,
)
from serving.targets.core.placement import claim_of
from serving.traffic.queries.alike import stable_alike

S = ReplicaState
log = logging.getLogger(__name__)

_READ_OF_MANIFEST = ("runtime", "serving", "envelope")
#: What may be over at the next try; everything else is in the release itself.
_PASSING = frozenset({"not_ready", "fetch_failed"})


class ReplicaReconciler:
    def __init__(
        self, replica_id: int, *, actor: Actor, launcher: NodeLauncher, connect: Connect, pace: AgentTimings
    ) -> None:
        self.replica_id = replica_id
        self._actor, self._launcher, self._connect, self._pace = actor, launcher, connect, pace
        self._server: Server | None = None
        self._running: RunningServer | None = None
        self._client: ClosableServer | None = None
        self._seen = HealthTracker()
        self._leaving: Leaving | None = None
        self._log = LogTail()
        self._is_unseen = False  # the last look could not be made
        self._setbacks = 0
        self._since = time.monotonic()  # in this state
        self._manifest: dict[str, Any] | None = None

    def step(self) -> float | None:
        """Takes the next step for the row; seconds until the next one, or None when the replica is gone.

        Raises what the database raises; the row tells the next step where to go on.
        """
        replica = queries.live_replicas().filter(pk=self.replica_id).first()
        if replica is None:  # its node was removed meanwhile, and nobody else can end its server
            if self._running is not None:
                self._launcher.stop(self._running, grace_s=self._pace.stop_grace)
            self._forget()
            return None
        try:
            if not replica.is_wanted or replica.state == S.DRAINING:
                return self._leave(replica)
            if replica.state == S.READY:
                return self._watch(replica)
            if replica.state == S.FAILED:
                return self._rest(replica)
            return self._bring_up(replica)
        except StateChanged:
            return 0.0

    # bring up

    def _bring_up(self, replica: Replica) -> float:
        try:
            self._begin(replica)
            replica = self._load_and_warm(replica)
        except (LaunchError, InferenceError) as error:
            self._keep_end(replica)
            return self._setback(error.reason, error.message)
        self._since = time.monotonic()
        return self._pace.probe_every

    def _begin(self, replica: Replica) -> None:
        """A fresh server. An agent that was killed may have left one that never came up: it goes first."""
        self._end_servers(replica, replica.reason)
        release = replica.release
        folder = self._launcher.folder_for(replica.pk, release.model.slug, release.name)
        spec = LaunchSpec(
            replica.pk,
            release.model.slug,
            release.name,
            release.digest or "",
            manifest_of(release),
            folder,
            devices=devices_of(replica),
            alike=() if self._launcher.runs_here else stable_alike(release),
        )
        began = time.monotonic()
        running = self._launcher.start(spec)
        fetch_s = time.monotonic() - began
        try:
            proven = spec.digest if running.pid else ""  # what somebody else's process serves, nobody can vouch for
            row = actions.record_server(actor=self._actor, replica=replica, running=running, digest=proven)
            self._attach(row, running)
        except Exception:
            self._launcher.stop(running, grace_s=self._pace.stop_grace)
            raise
        if replica.state == S.FETCHING:
            reason = _loudly(replica, "its files are here and right")
            self._move(replica, S.LOADING, reason, timings={"fetch_s": round(fetch_s, 3)})

    def _load_and_warm(self, replica: Replica) -> Replica:
        timings = dict(replica.timings)
        began = time.monotonic()
        load_timeout_s = load_timeout_of(self._manifest_of(replica)["envelope"], default_s=self._pace.load_timeout)
        assert self._running is not None
        self._launcher.await_loaded(self._running, replica.release.model.slug, timeout_s=load_timeout_s)
        timings["load_s"] = round(time.monotonic() - began, 3)
        if replica.state == S.LOADING:
            self._move(replica, S.WARMING, _loudly(replica, "the server reports it ready"), timings=timings)
        began = time.monotonic()
        warmup.warm_up(
            self._attached_client(),
            replica.release.model.slug,
            self._manifest_of(replica)["serving"],
            limits=warmup.limits_of(self._manifest_of(replica)),
            timeout_s=warmup_timeout_of(replica, self._pace),
        )
        timings["warmup_s"] = round(time.monotonic() - began, 3)
        assert self._server is not None
        self._server.replica = replica
        with transaction.atomic():
            # Lock order: the replica's row first, as draining does; two orders would deadlock.
            self._move(replica, S.READY, "it answered its warm-up requests", timings=timings, ready_at=timezone.now())
            actions.mark_serving(
                actor=self._actor, server=self._server, is_serving=True, reason="it answered its warm-up requests"
            )
        return replica

    def _setback(self, reason: str, message: str) -> float:
        """A try failed: another after a pause, or the replica has failed."""
        replica = queries.live_replicas().get(pk=self.replica_id)
        self._setbacks += 1
        may_pass = reason in _PASSING or replica.ready_at is not None
        if may_pass and (self._setbacks < len(self._pace.backoff) or _is_indispensable(replica)):
            trouble = _loudly(replica, f"{reason}: {message} It is tried again ({self._setbacks} tries so far).")
            actions.note_trouble(actor=self._actor, replica=replica, trouble=trouble)
            return self._pause(self._setbacks)
        tries = f" It was tried {self._setbacks} times." if self._setbacks > 1 else ""
        self._end_servers(replica, f"{reason}: {message}")
        self._move(replica, S.FAILED, f"{reason}: {message}{tries}")
        return self._pace.probe_every

    def _pause(self, tries: int) -> float:
        return self._pace.backoff[tries] if tries < len(self._pace.backoff) else self._pace.backoff_most

    # keep up

    def _watch(self, replica: Replica) -> float:
        began = time.monotonic()
        try:
            lost = self._examine(replica)
        except OSError as error:
            return self._cannot_look(error)
        self._is_unseen = False
        self._keep_log(replica)
        if lost:
            return self._lose(replica, lost)
        if time.monotonic() - self._since > self._pace.healthy_after:
            self._setbacks = 0
        return max(0.05, self._pace.probe_every - (time.monotonic() - began))

    def _cannot_look(self, error: OSError) -> float:
        """Changes nothing: an agent without a free file descriptor knows nothing of the server."""
        why = error.strerror or str(error)
        log.warning("replica %s cannot be looked at (%s); it is tried again", self.replica_id, why)
        if self._server is not None and not self._is_unseen:
            actions.note_unseen(actor=self._actor, server=self._server, why=why)
        self._is_unseen = True
        return self._pace.probe_every

    def _keep_log(self, replica: Replica, *, at_once: bool = False) -> None:
        """The end of the log, for those who wait for gates. Users' words may be in the logs of servers that users reach."""
        if self._server is not None and not replica.environment.is_routed:
            self._server.replica = replica
            if (text := self._log.changed(Path(self._server.folder), at_once=at_once)) is not None:
                actions.keep_log(actor=self._actor, server=self._server, text=text)

    def _keep_end(self, replica: Replica) -> None:
        """The last words of a server that failed, and how its process ended. Its folder goes with the next try."""
        self._keep_log(replica, at_once=True)
        if self._server is None or replica.environment.is_routed:
            return
        if (exit_code := self._launcher.exit_code(_as_running(self._server))) is not None:
            actions.record_exit(actor=self._actor, server=self._server, exit_code=exit_code)

    def _examine(self, replica: Replica) -> str:
        """Why the server is lost, or an empty string."""
        if self._running is None and not self._adopt(replica):
            return "its server was gone when the agent came back, or not shut in as servers are today"
        assert self._server is not None
        was_well = self._seen.late_since is None and self._seen.silent_since is None
        # The first late look is over long before any window is, so which one applies is asked only after it.
        timeouts = Timeouts(math.inf, math.inf) if was_well else self._timeouts(replica)
        look, trouble = self._look(replica, timeouts)
        self._seen = self._seen.after(look)
        health = verdict(self._seen, look, timeouts)
        if look.probe == Probe.RIGHT:
            self._server.replica = replica  # its node as it was heard of last
            actions.record_probe(actor=self._actor, server=self._server)
        if health == Health.SLOW and was_well:
            log.warning("replica %s is slow, so it stays: %s", replica.pk, trouble)
        if health == Health.HUNG:
            told = why_hung(self._seen, look.ended_at, timeouts)
            return f"it hung: {told} ({trouble})" if trouble else f"it hung: {told}"
        return trouble if health.is_lost else ""

    def _timeouts(self, replica: Replica) -> Timeouts:
        is_last = queries.is_last_of_stable(replica)
        silent_s = self._pace.hung_after_last_stable if is_last else self._pace.hung_after
        return Timeouts.of(
            silent_s=silent_s,
            request_s=request_s(replica, self._manifest_of(replica)),
            tells_live=self._launcher.tells_live and kind_of(self._manifest_of(replica)).tells_live,
        )

    def _look(self, replica: Replica, timeouts: Timeouts) -> tuple[ProbeResult, str]:
        """Looks at the server once: the result, and the trouble in words."""
        assert self._running is not None
        if not self._launcher.is_alive(self._running):
            ended = "its server process ended" if self._running.pid else "its server is away, or serves it no more"
            return health_check.gone(), ended
        return health_check.look_at(
            self._attached_client(),
            replica.release.model.slug,
            self._manifest_of(replica),
            seen=self._seen,
            timeouts=timeouts,
            within_s=(self._pace.probe_timeout, self._pace.patient_timeout),
            live_within_s=self._pace.live_timeout,
            tells_live=self._launcher.tells_live,
        )

    def _lose(self, replica: Replica, why: str) -> float:
        """Takes the server out of the gateways first; the next step starts another in its place."""
        why = _loudly(replica, why)
        with transaction.atomic():
            self._move(replica, S.LOADING, why, recoveries=F("recoveries") + 1)
            if self._server is not None:
                actions.mark_serving(actor=self._actor, server=self._server, is_serving=False, reason=why)
        self._keep_end(replica)
        self._seen, self._setbacks = HealthTracker(), self._setbacks + 1
        if self._setbacks > len(self._pace.backoff) and not _is_indispensable(replica):
            return self._give_up(replica, why)
        return self._pause(self._setbacks - 1)

    def _give_up(self, replica: Replica, why: str) -> float:
        self._end_servers(replica, why)
        self._move(
            replica,
            S.FAILED,
            f"It broke or did not start {self._setbacks} times in a row. The last time: {why}",
        )
        return self._pace.probe_every

    def _adopt(self, replica: Replica) -> bool:
        """Takes over the living server that an earlier agent started."""
        server = queries.server_of(replica)
        running = self._launcher.adopt(Path(server.folder)) if server else None
        if server:
            self._server = server
        if running is None or server is None:
            return False
        self._attach(server, running)
        actions.adopt_server(actor=self._actor, server=server)
        return True

    def _rest(self, replica: Replica) -> float:
        """A failed replica holds no server. One that once served is tried again, slowly."""
        if queries.server_of(replica) or self._running:
            self._end_servers(replica, replica.reason)
        if replica.ready_at and time.monotonic() - self._since > self._pace.retry_failed_after:
            self._setbacks = 0
            self._move(replica, S.FETCHING, _loudly(replica, "it once served, so it is tried again"))
            return 0.0
        return self._pace.probe_every

    # leave

    def _leave(self, replica: Replica) -> float | None:
        reason = replica.reason or "it is not wanted any more"
        if replica.state not in (S.DRAINING, S.FAILED):
            self._move(replica, S.DRAINING, reason)
            return 0.0
        drain_s = float(self._lifecycle(replica).get("drain_s", self._pace.drain))
        if self._leaving is None:
            most_s = request_s(replica, self._manifest_of(replica))
            self._leaving = leaving_of(replica, follow_s=self._pace.follow, drain_s=drain_s, request_s=most_s)
            self._hang_up()
        if wait_s := self._leaving.wait_s(lambda: self._open_requests(replica)):
            return wait_s
        self._end_servers(replica, reason)
        self._move(replica, S.GONE, f"{reason}{self._leaving.in_vain}", gone_at=timezone.now())
        return None

    def _end_servers(self, replica: Replica, reason: str) -> None:
        running = self._running
        self._forget()
        if running:
            self._launcher.stop(running, grace_s=self._pace.stop_grace)
        for server in queries.current_servers().filter(replica=replica):
            if running is None or Path(server.folder) != running.folder:
                self._launcher.stop(_as_running(server), grace_s=self._pace.stop_grace)
            actions.end_server(actor=self._actor, server=server, reason=reason)

    # connections and rows

    def _attach(self, server: Server, running: RunningServer) -> None:
        self._forget()
        self._server, self._running, self._client = server, running, self._connect(running)

    def _forget(self) -> None:
        self._hang_up()
        self._server = self._running = None
        self._seen = HealthTracker()

    def _hang_up(self) -> None:
        if self._client:
            self._client.close()
        self._client = None

    def _open_requests(self, replica: Replica) -> int | None:
        server = queries.server_of(replica)
        return self._launcher.open_requests(_as_running(server)) if server else None

    def _attached_client(self) -> ClosableServer:
        assert self._client is not None, "a step that talks to a server holds one"
        return self._client

    def _manifest_of(self, replica: Replica) -> dict[str, Any]:
        """Runtime, serving and envelope of the release. Parsed once: a manifest may have megabytes."""
        if self._manifest is None:
            whole = manifest_of(replica.release)
            self._manifest = {"envelope": {}} | {name: whole[name] for name in _READ_OF_MANIFEST if whole.get(name)}
        return self._manifest

    def _lifecycle(self, replica: Replica) -> dict[str, Any]:
        """What the release's envelope says of loading and draining; it may say nothing."""
        return self._manifest_of(replica)["envelope"].get("lifecycle") or {}

    def _move(self, replica: Replica, to: ReplicaState, reason: str, **changes: Any) -> None:
        actions.record_state(actor=self._actor, replica=replica, to=to, reason=reason, **changes)
        self._since = time.monotonic()


def devices_of(replica: Replica) -> tuple[str, ...]:
    """The devices that it was given, by the names that CUDA takes; empty where they were only counted."""
    return tuple(name for name in claim_of(replica.claim).devices if name.startswith(("GPU-", "MIG-")))


def _is_indispensable(replica: Replica) -> bool:
    """Is this the last server of the stable release? Such a replica is never given up, but retried forever."""
    return replica.ready_at is not None and queries.is_last_of_stable(replica)


def _loudly(replica: Replica, reason: str) -> str:
    """The reason, prefixed with a warning if this is the last server of the stable release."""
    if not _is_indispensable(replica):
        return reason
    release, environment = replica.release, replica.environment
    return f"STABLE {release.name} HAS NO SERVER in {environment.slug}; requests fail until it is back. {reason}"


def _as_running(server: Server) -> RunningServer:
    return RunningServer(
        server.host, server.http_port, server.grpc_port, server.metrics_port, server.pid, Path(server.folder)
    )
