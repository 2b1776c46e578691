"""The JSON shapes of rollouts in answers. Durations in seconds, weights in basis points, shares in [0, 1], e-values as log E."""

from __future__ import annotations

from datetime import datetime

from rest_framework.serializers import ChoiceField, DictField, FloatField, ListField, ModelSerializer

from accounts.api.shapes import Shape, described
from rollouts.api.clock_serializers import ClockOut, EvidenceOut, SecondLookOut
from rollouts.api.target import TargetOut
from rollouts.core.approvals import Void
from rollouts.core.lifecycle import RolloutState
from rollouts.models import Observation

# Fields named like a member of REST framework's own classes are declared as such: its metaclass takes them out of the class.
_STATES = [state.value for state in RolloutState]


# --- a rollout --------------------------------------------------------------------------------------------------------


class RolloutReleaseOut(Shape):
    name: str = described("r14")
    number: int
    digest: str = described("sha256:<64 hex> of the manifest")


class RolloutBrief(Shape):
    """A rollout in a list."""

    id: int
    version: int = described("for If-Match")
    model: str
    environment: str
    state: RolloutState
    outcome: str = described(
        "the state, but `ended` where the model's first release was to be rolled back and kept its traffic"
    )
    reason: str = described("one sentence: why, and what comes next")
    candidate: RolloutReleaseOut
    stable: RolloutReleaseOut | None = described("the rollback target; null for a first release")
    displaced: RolloutReleaseOut | None = described("former stable, which had no server")
    step_index: int = described("-1 before the first step")
    weight_bp: int = described("commanded share of the candidate")
    observed_bp: int | None = described("measured share over the last window")
    created_at: datetime
    ended_at: datetime | None
    url: str


class DecisionOut(Shape):
    """What the engine or a person decided, and why."""

    id: int
    at: datetime
    tick: int
    action: str = described("hold, advance, roll_back, …, or a person's verb")
    code: str = described("the reason's code; see docs/rollouts.md")
    reason: str = described("one sentence")
    actor: str
    facts = DictField(help_text="the numbers that the reason rests on")


class CountsOut(Shape):
    """What one arm counted."""

    attempts: int
    routed: int = described("requests drawn for this arm, also those that nothing was decided about")
    bad: dict[str, int] = described("bad attempts by counter")


class ArmsOut(Shape):
    candidate: CountsOut
    stable: CountsOut


class RolloutArmsOut(Shape):
    step: ArmsOut = described("in the present step")
    total: ArmsOut = described("since the start")
    last_tick: ArmsOut


class GuardOut(EvidenceOut):
    """A guard with its evidence and the bars that the evidence is held against."""

    name: str
    words: str = described("its name for people")
    indicator: str
    source: str = described("gateway, prober or prometheus")
    threshold_ms: float | None
    max_frac: float | None = described("the objective")
    limit_frac: float | None
    is_critical: bool
    is_dry_run: bool = described("watched and told, never acted on")
    must_have_data: bool
    needs_proof: bool = described("a stage waits until it is proven fine")
    rate_candidate: float | None
    rate_stable: float | None
    bar_worse: float
    bar_fine: float
    is_worse: bool = described("proven worse than stable")
    is_over: bool = described("proven to be over the objective")
    is_fine: bool = described("proven to be close enough to stable, or within the objective")
    worse_progress: float = described("share of the bar", min_value=0, max_value=1)
    fine_progress = FloatField(min_value=0, max_value=1)
    samples_to_go: int | None


class StepOut(Shape):
    """A step, or the bake, which is the last."""

    index: int
    name: str
    stage: str = described("its name in approvals")
    weight_bp: int
    weight_pct: float
    min_s: float
    min_samples: int
    deadline_s: float
    is_current: bool
    is_done: bool
    ended_here: bool = described("the rollout came so far, and went back or ended from here")
    at: datetime | None = described("when its weight was written")


class ShadowOut(Shape):
    """The stage before any user is served."""

    sample_bp: int = described("share of the requests that is copied")
    min_s: float
    min_samples: int
    deadline_s: float
    is_current: bool
    is_done: bool


class WeightOut(Shape):
    """Commanded, acknowledged by every gateway, and observed in the counters: three things."""

    commanded_bp: int
    is_acknowledged: bool | None = described("null where nothing is routed")
    acknowledged_bp: int | None
    acknowledged_at: datetime | None
    error: str
    observed_bp: int | None


class UsersOut(Shape):
    requests: int
    errors: int = described("answered with an error after every retry")  # type: ignore[assignment]
    forced: int = described("requests that forced a release; readings meanwhile give no evidence of time")
    refuses_forced: bool = described("the gateways refuse such requests until the rollout ends")


class ApprovalOut(Shape):
    """One person's yes to exactly these digests before one stage."""

    approver: str
    stage: str
    at: datetime
    expires_at: datetime | None
    counts: bool = described("now")
    was_used: bool = described("the stage was entered after it, whatever became of it since")
    void: Void | None = described("why it does not count")
    why_void: str = described("the same as a sentence")
    step_index: int = described("where the rollout stood")
    comment: str
    manifest_digest: str
    report_digest: str
    policy_digest: str


class ApprovalStageOut(Shape):
    stage: str
    needed: int
    given: int
    by: list[str]
    missing: int
    is_ahead: bool = described("false: the rollout is past it, or has ended")
    is_entered: bool = described("then `by` are those who let it in")


class BlockedOut(Shape):
    """What the rollout cannot get past as it is, and what to do."""

    at_stage: str = described("the stage that cannot be entered")
    code = ChoiceField(choices=["report_superseded", "report_not_valid", "nobody_may_approve"])
    message: str
    next_step: str


class FrozenOut(Shape):
    """Until when nothing is opened, and why."""

    until: datetime
    why: str
    local_until: str = described("the same as the window's clock shows it, with its time zone; empty for UTC")


class UndoWindowOut(Shape):
    """The release to which one step goes back, and until when."""

    to: str
    until: datetime


class MismatchOut(Shape):
    """An answer that the candidate alone got wrong."""

    at: datetime
    source: str = described("golden or shadow")
    summary: str
    facts = DictField()


class RolloutOut(RolloutBrief):
    """Everything about one rollout now."""

    is_final: bool
    report: str | None = described("digest of the report that it rests on")
    policy = DictField(help_text="the whole policy that it follows; see docs/rollouts.md")
    policy_digest: str
    steps: list[StepOut]
    shadow: ShadowOut | None = described("null where the policy asks for none")
    step_started_at: datetime | None
    due_at: datetime | None = described("the step's deadline")
    weight: WeightOut
    mirror_bp: int = described("share of the requests that is copied to the candidate")
    promote_now: bool = described("a person promotes it: no evidence is waited for")
    guards: list[GuardOut]
    arms: RolloutArmsOut
    users: UsersOut
    second_look: SecondLookOut
    clock: ClockOut
    tick: int
    requested_by: str | None
    approvals: list[ApprovalOut]
    approval_stages: list[ApprovalStageOut]
    next_approval: str | None = described("the next stage that lacks approvals")
    may_approve: list[str] = described("names")
    blocked: BlockedOut | None = described("why it cannot enter the next stage; null while it may go on")
    will_stop: BlockedOut | None = described("it goes on, but cannot enter this later stage; null otherwise")
    target: TargetOut | None = described("what a rollback would go to now; null once it has ended")
    frozen: FrozenOut | None
    undo_window: UndoWindowOut | None = described("null where there is no such way")
    supersedes: int | None
    superseded_by: int | None
    mismatches: list[MismatchOut] = described("the latest")
    started_at: datetime | None
    decisions: list[DecisionOut] = described("the latest, newest first")
    links: dict[str, str]


class ObservationOut(ModelSerializer[Observation]):
    """A block of successive ticks: counts of both arms, and the evidence at its end."""

    state = ChoiceField(choices=_STATES)
    candidate = CountsOut()
    stable = CountsOut()
    evidence = DictField(child=EvidenceOut(), help_text="by guard")
    ticks = ListField(help_text="the single ticks, encoded")

    class Meta:
        model = Observation
        fields = [
            "first_tick",
            "tick",
            "from_at",
            "at",
            "state",
            "weight_bp",
            "candidate",
            "stable",
            "evidence",
            "problem",
            "ticks",
        ]


# --- before and after -------------------------------------------------------------------------------------------------


class TrafficOut(Shape):
    rate_per_s: float | None = described("requests of the whole model; null where unknown")
    error_frac: float | None = described("stable's share of errors")
    source: str
    slow_frac: dict[str, float] = described("share of slow attempts by counter")
    window_s: float | None = described("the rate is an average over about so long")


class StagePreviewOut(Shape):
    """`expected_s` is null if it is unknown, or if the policy takes the candidate back at the stage's deadline before that."""

    name: str
    weight_bp: int
    min_s: float
    min_samples: int
    deadline_s: float
    approvals: int
    samples_s: float | None = described("until enough attempts are seen")
    proof_s: float | None = described("until a healthy candidate is proven")
    expected_s: float | None
    is_late: bool = described("it will not end by proof before its deadline")


class DetectionOut(Shape):
    """A candidate of which a share fails, at one weight: how long until it is rolled back, at what cost."""

    fail_frac: float
    stage: str
    weight_bp: int
    seconds: float | None = described("null: not within 30 days")
    bad_requests: float | None
    convicted_s: float | None


class ApprovalNeedOut(Shape):
    stage: str
    needed: int


class WarningOut(Shape):
    code: str = described("stable; see docs/rollouts.md")
    level = ChoiceField(choices=["refused", "warning", "note"], help_text="refused: the start would be")
    message: str


class SoonerPlanOut(Shape):
    """One step and a bake, for few requests."""

    weight_bp: int
    holdback_bp: int
    total_s: float


class WatchForecastOut(Shape):
    name: str
    words: str = described("errors, slow requests (over 250 ms)")
    max_frac: float = described("share that the objective allows, in [0, 1]")
    page_all_s: float | None = described("until the page if every request fails; null: unknown")
    page_ten_s: float | None = described("until the page at ten times the objective")
    ticket_two_s: float | None = described("until the ticket at twice the objective")
    met_s: float | None = described("until the objective is proven to be met, if a fifth of what it allows is bad")


class RolloutPreviewOut(Shape):
    """What a rollout would do, and what speaks against it."""

    model: str
    candidate: str
    stable: str | None
    rollback_target: str | None = described("null: it has no server")
    environment: str
    undo_window_s: float
    watch: list[WatchForecastOut] = described("delays of the watch after the promotion, at this rate")
    policy = DictField()
    policy_digest: str
    traffic: TrafficOut
    stages: list[StagePreviewOut]
    detect: list[DetectionOut]
    total_s: float | None
    is_thin: bool = described("some stage will not see enough before its deadline")
    sooner: SoonerPlanOut | None = described("a plan that proves a healthy release in less time; if is_thin")
    approvals: list[ApprovalNeedOut]
    frozen: FrozenOut | None
    can_start: bool
    warnings: list[WarningOut]
