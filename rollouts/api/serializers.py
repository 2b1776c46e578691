"""The JSON shapes of rollouts in answers. Durations in seconds, weights in basis points, shares in [0, 1], e-values as log E."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from rollouts.api.clock_serializers import ClockOut, EvidenceOut, SecondLookOut
from rollouts.api.target import TargetOut
from rollouts.core.approvals import Void
from rollouts.core.lifecycle import RolloutState
from rollouts.models import Observation

# Fields named like a member of REST framework's own classes are declared as such: its metaclass takes them out of the class.
_STATES = [state.value for state in RolloutState]


# --- a rollout --------------------------------------------------------------------------------------------------------


class RolloutReleaseOut(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="r14")
    number = serializers.IntegerField()
    digest = serializers.CharField(help_text="sha256:<64 hex> of the manifest")


class RolloutBrief(serializers.Serializer[Any]):
    """A rollout in a list."""

    id = serializers.IntegerField()
    version = serializers.IntegerField(help_text="for If-Match")
    model = serializers.CharField()
    environment = serializers.CharField()
    state = serializers.ChoiceField(choices=_STATES)
    outcome = serializers.CharField(
        help_text="the state, but `ended` where the model's first release was to be rolled back and kept its traffic"
    )
    reason = serializers.CharField(allow_blank=True, help_text="one sentence: why, and what comes next")
    candidate = RolloutReleaseOut()
    stable = RolloutReleaseOut(allow_null=True, help_text="the rollback target; null for a first release")
    displaced = RolloutReleaseOut(allow_null=True, help_text="former stable, which had no server")
    step_index = serializers.IntegerField(help_text="-1 before the first step")
    weight_bp = serializers.IntegerField(help_text="commanded share of the candidate")
    observed_bp = serializers.IntegerField(allow_null=True, help_text="measured share over the last window")
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    url = serializers.CharField()


class DecisionOut(serializers.Serializer[Any]):
    """What the engine or a person decided, and why."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    tick = serializers.IntegerField()
    action = serializers.CharField(help_text="hold, advance, roll_back, …, or a person's verb")
    code = serializers.CharField(allow_blank=True, help_text="the reason's code; see docs/rollouts.md")
    reason = serializers.CharField(help_text="one sentence")
    actor = serializers.CharField()
    facts = serializers.DictField(help_text="the numbers that the reason rests on")


class CountsOut(serializers.Serializer[Any]):
    """What one arm counted."""

    attempts = serializers.IntegerField()
    routed = serializers.IntegerField(
        help_text="requests drawn for this arm, also those that nothing was decided about"
    )
    bad = serializers.DictField(child=serializers.IntegerField(), help_text="bad attempts by counter")


class ArmsOut(serializers.Serializer[Any]):
    candidate = CountsOut()
    stable = CountsOut()


class RolloutArmsOut(serializers.Serializer[Any]):
    step = ArmsOut(help_text="in the present step")
    total = ArmsOut(help_text="since the start")
    last_tick = ArmsOut()


class GuardOut(EvidenceOut):
    """A guard with its evidence and the bars that the evidence is held against."""

    name = serializers.CharField()
    words = serializers.CharField(help_text="its name for people")
    indicator = serializers.CharField()
    source = serializers.CharField(help_text="gateway, prober or prometheus")  # type: ignore[assignment]
    threshold_ms = serializers.FloatField(allow_null=True)
    max_frac = serializers.FloatField(allow_null=True, help_text="the objective")
    limit_frac = serializers.FloatField(allow_null=True)
    is_critical = serializers.BooleanField()
    is_dry_run = serializers.BooleanField(help_text="watched and told, never acted on")
    must_have_data = serializers.BooleanField()
    needs_proof = serializers.BooleanField(help_text="a stage waits until it is proven fine")
    rate_candidate = serializers.FloatField(allow_null=True)
    rate_stable = serializers.FloatField(allow_null=True)
    bar_worse = serializers.FloatField()
    bar_fine = serializers.FloatField()
    is_worse = serializers.BooleanField(help_text="proven worse than stable")
    is_over = serializers.BooleanField(help_text="proven to be over the objective")
    is_fine = serializers.BooleanField(help_text="proven to be close enough to stable, or within the objective")
    worse_progress = serializers.FloatField(min_value=0, max_value=1, help_text="share of the bar")
    fine_progress = serializers.FloatField(min_value=0, max_value=1)
    samples_to_go = serializers.IntegerField(allow_null=True)


class StepOut(serializers.Serializer[Any]):
    """A step, or the bake, which is the last."""

    index = serializers.IntegerField()
    name = serializers.CharField()
    stage = serializers.CharField(help_text="its name in approvals")
    weight_bp = serializers.IntegerField()
    weight_pct = serializers.FloatField()
    min_s = serializers.FloatField()
    min_samples = serializers.IntegerField()
    deadline_s = serializers.FloatField()
    is_current = serializers.BooleanField()
    is_done = serializers.BooleanField()
    ended_here = serializers.BooleanField(help_text="the rollout came so far, and went back or ended from here")
    at = serializers.DateTimeField(allow_null=True, help_text="when its weight was written")


class ShadowOut(serializers.Serializer[Any]):
    """The stage before any user is served."""

    sample_bp = serializers.IntegerField(help_text="share of the requests that is copied")
    min_s = serializers.FloatField()
    min_samples = serializers.IntegerField()
    deadline_s = serializers.FloatField()
    is_current = serializers.BooleanField()
    is_done = serializers.BooleanField()


class WeightOut(serializers.Serializer[Any]):
    """Commanded, acknowledged by every gateway, and observed in the counters: three things."""

    commanded_bp = serializers.IntegerField()
    is_acknowledged = serializers.BooleanField(allow_null=True, help_text="null where nothing is routed")
    acknowledged_bp = serializers.IntegerField(allow_null=True)
    acknowledged_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField(allow_blank=True)
    observed_bp = serializers.IntegerField(allow_null=True)


class UsersOut(serializers.Serializer[Any]):
    requests = serializers.IntegerField()
    errors = serializers.IntegerField(help_text="answered with an error after every retry")  # type: ignore[assignment]
    forced = serializers.IntegerField(
        help_text="requests that forced a release; readings meanwhile give no evidence of time"
    )
    refuses_forced = serializers.BooleanField(help_text="the gateways refuse such requests until the rollout ends")


class ApprovalOut(serializers.Serializer[Any]):
    """One person's yes to exactly these digests before one stage."""

    approver = serializers.CharField()
    stage = serializers.CharField()
    at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    counts = serializers.BooleanField(help_text="now")
    was_used = serializers.BooleanField(help_text="the stage was entered after it, whatever became of it since")
    void = serializers.ChoiceField(
        choices=[void.value for void in Void], allow_null=True, help_text="why it does not count"
    )
    why_void = serializers.CharField(allow_blank=True, help_text="the same as a sentence")
    step_index = serializers.IntegerField(help_text="where the rollout stood")
    comment = serializers.CharField(allow_blank=True)
    manifest_digest = serializers.CharField()
    report_digest = serializers.CharField(allow_blank=True)
    policy_digest = serializers.CharField()


class ApprovalStageOut(serializers.Serializer[Any]):
    stage = serializers.CharField()
    needed = serializers.IntegerField()
    given = serializers.IntegerField()
    by = serializers.ListField(child=serializers.CharField())
    missing = serializers.IntegerField()
    is_ahead = serializers.BooleanField(help_text="false: the rollout is past it, or has ended")
    is_entered = serializers.BooleanField(help_text="then `by` are those who let it in")


class BlockedOut(serializers.Serializer[Any]):
    """What the rollout cannot get past as it is, and what to do."""

    at_stage = serializers.CharField(help_text="the stage that cannot be entered")
    code = serializers.ChoiceField(choices=["report_superseded", "report_not_valid", "nobody_may_approve"])
    message = serializers.CharField()
    next_step = serializers.CharField()


class FrozenOut(serializers.Serializer[Any]):
    """Until when nothing is opened, and why."""

    until = serializers.DateTimeField()
    why = serializers.CharField(allow_blank=True)
    local_until = serializers.CharField(
        allow_blank=True, help_text="the same as the window's clock shows it, with its time zone; empty for UTC"
    )


class UndoWindowOut(serializers.Serializer[Any]):
    """The release to which one step goes back, and until when."""

    to = serializers.CharField()
    until = serializers.DateTimeField()


class MismatchOut(serializers.Serializer[Any]):
    """An answer that the candidate alone got wrong."""

    at = serializers.DateTimeField()
    source = serializers.CharField(help_text="golden or shadow")  # type: ignore[assignment]
    summary = serializers.CharField()
    facts = serializers.DictField()


class RolloutOut(RolloutBrief):
    """Everything about one rollout now."""

    is_final = serializers.BooleanField()
    report = serializers.CharField(allow_null=True, help_text="digest of the report that it rests on")
    policy = serializers.DictField(help_text="the whole policy that it follows; see docs/rollouts.md")
    policy_digest = serializers.CharField()
    steps = StepOut(many=True)
    shadow = ShadowOut(allow_null=True, help_text="null where the policy asks for none")
    step_started_at = serializers.DateTimeField(allow_null=True)
    due_at = serializers.DateTimeField(allow_null=True, help_text="the step's deadline")
    weight = WeightOut()
    mirror_bp = serializers.IntegerField(help_text="share of the requests that is copied to the candidate")
    promote_now = serializers.BooleanField(help_text="a person promotes it: no evidence is waited for")
    guards = GuardOut(many=True)
    arms = RolloutArmsOut()
    users = UsersOut()
    second_look = SecondLookOut()
    clock = ClockOut()
    tick = serializers.IntegerField()
    requested_by = serializers.CharField(allow_null=True)
    approvals = ApprovalOut(many=True)
    approval_stages = ApprovalStageOut(many=True)
    next_approval = serializers.CharField(allow_null=True, help_text="the next stage that lacks approvals")
    may_approve = serializers.ListField(child=serializers.CharField(), help_text="names")
    blocked = BlockedOut(allow_null=True, help_text="why it cannot enter the next stage; null while it may go on")
    will_stop = BlockedOut(allow_null=True, help_text="it goes on, but cannot enter this later stage; null otherwise")
    target = TargetOut(allow_null=True, help_text="what a rollback would go to now; null once it has ended")
    frozen = FrozenOut(allow_null=True)
    undo_window = UndoWindowOut(allow_null=True, help_text="null where there is no such way")
    supersedes = serializers.IntegerField(allow_null=True)
    superseded_by = serializers.IntegerField(allow_null=True)
    mismatches = MismatchOut(many=True, help_text="the latest")
    started_at = serializers.DateTimeField(allow_null=True)
    decisions = DecisionOut(many=True, help_text="the latest, newest first")
    links = serializers.DictField(child=serializers.CharField())


class ObservationOut(serializers.ModelSerializer[Observation]):
    """A block of successive ticks: counts of both arms, and the evidence at its end."""

    state = serializers.ChoiceField(choices=_STATES)
    candidate = CountsOut()
    stable = CountsOut()
    evidence = serializers.DictField(child=EvidenceOut(), help_text="by guard")
    ticks = serializers.ListField(help_text="the single ticks, encoded")

    class Meta:
        model = Observation
        fields = [
            "first_tick", "tick", "from_at", "at", "state", "weight_bp", "candidate", "stable", "evidence", "problem", "ticks",
        ]  # fmt: skip


# --- before and after -------------------------------------------------------------------------------------------------


class TrafficOut(serializers.Serializer[Any]):
    rate_per_s = serializers.FloatField(allow_null=True, help_text="requests of the whole model; null where unknown")
    error_frac = serializers.FloatField(allow_null=True, help_text="stable's share of errors")
    source = serializers.CharField()  # type: ignore[assignment]
    slow_frac = serializers.DictField(child=serializers.FloatField(), help_text="share of slow attempts by counter")
    window_s = serializers.FloatField(allow_null=True, help_text="the rate is an average over about so long")


class StagePreviewOut(serializers.Serializer[Any]):
    """`expected_s` is null if it is unknown, or if the policy takes the candidate back at the stage's deadline before that."""

    name = serializers.CharField()
    weight_bp = serializers.IntegerField()
    min_s = serializers.FloatField()
    min_samples = serializers.IntegerField()
    deadline_s = serializers.FloatField()
    approvals = serializers.IntegerField()
    samples_s = serializers.FloatField(allow_null=True, help_text="until enough attempts are seen")
    proof_s = serializers.FloatField(allow_null=True, help_text="until a healthy candidate is proven")
    expected_s = serializers.FloatField(allow_null=True)
    is_late = serializers.BooleanField(help_text="it will not end by proof before its deadline")


class DetectionOut(serializers.Serializer[Any]):
    """A candidate of which a share fails, at one weight: how long until it is rolled back, at what cost."""

    fail_frac = serializers.FloatField()
    stage = serializers.CharField()
    weight_bp = serializers.IntegerField()
    seconds = serializers.FloatField(allow_null=True, help_text="null: not within 30 days")
    bad_requests = serializers.FloatField(allow_null=True)
    convicted_s = serializers.FloatField(allow_null=True)


class ApprovalNeedOut(serializers.Serializer[Any]):
    stage = serializers.CharField()
    needed = serializers.IntegerField()


class WarningOut(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="stable; see docs/rollouts.md")
    level = serializers.ChoiceField(choices=["refused", "warning", "note"], help_text="refused: the start would be")
    message = serializers.CharField()


class SoonerPlanOut(serializers.Serializer[Any]):
    """One step and a bake, for few requests."""

    weight_bp = serializers.IntegerField()
    holdback_bp = serializers.IntegerField()
    total_s = serializers.FloatField()


class WatchForecastOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    words = serializers.CharField(help_text="errors, slow requests (over 250 ms)")
    max_frac = serializers.FloatField(help_text="share that the objective allows, in [0, 1]")
    page_all_s = serializers.FloatField(
        allow_null=True, help_text="until the page if every request fails; null: unknown"
    )
    page_ten_s = serializers.FloatField(allow_null=True, help_text="until the page at ten times the objective")
    ticket_two_s = serializers.FloatField(allow_null=True, help_text="until the ticket at twice the objective")
    met_s = serializers.FloatField(
        allow_null=True, help_text="until the objective is proven to be met, if a fifth of what it allows is bad"
    )


class RolloutPreviewOut(serializers.Serializer[Any]):
    """What a rollout would do, and what speaks against it."""

    model = serializers.CharField()
    candidate = serializers.CharField()
    stable = serializers.CharField(allow_null=True)
    rollback_target = serializers.CharField(allow_null=True, help_text="null: it has no server")
    environment = serializers.CharField()
    undo_window_s = serializers.FloatField()
    watch = WatchForecastOut(many=True, help_text="delays of the watch after the promotion, at this rate")
    policy = serializers.DictField()
    policy_digest = serializers.CharField()
    traffic = TrafficOut()
    stages = StagePreviewOut(many=True)
    detect = DetectionOut(many=True)
    total_s = serializers.FloatField(allow_null=True)
    is_thin = serializers.BooleanField(help_text="some stage will not see enough before its deadline")
    sooner = SoonerPlanOut(allow_null=True, help_text="a plan that proves a healthy release in less time; if is_thin")
    approvals = ApprovalNeedOut(many=True)
    frozen = FrozenOut(allow_null=True)
    can_start = serializers.BooleanField()
    warnings = WarningOut(many=True)
