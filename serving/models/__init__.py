"""Environments, gateways, nodes, replicas with their servers, and the routes that gateways must follow."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from registry.models import Release, ServedModel
from serving.environments.core.lifecycle import LIVE, ReplicaState
from serving.environments.core.platforms import PlatformKind
from serving.environments.core.sleep_lifecycle import SleepRule, SleepState
from serving.traffic.core.routes import SLOTS


class Environment(models.Model):
    """Staging, production, …: where releases run, and the rules for entering it.

    One that was retired runs nothing and takes nothing; what it was stays readable, and its name stays its own.
    """

    slug = models.SlugField(unique=True, max_length=40)
    title = models.CharField(max_length=120)
    platform = models.CharField(max_length=10, default=PlatformKind.LOCAL, db_default=PlatformKind.LOCAL)
    is_routed = models.BooleanField(default=True)  # False: no gateway; gates talk to the servers directly
    needs_passed_report = models.BooleanField(default=True)
    needs_approval = models.BooleanField(default=False)
    allows_forced_release = models.BooleanField(default=False)  # x-sluicegate-release on a request
    forced_key_number = models.PositiveIntegerField(default=0, db_default=0)  # grows with each new key
    generation = models.BigIntegerField(default=0)  # grows with every route change in it
    version = models.PositiveIntegerField(default=1)  # of its rules: If-Match
    retired_at = models.DateTimeField(null=True)
    retired_by = models.CharField(max_length=150, blank=True, default="", db_default="")
    retire_reason = models.TextField(blank=True, default="", db_default="")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(platform__in=[p.value for p in PlatformKind]), name="environment_platform_known"
            )
        ]

    def __str__(self) -> str:
        return self.slug


class Gateway(models.Model):
    """One Envoy that serves an environment. `name` is its xDS node id.

    While it is drained it goes on answering, and says that it is not ready, so that whoever shares users out leaves it out.
    """

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="gateways")
    name = models.CharField(max_length=80, unique=True)
    admin_url = models.URLField()  # loopback only
    http_url = models.URLField()
    grpc_address = models.CharField(max_length=120)  # host:port
    seen_at = models.DateTimeField(null=True)  # when it last spoke to the control plane
    follows_at = models.DateTimeField(null=True)  # it has taken all that was written by then about routes and servers
    drained_at = models.DateTimeField(null=True)  # since when it is being drained
    drained_by = models.CharField(max_length=150, blank=True)
    drain_reason = models.TextField(blank=True)
    version = models.PositiveIntegerField(default=1)  # If-Match; grows as its addresses or its drain change


class Node(models.Model):
    """A machine with an agent. `runtimes` lists the runtime images it can run: [{image, server, backends, versions}].

    One that was removed is on no list and takes no replica.
    """

    name = models.SlugField(primary_key=True, max_length=60)
    runtimes = models.JSONField(default=list)
    facts = models.JSONField(default=dict)
    gpus = models.JSONField(
        default=dict
    )  # its GPUs' last reading, as `serving.targets.core.gpu.GpuReading.as_json` has it
    seen_at = models.DateTimeField(null=True)
    removed_at = models.DateTimeField(null=True)


class ListedServer(models.Model):
    """An inference server that its owner runs at an address, listed by an environment.

    Replicas, readiness and routes refer to it by its node, a row that no machine stands for.
    """

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="listing")
    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="listed_servers")
    host = models.CharField(max_length=120)
    http_port = models.PositiveIntegerField()
    grpc_port = models.PositiveIntegerField()
    kind = models.CharField(max_length=60, blank=True, default="")  # the name it must state; empty: any
    loads = models.CharField(max_length=300)  # `serving.targets.core.static_servers`
    runtime = models.CharField(max_length=300)  # the image that its owner names
    listed_by = models.CharField(max_length=150)
    listed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["host", "http_port"], name="listed_server_once_over_http"),
            models.UniqueConstraint(fields=["host", "grpc_port"], name="listed_server_once_over_grpc"),
        ]


class NodeGpuReading(models.Model):
    """What a node's GPUs said at one instant, while a server that no user reaches was up there. Kept for an hour."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpu_readings")
    at = models.DateTimeField()
    gpus = models.JSONField()  # as `serving.targets.core.gpu.GpuReading.as_json` has it

    class Meta:
        indexes = [
            models.Index(fields=["node", "at"], name="gpu_reading_of_node"),  # a gate's
            models.Index(fields=["at"], name="gpu_reading_by_age"),  # what is kept no longer
        ]


class ReplicaTarget(models.Model):
    """How many replicas of a release an environment is to have, where somebody said so. Without one, what its envelope declares."""

    release = models.ForeignKey(Release, on_delete=models.CASCADE, related_name="replica_targets")
    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="replica_targets")
    replicas = models.PositiveSmallIntegerField()
    reason = models.TextField(blank=True)
    changed_by = models.CharField(max_length=150)
    changed_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1)  # If-Match

    class Meta:
        db_table = "serving_scale"
        constraints = [
            models.UniqueConstraint(fields=["release", "environment"], name="scale_once"),
            models.CheckConstraint(condition=Q(replicas__gte=1), name="scale_has_a_replica"),
        ]


class Replica(models.Model):
    """One replica of a release in an environment: a server on a node, and its replacements.

    While it is to stay, it is the only one with its ordinal. A drained replica has given its ordinal to the replica that takes its place.
    """

    release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="replicas")
    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="replicas")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="replicas")
    ordinal = models.PositiveSmallIntegerField(default=0, db_column="slot")
    claim = models.JSONField(default=dict)  # what it holds of its node: `serving.targets.core.placement.Claim`
    state = models.CharField(max_length=10, default=ReplicaState.FETCHING)
    is_wanted = models.BooleanField(default=True)  # False: drain it
    reason = models.TextField(blank=True)
    timings = models.JSONField(default=dict)  # {"fetch_s", "load_s", "warmup_s"}: the measured cold start
    recoveries = models.PositiveIntegerField(default=0)  # times its server was brought back
    drain_asked_at = models.DateTimeField(null=True)  # its agent drains it as soon as nothing holds it up
    drain_reason = models.TextField(blank=True)
    is_set_aside = models.BooleanField(
        default=False, db_default=False
    )  # gateways send it nothing, however well it answers its agent
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)  # the last time that it failed
    gone_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "serving_deployment"
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in ReplicaState]), name="deployment_state_known"
            ),
            models.UniqueConstraint(
                fields=["release", "environment", "ordinal"],
                condition=Q(state__in=sorted(s.value for s in LIVE), is_wanted=True, drain_asked_at=None),
                name="deployment_once_in_its_slot",
            ),
        ]


class Server(models.Model):
    """One inference server process, started for one replica. A replacement is a new row.

    `pid` 0: somebody else's process, which was given the release, or was found to serve it; nothing of it is measured or proven.
    """

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="servers", db_column="deployment_id")
    host = models.CharField(max_length=120, default="127.0.0.1")
    http_port = models.PositiveIntegerField()
    grpc_port = models.PositiveIntegerField()
    metrics_port = models.PositiveIntegerField()
    pid = models.PositiveIntegerField()
    folder = models.CharField(max_length=300)
    started_at = models.DateTimeField(auto_now_add=True)
    probed_at = models.DateTimeField(null=True)  # last real inference that was right
    is_serving = models.BooleanField(default=False)  # it answered a real inference and is not known to be broken
    drift_checked_at = models.DateTimeField(null=True)  # when its files were last compared with what was sealed
    drift = models.JSONField(
        default=list
    )  # [{path, expected, found}] of `serving.targets.agent.drift.Drift`: what differed then
    digest = models.CharField(max_length=71, blank=True)  # of the manifest whose files were verified as it was started
    memory_bytes = models.BigIntegerField(null=True)  # of all its processes, measured by its agent; null: not yet
    memory_at = models.DateTimeField(null=True)
    exit_code = models.SmallIntegerField(null=True)  # of a process that ended by itself; -9: a signal; null: not known
    ended_at = models.DateTimeField(null=True)
    end_reason = models.TextField(blank=True)


class ServerLog(models.Model):
    """The end of the log of a server that no user reaches, as its agent last saw it, without paths and secrets."""

    server = models.OneToOneField(Server, on_delete=models.CASCADE, related_name="log")
    text = models.TextField()
    at = models.DateTimeField()


class ServerReading(models.Model):
    """What a server that no user reaches used at one instant, as `serving.targets.core.use.Use` has it. Kept for an hour."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="readings")
    at = models.DateTimeField()
    memory_bytes = models.BigIntegerField()
    own_bytes = models.BigIntegerField(null=True)
    shared_bytes = models.BigIntegerField(null=True)
    cpu_s = models.FloatField(null=True)
    open_files = models.PositiveIntegerField(null=True)
    gpu_memory_bytes = models.BigIntegerField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["server", "at"], name="server_reading_of_server"),  # a gate's, and the last one
            models.Index(fields=["at"], name="server_reading_by_age"),  # what is kept no longer
        ]


def slot_of(changes: int) -> int:
    """The label of requests that begin under a route that was changed so often, in [0, SLOTS)."""
    return changes % SLOTS


class Route(models.Model):
    """What the gateways of an environment must do with one model's traffic. The control plane serves this table."""

    environment = models.ForeignKey(Environment, on_delete=models.PROTECT, related_name="routes")
    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="routes")
    stable = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="+")
    candidate = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    candidate_bp = models.PositiveIntegerField(default=0)  # basis points, 0 … 10000
    mirror_bp = models.PositiveIntegerField(default=0)  # of the split's requests, copied to the prober; 0 … 10000
    generation = models.BigIntegerField(default=0)  # of the environment, when this row last changed
    changes = models.PositiveIntegerField(default=0)  # how often this row changed
    fence = models.BigIntegerField(default=0)  # the highest engine lease token that wrote here
    changed_at = models.DateTimeField()
    refuses_forced = models.BooleanField(default=False, db_default=False)  # requests that force a release
    stable_since = models.DateTimeField(null=True)  # when `stable` became the stable release here
    #: By release: the rate that one server of it was proven for when it came into the route
    #: (`serving.traffic.core.admission.Proof`), or null.
    proven = models.JSONField(default=dict, db_default=models.Value({}, models.JSONField()))

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["environment", "model"], name="route_once"),
            models.CheckConstraint(condition=Q(candidate_bp__lte=10000), name="route_weight_in_range"),
            models.CheckConstraint(
                condition=Q(candidate_bp=0) | Q(candidate__isnull=False), name="route_weight_has_candidate"
            ),
            models.CheckConstraint(
                condition=Q(candidate__isnull=True) | ~Q(candidate=F("stable")), name="route_arms_differ"
            ),
            models.CheckConstraint(condition=Q(mirror_bp__lte=10000), name="route_mirror_in_range"),
            models.CheckConstraint(
                condition=Q(mirror_bp=0) | Q(candidate__isnull=False), name="route_mirror_has_candidate"
            ),
        ]

    @property
    def slot(self) -> int:
        """The label of the requests that begin under this row as it is, in [0, SLOTS)."""
        return slot_of(self.changes)


class Sleep(models.Model):
    """Whether a model may sleep in an environment, its servers unloaded while nobody asks it, and whether it does. Without one it never
    sleeps."""

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="sleeps")
    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE, related_name="sleeps")
    unload_after_s = models.PositiveIntegerField(
        null=True
    )  # the rule: `serving.environments.core.sleep_lifecycle.SleepRule`
    yields_after_s = models.PositiveIntegerField(null=True)
    loads_on_demand = models.BooleanField(default=True)
    reason = models.TextField(blank=True)  # of the rule, as who last changed it told
    changed_by = models.CharField(max_length=150, blank=True)
    changed_at = models.DateTimeField(null=True)
    state = models.CharField(max_length=6, default=SleepState.AWAKE)
    state_since = models.DateTimeField(null=True)  # null: it was always awake
    state_reason = models.TextField(blank=True)
    state_by = models.CharField(max_length=150, blank=True, default="", db_default="")  # who brought it there
    wake_s = models.PositiveIntegerField(default=0)  # while it sleeps: in so many seconds a caller is to ask again
    trouble = models.TextField(
        blank=True
    )  # why it does not wake or fall asleep, or stays loaded, as the last look had it
    quiet_since = models.DateTimeField(null=True)  # no gateway counted a request since then
    counts = models.JSONField(default=dict)  # [epoch, requests, asleep] by gateway, as they were last
    version = models.PositiveIntegerField(default=1)  # If-Match; grows with each change of the rule and of the state

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["environment", "model"], name="sleep_once"),
            models.CheckConstraint(condition=Q(state__in=[s.value for s in SleepState]), name="sleep_state_known"),
        ]

    @property
    def place(self) -> tuple[int, int]:
        """Its environment and its model."""
        return self.environment_id, self.model_id

    @property
    def rule(self) -> SleepRule:
        return SleepRule(self.unload_after_s, self.yields_after_s, self.loads_on_demand)


class RouteAck(models.Model):
    """What one gateway last acknowledged of one route, or refused (`error`)."""

    gateway = models.ForeignKey(Gateway, on_delete=models.CASCADE, related_name="acks")
    route = models.ForeignKey(Route, on_delete=models.CASCADE, related_name="acks")
    generation = models.BigIntegerField()
    acked_at = models.DateTimeField()
    error = models.TextField(blank=True)
    taken = models.BigIntegerField(
        db_default=0
    )  # the newest generation that it routes by, also where `generation` is in error

    class Meta:
        constraints = [models.UniqueConstraint(fields=["gateway", "route"], name="route_ack_once")]


class RequestExample(models.Model):
    """A request that failed or was slow while a candidate had traffic, as a gateway told it: for people to look at; counts judge.

    `release` was to answer, or failed to; `candidate` is that of the rollout under which it was asked. `request_id` is what the
    caller sent or was told (`x-request-id`). `http_status` 0: no answer came. Of each arm the first and the latest are kept.
    """

    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="+")
    candidate = models.ForeignKey(Release, on_delete=models.CASCADE, related_name="+")
    release = models.ForeignKey(Release, on_delete=models.CASCADE, related_name="+")
    server = models.ForeignKey(Server, null=True, on_delete=models.SET_NULL, related_name="+")
    gateway = models.CharField(max_length=80)
    kind = models.CharField(max_length=6)  # failed or slow
    at = models.DateTimeField()  # when it began, by the gateway's clock
    request_id = models.CharField(max_length=100, blank=True)
    took_ms = models.FloatField()
    http_status = models.PositiveIntegerField()
    grpc_status = models.PositiveIntegerField(null=True)
    tries = models.PositiveSmallIntegerField(default=1)
    flags = models.CharField(max_length=30, blank=True)  # Envoy's, of what ended it without an answer
    address = models.CharField(max_length=120, blank=True)  # host:port of the server

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=["failed", "slow"]), name="request_example_kind_known")
        ]
        indexes = [  # the rollout's page, and what is kept of each arm
            models.Index(fields=["environment", "candidate", "release", "kind", "at"], name="request_example_by_arm")
        ]


from serving.models.endpoint import Endpoint as Endpoint  # noqa: E402  # its rows refer to the models above
from serving.models.series import SeriesBlock as SeriesBlock  # noqa: E402
from serving.models.series import SeriesHour as SeriesHour  # noqa: E402
from serving.models.series import SeriesMinute as SeriesMinute  # noqa: E402
from serving.models.series import TrafficSeries as TrafficSeries  # noqa: E402
