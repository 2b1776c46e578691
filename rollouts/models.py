"""Rollouts, what was observed of them, what was decided, and who approved."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q
from django.utils import timezone

from accounts.models import User
from registry.models import Release, ServedModel
from rollouts.core.lifecycle import ACTIVE, RolloutState, outcome_of
from rollouts.core.policy import Policy
from rollouts.core.policy_schema import followed_policy
from rollouts.core.watch.lifecycle import AlarmState
from serving.models import Environment
from validators.models import Report


class Rollout(models.Model):
    """Moving an environment's traffic for one model from the stable release to the candidate.

    `stable` is the rollback target, pinned at the start; null where the environment had no release of the model.
    `displaced` is the stable release that had no server when the candidate took all traffic. `stable` is null from then on. If the
    displaced release answers again, a rollback makes it `stable` again.
    `policy` is the whole policy that this rollout follows, `policy_digest` its canonical digest.
    `crossings` are objects: `at`, `code`, `words` and `counts` of the guard, `state`, `step_index`, `weight_bp`, `reason`,
    the clock `first_bad_at`, `decided_at`, `zero_at`, `confirmed_at` as that of a rollback (ISO 8601, UTC, or null), and
    `begun_by`, the person who ended the wait after it, if somebody did.
    `engine_state` is what the engine carries from tick to tick (last counters, evidence); it is written only by the
    leader, with its fencing token.
    """

    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="rollouts")
    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="rollouts")
    candidate = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="rollouts")
    stable = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    displaced = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    report = models.ForeignKey(Report, null=True, on_delete=models.PROTECT, related_name="+")
    policy = models.JSONField()
    policy_digest = models.CharField(max_length=71)
    state = models.CharField(max_length=20)
    resume_state = models.CharField(max_length=20, blank=True)  # where `paused` goes back to
    step_index = models.IntegerField(default=-1)  # -1 before the first step
    weight_bp = models.PositiveIntegerField(default=0)  # commanded share of the candidate, basis points
    mirror_bp = models.PositiveIntegerField(default=0)  # share of the requests that are mirrored, basis points
    promote_now = models.BooleanField(default=False)  # a person asked to skip what is left, but for the breach checks
    observed_bp = models.PositiveIntegerField(null=True)  # measured share over the last window
    reason = models.TextField(blank=True)  # one sentence: state, why, and what comes next
    engine_state = models.JSONField(default=dict)
    tick = models.BigIntegerField(default=0)
    fence = models.BigIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)  # If-Match; grows with every state change, not with every tick
    requested_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    step_started_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)  # the step's (or bake's) deadline
    ended_at = models.DateTimeField(null=True)  # of a reverted one: when it was promoted
    undo_until = models.DateTimeField(
        null=True
    )  # promoted: until then the old stable stays loaded for an instant rollback
    crossings = models.JSONField(
        default=list
    )  # how often its traffic was taken away for another look, the oldest first
    supersedes = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="superseded_by")
    # the clock of a rollback, all measured
    first_bad_at = models.DateTimeField(null=True)  # see `rollouts.queries.first_broken.first_asked`
    decided_at = models.DateTimeField(null=True)  # when the roll back was decided
    zero_at = models.DateTimeField(null=True)  # when every gateway had acknowledged weight 0
    confirmed_at = models.DateTimeField(null=True)  # when counters showed no more traffic on the candidate

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=[s.value for s in RolloutState]), name="rollout_state_known"),
            models.UniqueConstraint(
                fields=["environment", "model"],
                condition=Q(state__in=sorted(s.value for s in ACTIVE)),
                name="rollout_one_active",
            ),
        ]
        indexes = [models.Index(fields=["state"], name="rollout_by_state")]  # the engine's tick

    @property
    def is_withdrawn(self) -> bool:
        """Whether its traffic was taken away for another look, which has not begun yet."""
        return RolloutState.SECOND_LOOK in {self.state, self.resume_state if self.state == RolloutState.PAUSED else ""}

    @property
    def look(self) -> int:
        """The number of the rollout's look, counted from 1."""
        return 1 + len(self.crossings)

    @property
    def effective_policy(self) -> Policy:
        """The policy as it can be followed with or without a stable release."""
        return followed_policy(json.dumps(self.policy), has_stable=self.stable_id is not None)

    @property
    def undo_ends_at(self) -> datetime:
        """When the undo window of a promotion ends if nothing holds it open."""
        return (self.ended_at or self.created_at) + timedelta(seconds=self.effective_policy.instant_window_s)

    @property
    def is_undo_prolonged(self) -> bool:
        """Two machines wrote both instants: their clocks may differ by 45 s, and a window is prolonged by more."""
        return self.undo_until is not None and self.undo_until > self.undo_ends_at + timedelta(seconds=45)

    @property
    def began_with_stable(self) -> bool:
        """Whether the environment had a release of the model at the start."""
        return self.stable_id is not None or self.displaced_id is not None

    @property
    def policy_at_start(self) -> Policy:
        """The policy as it could be followed at the start, before the candidate took the place of a stable release that was gone."""
        return followed_policy(json.dumps(self.policy), has_stable=self.began_with_stable)

    @property
    def outcome(self) -> str:
        return outcome_of(self.state, has_stable=self.stable_id is not None)


class Observation(models.Model):
    """What a block of successive ticks saw: counts of both arms, and the evidence at its end.

    Append-only by trigger, but for one thing: blocks may be replaced by one coarser block that covers their ticks, so that
    a long rollout does not grow without bound. `ticks` holds the single ticks as `rollouts.core.tick_history` encodes them.
    """

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="observations")
    first_tick = models.BigIntegerField()
    tick = models.BigIntegerField()  # the last one
    from_at = models.DateTimeField()
    at = models.DateTimeField()
    state = models.CharField(max_length=20)
    weight_bp = models.PositiveIntegerField()
    ticks = models.JSONField(default=list)
    candidate = (
        models.JSONField()
    )  # {"attempts", "routed", "bad": {"errors": n, "slow_250ms": n}}, summed over the block
    stable = models.JSONField()
    evidence = models.JSONField()  # {guard: {"log_e_worse", "log_e_fine", …}}
    problem = models.CharField(max_length=60, blank=True)  # why its ticks could not be judged, if so

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rollout", "first_tick", "tick"], name="observation_once")]


class LatencyWindow(models.Model):
    """How fast both arms answered in some seconds: first attempts between the edges of `rollouts.core.latency`, for people to look at.

    Append-only by trigger. Windows grow with the rollout's age, so that a month's rollout has some hundred.
    """

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="latency_windows")
    from_at = models.DateTimeField()
    at = models.DateTimeField()
    candidate = models.JSONField()  # counts by class, one more than there are edges
    stable = models.JSONField()

    class Meta:
        indexes = [models.Index(fields=["rollout", "at"], name="latency_by_rollout")]  # the plots of its page


class DecisionRecord(models.Model):
    """What the engine or a person decided, with its sentence of reason. Append-only by trigger."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="decisions")
    at = models.DateTimeField()
    tick = models.BigIntegerField(default=0)
    action = models.CharField(max_length=30)  # start, advance, hold, pause, resume, roll_back, bake, promote, …
    reason = models.TextField()
    code = models.CharField(
        max_length=40, blank=True
    )  # rollouts.core.decision.Code; people's decisions have none but a rollback after the promotion
    actor = models.CharField(max_length=150)
    facts = models.JSONField(default=dict)


class Approval(models.Model):
    """One person's yes to exactly these digests before one stage (`start`, `step 2`, `bake`, `promote`). Append-only by trigger.

    It counts until `expires_at`, and while the release's newest report is the one that was seen.
    """

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="approvals")
    approver = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    manifest_digest = models.CharField(max_length=71)
    report_digest = models.CharField(max_length=71, blank=True)
    policy_digest = models.CharField(max_length=71)
    stage = models.CharField(max_length=20, default="start")
    step_index = models.IntegerField(default=-1)  # where the rollout stood
    comment = models.TextField(blank=True)
    at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["rollout", "stage"], name="approval_by_stage")]


class ProbeTally(models.Model):
    """What the prober has counted for one guard of one rollout since its `epoch` began. Cumulative; one row, overwritten."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="tallies")
    guard = models.CharField(max_length=60)
    epoch = models.CharField(max_length=60)
    candidate_attempts = models.BigIntegerField(default=0)
    candidate_bad = models.BigIntegerField(default=0)
    stable_attempts = models.BigIntegerField(default=0)
    stable_bad = models.BigIntegerField(default=0)
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rollout", "guard"], name="tally_once")]


class Mismatch(models.Model):
    """One answer of the candidate that was not as it should be: an example for people, never the whole evidence."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="mismatches")
    at = models.DateTimeField()
    source = models.CharField(max_length=10)  # golden or shadow
    summary = models.TextField()
    facts = models.JSONField(default=dict)


class TrafficRecord(models.Model):
    """The traffic of a model in an environment, as the engine counts it all the time."""

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="+")
    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE, related_name="+")
    state = models.JSONField(default=dict)  # {"rate_per_s", "error_frac"}: averages over some minutes
    traffic = models.JSONField(
        default=dict
    )  # what it counted in the last hour: rollouts.core.recent_traffic.RecentTraffic
    tenants = models.JSONField(default=dict)  # the last hour by tenant: rollouts.core.tenant_traffic.TenantTraffic
    classes = models.JSONField(default=dict)  # the same by class of requests
    at = models.DateTimeField()

    class Meta:
        db_table = "rollouts_aatestrecord"
        constraints = [models.UniqueConstraint(fields=["environment", "model"], name="self_test_once")]


class WatchRecord(models.Model):
    """The watch's counts of a model's stable release in an environment. One row, overwritten."""

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="+")
    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE, related_name="+")
    objectives = models.JSONField(default=dict)  # {objective: rollouts.core.watch.watched.Watched}
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["environment", "model"], name="watch_once")]


class Alarm(models.Model):
    """An objective of stable that burned, until it is met again or a person closes it.

    `release` was stable when it opened. `facts` hold the newest counts: `bad`, `attempts` and `minutes` they cover, `max_frac`,
    `burn` (share divided by the objective), `burn_peak`, and `since` (ISO 8601, UTC), when the share went over the objective.
    """

    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="+")
    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="alarms")
    release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="+")
    objective = models.CharField(max_length=60)  # name of a guard: errors, slow_250ms
    tier = models.CharField(max_length=10)  # page or ticket
    state = models.CharField(max_length=20, default=AlarmState.OPEN)
    reason = models.TextField()  # one sentence: the cause of the alarm, or of its end
    facts = models.JSONField(default=dict)
    opened_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    closed_at = models.DateTimeField(null=True)
    closed_by = models.CharField(max_length=150, blank=True)  # the actor
    muted_until = models.DateTimeField(null=True)  # until then nothing but its end is sent
    muted_by = models.CharField(max_length=150, blank=True, db_default="")  # the actor
    version = models.PositiveIntegerField(default=1)  # If-Match

    @property
    def is_muted(self) -> bool:
        return self.muted_until is not None and self.muted_until > timezone.now()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=[s.value for s in AlarmState]), name="alarm_state_known"),
            models.UniqueConstraint(
                fields=["environment", "model", "objective", "tier"],
                condition=~Q(state=AlarmState.CLOSED.value),
                name="alarm_one_live",
            ),
        ]


class JudgementWindow(models.Model):
    """The start of the counts that a caller of the judge has judged again and again, so that each call judges the same window.

    `question`: digest of everything else that the caller sent with the first call.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    question = models.CharField(max_length=71)
    began_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="judgement_window_once")]
