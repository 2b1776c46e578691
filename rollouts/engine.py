"""The rollout loop: observe → decide → apply at most one effect → record, for every active rollout, every tick.

Two engines may run. One leads by a database lease; its fencing token goes into every write, so that one that slept
through its lease is refused. All state is in the database: any engine can go on from any line.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from uuid import UUID

import structlog
from django.conf import settings
from django.db import OperationalError, close_old_connections, connection
from django.utils import timezone

from accounts.core.errors import DomainError, Stale, StateChanged
from ledger.actions import dispatch_due
from ledger.core.canonical import sha256_of
from ledger.leases import acquire, release, renew
from rollouts.actions.conduct import (
    Tick,
    ask_for_candidate,
    commit_tick,
    finish_rollback,
    note_acknowledged_zero,
    note_stuck,
    write_route,
)
from rollouts.actions.start import report_problem
from rollouts.core.carry import Carry, absorb
from rollouts.core.counting import Reading
from rollouts.core.decide import decide
from rollouts.core.lifecycle import LIVE, RolloutState
from rollouts.core.plan import Policy
from rollouts.core.snapshot import Snapshot, counted
from rollouts.models import Rollout
from rollouts.observe import Raw, Seen, read_all, seen_of
from rollouts.queries import active_rollouts
from serving.core.lifecycle import DeploymentState
from serving.models import Route
from serving.ports import TrafficCounters
from serving.queries import current_servers, deployment_of
from serving.routing import Ack, acknowledged

log = structlog.get_logger(__name__)
S = RolloutState
LEASE = "engine"
DISPATCH_EVERY_S = 2.0
#: After a rollback was written, its acknowledgement is looked for this often, for this long, within the tick.
ZERO_POLL_S, ZERO_POLL_FOR_S = 0.05, 1.0
#: Counters that cannot confirm an acknowledged weight 0 do not hold up the end for longer than this.
CONFIRM_WITHIN_S = 30.0
#: A failed deployment is asked for again this often.
RETRY_S = 10.0
#: A tick that was woken does not begin sooner than this after the one before it.
EARLY_S = 0.2
#: While a candidate does nothing but fail, the next look comes sooner. More than `decide.FAILING_OVER_S`.
LOOK_AGAIN_S = 0.5
#: A candidate without a server is gone when it still has none after this long; one that failed before, at once.
GONE_OVER_S = 0.5


class Engine:
    """One engine process. `bad_attempts` counts ticks of single rollouts that broke; the others go on."""

    def __init__(
        self, counters: TrafficCounters, *, owner: str = "", tick_s: float | None = None, lease_s: float | None = None
    ) -> None:
        self.counters = counters
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"
        self.tick_s = settings.ENGINE_TICK_S if tick_s is None else tick_s
        self.lease_s = settings.ENGINE_LEASE_S if lease_s is None else lease_s
        self.token: int | None = None
        self.bad_attempts = 0
        self._dispatched_at = 0.0
        self._rest_s = self.tick_s
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._is_stopping = False

    def run(self) -> None:
        """Ticks until `stop()`, then gives leadership back at once."""
        while not self._is_stopping:
            began = time.monotonic()
            try:
                self.step()
            except OperationalError as error:
                log.warning("database_away", error=str(error))
                close_old_connections()
            except Exception:  # a loop that guards traffic does not end over one bad tick
                self.bad_attempts += 1
                log.error("engine_tick_failed", traceback=traceback.format_exc())
                close_old_connections()
            self._rest(began)
        if self.token is not None:
            release(LEASE, self.owner, self.token)
            log.info("engine_stopped", owner=self.owner)

    def wake(self) -> None:
        """Lets the next tick come at once: a server or a route changed. May be called by any thread or signal handler."""
        self._calls.put(None)

    def stop(self) -> None:
        """Ends `run` after the tick that it is in. May be called as `wake` may."""
        self._is_stopping = True
        self.wake()

    def _rest(self, began: float) -> None:
        """Waits until the next tick is due or called for. Calls that came together are one."""
        with suppress(Empty):
            self._calls.get(timeout=max(0.01, began + self._rest_s - time.monotonic()))
            time.sleep(0 if self._is_stopping else max(0.01, began + EARLY_S - time.monotonic()))
        while not self._calls.empty():
            self._calls.get_nowait()

    def step(self) -> bool:
        """One turn: whether this engine leads, having ticked every active rollout."""
        self._rest_s = self.tick_s
        if not self._leads():
            return False
        if time.monotonic() - self._dispatched_at >= DISPATCH_EVERY_S:
            self._dispatched_at = time.monotonic()
            dispatch_due()
        rollouts = active_rollouts()
        raw = read_all(rollouts, self.counters)
        for rollout in rollouts:
            if self.token is None:
                return False
            self._guarded(rollout, raw)
        self._await_zero(
            [rollout for rollout in rollouts if rollout.state == S.ROLLING_BACK and rollout.zero_at is None]
        )
        return True

    def _leads(self) -> bool:
        if self.token is not None and renew(LEASE, self.owner, self.token, self.lease_s):
            return True
        was, self.token = self.token, acquire(LEASE, self.owner, self.lease_s)
        if self.token is not None:
            log.info("engine_leads", owner=self.owner, token=self.token)
        elif was is not None:
            log.warning("engine_lost_lead", owner=self.owner, token=was)
        return self.token is not None

    def _guarded(self, rollout: Rollout, raw: Raw) -> None:
        """One rollout's tick; whatever goes wrong in it stays in it."""
        try:
            self.tick(rollout, raw)
        except Stale as error:
            log.warning("engine_fenced_out", rollout=rollout.pk, error=error.message)
            self.token = None
        except StateChanged as error:
            log.info("tick_dropped", rollout=rollout.pk, error=error.message)
        except Exception as error:
            if isinstance(error, OperationalError) and (connection.connection is None or connection.connection.closed):
                raise  # the database is away for all of them; a lock that was not had concerns this one alone
            self.bad_attempts += 1
            # rendering a traceback with all its locals would take longer than a tick: plain text
            log.error("rollout_tick_failed", rollout=rollout.pk, traceback=traceback.format_exc())

    def tick(self, rollout: Rollout, raw: Raw) -> None:
        """Observe, decide, apply, record for one rollout. Leaves `rollout` as it is in the database afterwards."""
        now = timezone.now()
        policy = rollout.plan
        seen = seen_of(rollout, raw, policy, now.timestamp())
        before = Carry.from_json(rollout.engine_state)
        if rollout.state in {S.ROLLING_BACK, S.STUCK}:
            self._take_back(rollout, policy, seen, before)
            return
        carry = before.entering(stage_of(rollout), now.timestamp()) if rollout.state in LIVE else before
        carry = absorb(
            carry,
            tick=rollout.tick + 1,
            readings=seen.readings,
            policy=policy,
            has_stable=rollout.stable_id is not None,
        )
        acked_at, ack = None, None
        if rollout.state in LIVE:
            ack = self._asserted(rollout, carry)
            if ack.all_acked and rollout.step_started_at is None:
                acked_at = now
                carry = carry.acknowledged(now.timestamp())
        snapshot, carry = self._snapshot(rollout, policy, carry, seen, ack, now)
        commit_tick(Tick(rollout, policy, carry, snapshot, decide(snapshot), self.token or 0, now, acked_at))
        if carry.failures.attempts and rollout.state in {S.SHIFTING, S.BAKING}:
            self._rest_s = min(self.tick_s, LOOK_AGAIN_S)

    def _asserted(self, rollout: Rollout, carry: Carry) -> Ack:
        """Writes the route that this rollout's row wants, should anything else stand there; then asks who follows it."""
        write_route(
            rollout, rollout.weight_bp, fence=self.token or 0, reason=rollout.reason, is_promoting=carry.is_promoting
        )
        return acknowledged(Route.objects.get(environment_id=rollout.environment_id, model_id=rollout.model_id))

    def _snapshot(
        self, rollout: Rollout, policy: Policy, carry: Carry, seen: Seen, ack: Ack | None, now: datetime
    ) -> tuple[Snapshot, Carry]:
        at = now.timestamp()
        servers = serving_servers(rollout)
        carry = carry.looked_for_servers(at, servers[0])
        # One look without a server may be a slow probe; a later one, or failed attempts before it, is not.
        is_gone = carry.gone_since is not None and (carry.has_failed or at - carry.gone_since > GONE_OVER_S)
        step_started_at = (
            rollout.step_started_at.timestamp() if rollout.step_started_at else (at if ack and ack.all_acked else None)
        )
        snapshot = Snapshot(
            state=S(rollout.state),
            policy=policy,
            now=at,
            has_stable=rollout.stable_id is not None,
            candidate_name=rollout.candidate.name,
            stable_name=rollout.stable.name if rollout.stable else "nothing",
            step_index=rollout.step_index,
            paused_in=S(rollout.resume_state or S.SHIFTING),
            commanded_bp=rollout.weight_bp,
            is_acknowledged=ack is None or ack.all_acked,
            ack_error=ack.error if ack else "",
            unacknowledged_s=at - carry.commanded_at if carry.commanded_at else 0.0,
            step_started_at=step_started_at,
            candidate_servers=0 if is_gone else max(1, servers[0]),
            stable_servers=servers[1],
            problem=str(seen.problem),
            problem_sentence=seen.sentence,
            is_promoting=carry.is_promoting,
            digest_mismatch=mismatch_of(rollout),
        )
        snapshot = counted(snapshot, carry)
        return self._prepared(rollout, snapshot, carry, servers) if rollout.state == S.PREPARING else (snapshot, carry)

    def _prepared(
        self, rollout: Rollout, snapshot: Snapshot, carry: Carry, servers: tuple[int, int]
    ) -> tuple[Snapshot, Carry]:
        """Asks for the candidate's deployment, and tells how far it is."""
        problem, at = "", snapshot.now
        deployment = deployment_of(rollout.candidate, rollout.environment)
        is_retry_due = carry.asked_at is None or at - carry.asked_at >= RETRY_S
        if (
            deployment is None
            or not deployment.is_wanted
            or (deployment.state == DeploymentState.FAILED and is_retry_due)
        ):
            carry = replace(carry, asked_at=at)
            try:
                deployment = ask_for_candidate(rollout)
            except DomainError as error:
                problem = error.message
        if not problem and deployment is not None and deployment.state == DeploymentState.FAILED:
            problem = f"Its last try failed: {deployment.reason}"
        prepared = replace(
            snapshot,
            waited_s=at - (rollout.started_at or rollout.created_at).timestamp(),
            is_candidate_ready=servers[0] > 0,
            is_stable_ready=rollout.stable is None or servers[1] > 0,
            deployment_problem=problem,
            report_problem=report_problem(rollout.candidate, rollout.environment, rollout.report),
        )
        return prepared, carry

    def _take_back(self, rollout: Rollout, policy: Policy, seen: Seen, before: Carry) -> None:
        """What is left to do of a rollback: acknowledgement, confirmation by counters, the end."""
        token = self.token or 0
        carry = absorb(
            before,
            tick=rollout.tick + 1,
            readings=seen.readings,
            policy=policy,
            has_stable=rollout.stable_id is not None,
        )
        snapshot, carry = self._snapshot(rollout, policy, carry, seen, None, timezone.now())
        commit_tick(Tick(rollout, policy, carry, snapshot, decide(snapshot), token, timezone.now()))
        if rollout.stable is None:
            finish_rollback(rollout, confirmed_at=None, fence=token)
            return
        if rollout.zero_at is None:
            self._look_for_zero(rollout, policy)
            return
        zero = rollout.zero_at.timestamp()
        is_after = bool(seen.readings) and all(_began_after(before, gateway, zero) for gateway in seen.readings)
        is_silent = carry.last.candidate.attempts == 0 and carry.last.candidate.routed == 0
        is_confirmed = is_after and is_silent and not seen.problem and carry.read_at is not None
        is_late = (timezone.now() - rollout.zero_at).total_seconds() > CONFIRM_WITHIN_S
        is_still_reached = is_after and not seen.problem and carry.last.candidate.routed > 0
        if is_late and is_still_reached:
            if rollout.state == S.ROLLING_BACK:
                note_stuck(rollout, f"The counters still show requests for {rollout.candidate.name} at weight 0")
        elif is_confirmed or is_late:
            note_acknowledged_zero(rollout, rollout.zero_at)  # one that was stuck goes on
            confirmed_at = datetime.fromtimestamp(carry.read_at, UTC) if is_confirmed and carry.read_at else None
            finish_rollback(rollout, confirmed_at=confirmed_at, fence=token)

    def _look_for_zero(self, rollout: Rollout, policy: Policy) -> bool:
        """Whether every gateway has acknowledged weight 0, noted with the gateways' own time."""
        assert rollout.stable is not None
        write_route(rollout, 0, fence=self.token or 0, reason=rollout.reason)
        ack = acknowledged(Route.objects.get(environment_id=rollout.environment_id, model_id=rollout.model_id))
        if ack.all_acked and ack.acked_at is not None:
            note_acknowledged_zero(rollout, ack.acked_at)
            return True
        waited = (timezone.now() - (rollout.decided_at or timezone.now())).total_seconds()
        if rollout.state == S.ROLLING_BACK and waited >= policy.ack_deadline_s:
            why = f": {ack.error.rstrip('.')}" if ack.error else ""
            note_stuck(rollout, f"The gateways have not acknowledged weight 0 for {waited:.0f} s{why}")
            log.error("rollback_stuck", rollout=rollout.pk, waited_s=round(waited, 1), error=ack.error)
        return False

    def _await_zero(self, rollouts: list[Rollout]) -> None:
        """Looks for the acknowledgements of fresh rollbacks more often than once a tick, so that their clock is true."""
        until = time.monotonic() + ZERO_POLL_FOR_S
        while rollouts and time.monotonic() < until:
            time.sleep(ZERO_POLL_S)
            rollouts = [rollout for rollout in rollouts if not self._guarded_zero(rollout)]

    def _guarded_zero(self, rollout: Rollout) -> bool:
        try:
            return rollout.stable is None or self._look_for_zero(rollout, rollout.plan)
        except (StateChanged, Stale) as error:
            log.info("zero_poll_dropped", rollout=rollout.pk, error=error.message)
            return True


def stage_of(rollout: Rollout) -> str:
    """Names the step that evidence belongs to: the same before and after a pause."""
    state = rollout.resume_state if rollout.state == S.PAUSED else rollout.state
    return f"{state}:{rollout.step_index}:{rollout.weight_bp}" if state == S.SHIFTING else str(state)


def serving_servers(rollout: Rollout) -> tuple[int, int]:
    """(candidate's, stable's) servers that answer real inferences in this environment."""
    wanted = [pk for pk in (rollout.candidate_id, rollout.stable_id) if pk]
    rows: list[UUID | None] = list(
        current_servers()
        .filter(
            is_serving=True,
            deployment__is_wanted=True,  # one that is being drained answers still, but not for long
            deployment__environment_id=rollout.environment_id,
            deployment__release_id__in=wanted,
        )
        .values_list("deployment__release_id", flat=True)
    )
    return rows.count(rollout.candidate_id), rows.count(rollout.stable_id) if rollout.stable_id else 0


def mismatch_of(rollout: Rollout) -> str:
    """A sentence when the stored manifest is not the one that was sealed and is rolled out; else empty."""
    if sha256_of(rollout.candidate.manifest.encode()) == rollout.candidate.digest:
        return ""
    return f"The stored manifest of {rollout.candidate.name} does not match its digest."


def _began_after(before: Carry, gateway: str, instant: float) -> bool:
    """Whether the reading before this tick's was taken after `instant`, so that what it shows since is wholly later."""
    reading: Reading | None = before.readings.get(gateway)
    return reading is not None and reading.at >= instant
