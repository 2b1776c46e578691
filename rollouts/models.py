"""Rollouts, what was observed of them, what was decided, and who approved."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from accounts.models import User
from registry.models import Release, ServedModel
from rollouts.core.lifecycle import ACTIVE, RolloutState
from rollouts.core.plan import Policy, parse_policy
from serving.models import Environment
from validators.models import Report


class Rollout(models.Model):
    """Moving an environment's traffic for one model from the stable release to the candidate.

    `stable` is the rollback target, pinned at the start; null where the environment had no release of the model.
    `policy` is the whole policy that this rollout follows, `policy_digest` its canonical digest.
    `engine_state` is what the engine carries from tick to tick (last counters, evidence); it is written only by the
    leader, with its fencing token.
    """

    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="rollouts")
    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="rollouts")
    candidate = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="rollouts")
    stable = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    report = models.ForeignKey(Report, null=True, on_delete=models.PROTECT, related_name="+")
    policy = models.JSONField()
    policy_digest = models.CharField(max_length=71)
    state = models.CharField(max_length=20, default=RolloutState.REQUESTED)
    resume_state = models.CharField(max_length=20, blank=True)  # where `paused` goes back to
    step_index = models.IntegerField(default=-1)  # -1 before the first step
    weight_bp = models.PositiveIntegerField(default=0)  # commanded share of the candidate, basis points
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
    ended_at = models.DateTimeField(null=True)
    # the clock of a rollback, all measured
    first_bad_at = models.DateTimeField(null=True)  # the last reading before the candidate's first bad attempt
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
    def plan(self) -> Policy:
        """The policy as it can be followed with or without a stable release."""
        return parse_policy(self.policy).facing(has_stable=self.stable_id is not None)


class Observation(models.Model):
    """What one tick saw: counts since the tick before, of both arms, and the evidence after it. Append-only."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="observations")
    tick = models.BigIntegerField()
    at = models.DateTimeField()
    weight_bp = models.PositiveIntegerField()
    candidate = models.JSONField()  # {"attempts", "errors", "routed", "slow": {"250": n}}
    stable = models.JSONField()
    evidence = models.JSONField()  # {guard: {"log_e_worse", "log_e_fine", …}}
    problem = models.CharField(max_length=60, blank=True)  # why this tick could not be judged, if so

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rollout", "tick"], name="observation_once")]


class Decision(models.Model):
    """What the engine or a person decided, with its sentence of reason. Append-only by trigger."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="decisions")
    at = models.DateTimeField()
    tick = models.BigIntegerField(default=0)
    action = models.CharField(max_length=30)  # start, advance, hold, pause, resume, roll_back, bake, promote, …
    reason = models.TextField()
    code = models.CharField(max_length=40, blank=True)  # stable reason code, such as errors_worse or no_data
    actor = models.CharField(max_length=150)
    facts = models.JSONField(default=dict)


class Approval(models.Model):
    """One person's yes to exactly these digests at this step. Append-only by trigger."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="approvals")
    approver = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    manifest_digest = models.CharField(max_length=71)
    report_digest = models.CharField(max_length=71, blank=True)
    policy_digest = models.CharField(max_length=71)
    step_index = models.IntegerField(default=-1)
    comment = models.TextField(blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["rollout", "approver", "step_index"], name="approval_once")]
