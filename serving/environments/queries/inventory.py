"""Named reads of environments, nodes, replicas and servers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from ledger.core.errors import NotFound
from registry.models import Release
from registry.queries.releases import LARGE
from serving.environments.core.lifecycle import LIVE, ReplicaState
from serving.environments.core.platforms import PlatformKind
from serving.models import Environment, Gateway, Node, Replica, Route, Server, ServerLog

FORGOTTEN_AFTER: Final = timedelta(days=1)


def get_environment(slug: str) -> Environment:
    """With its own columns alone; also one that is retired. Raises NotFound."""
    return known_environment(find_environment(slug), slug)


def known_environment(found: Environment | None, slug: str) -> Environment:
    if found is None:
        known = ", ".join(one.slug for one in all_environments())
        raise NotFound(
            "no_such_environment", f"There is no environment {slug}; there are {known or 'none yet'}.", environment=slug
        )
    return found


def find_environment(slug: str) -> Environment | None:
    return Environment.objects.filter(slug=slug).first()


def one_environment(key: int) -> QuerySet[Environment]:
    """The environment of this key, for a query that annotates it."""
    return Environment.objects.filter(pk=key)


def all_environments(*, with_retired: bool = False) -> list[Environment]:
    """Every environment that is not retired, with its own columns alone, in the order of their names."""
    rows = Environment.objects.order_by("slug")
    return list(rows if with_retired else rows.filter(retired_at=None))


def environment_titles() -> list[tuple[str, str]]:
    """(slug, title) of every environment, those that are retired last: what the filter of a list of what happened offers."""
    rows = Environment.objects.order_by(F("retired_at").asc(nulls_first=True), "slug")
    return [
        (slug, f"{title} (retired)" if retired_at else title)
        for slug, title, retired_at in rows.values_list("slug", "title", "retired_at")
    ]


def environments_by_id(ids: Collection[int]) -> dict[int, Environment]:
    return Environment.objects.in_bulk(ids)


def gateways_in(environments: Collection[int]) -> dict[int, list[Gateway]]:
    """The gateways of each of these environments, by its key, in the order of their names."""
    found: dict[int, list[Gateway]] = {one: [] for one in environments}
    for gateway in Gateway.objects.filter(environment_id__in=list(found)).order_by("name"):
        found[gateway.environment_id].append(gateway)
    return found


def replicas_in(release: Release | UUID, environment: Environment | int) -> QuerySet[Replica]:
    """By rows or keys. Those that are not gone, the wanted and newest first: several while it is moved from one node to another."""
    return live_replicas().filter(release=release, environment=environment).order_by("-is_wanted", "-pk")


def live_replicas() -> QuerySet[Replica]:
    """Those that are not gone, without what only one release by itself is asked for: agents look every second."""
    rows = Replica.objects.filter(state__in=sorted(LIVE)).select_related("release__model__team", "environment", "node")
    return rows.defer(*(f"release__{column}" for column in LARGE))


def ready_server(release: Release, environment: Environment) -> Server | None:
    """The newest of the release's `answering_servers` there."""
    return next(iter(_ready(release=release.pk, environment=environment.pk)), None)


def answering_servers() -> QuerySet[Server]:
    """Servers of ready, wanted replicas that answered a real inference and are not known to be broken, newest first."""
    return current_servers().filter(replica__state=ReplicaState.READY, replica__is_wanted=True, is_serving=True)


def _ready(release: Any, environment: Any) -> QuerySet[Any, Any]:
    return answering_servers().filter(replica__release=release, replica__environment=environment)[:1]


def current_servers() -> QuerySet[Server]:
    """Servers whose process is not known to be over, the newest first, with their releases as `live_replicas` has them."""
    rows = Server.objects.filter(ended_at=None).select_related(
        "replica__release__model__team", "replica__environment", "replica__node"
    )
    return rows.defer(*(f"replica__release__{column}" for column in LARGE)).order_by("-pk")


def server_of(replica: Replica) -> Server | None:
    """The replica's newest server that is not over."""
    return current_servers().filter(replica=replica).first()


def is_last_of_stable(replica: Replica) -> bool:
    """Whether a route names its release as stable and no other replica's server answers for that release there."""
    release, environment = replica.release_id, replica.environment_id
    if not Route.objects.filter(environment=environment, stable=release).exists():
        return False
    others = current_servers().exclude(replica=replica)
    return not others.filter(
        replica__release=release,
        replica__environment=environment,
        replica__state=ReplicaState.READY,
        is_serving=True,
    ).exists()


def with_listing(rows: QuerySet[Node]) -> QuerySet[Node]:
    """The nodes with `listed_in`, the key of the environment that lists the server; None for a machine."""
    return rows.annotate(listed_in=F("listing__environment"))


def open_to(environment: Environment, among: Iterable[Node]) -> list[Node]:
    """Those of the nodes (`with_listing`) that run releases of the environment: by its platform the servers that it lists, or machines."""
    listed_in = environment.pk if environment.platform == PlatformKind.STATIC else None
    return [node for node in among if getattr(node, "listed_in", None) == listed_in]


def nodes() -> QuerySet[Node]:
    """By name. Servers that were removed are left out, and so is another machine that was silent for a day and is to run nothing: its
    agent's next report brings it back."""
    wanted = Replica.objects.filter(node=OuterRef("pk"), state__in=sorted(LIVE), is_wanted=True)
    reported = Q(seen_at__gte=timezone.now() - FORGOTTEN_AFTER)
    known = Q(name=settings.NODE_NAME) | Q(listing__isnull=False) | reported | Exists(wanted)
    return Node.objects.filter(known, removed_at=None).order_by("name")


def among(ids: Iterable[object], kind: str = "bigint") -> RawSQL:
    """For `…__in=`: however many ids there are, one parameter. A list of a thousand takes longer to send than to answer."""
    return among_text(array_text(ids), kind)


def array_text(ids: Iterable[object]) -> str:
    """The ids as PostgreSQL writes an array."""
    return f"{{{','.join(map(str, ids))}}}"


def among_text(array: str, kind: str = "bigint") -> RawSQL:
    """`among` for ids that are written as an array already (`array_text`)."""
    return RawSQL(f"SELECT unnest(%s::{kind}[])", [array])  # noqa: S611  # kind is a constant


def server_before(replica: Replica, until: datetime) -> Server | None:
    """The newest server that the replica had begun by the instant, also one that ended."""
    return Server.objects.filter(replica=replica, started_at__lte=until).order_by("-pk").first()


def log_of(release: Release, environment: Environment, until: datetime | None) -> ServerLog | None:
    """The log of the newest server that the release had there before the instant; of all times where there is none."""
    rows = ServerLog.objects.filter(server__replica__release=release, server__replica__environment=environment)
    rows = rows if until is None else rows.filter(server__started_at__lte=until)
    return rows.select_related("server").order_by("-server__pk").first()


def replicas_of(release: Release) -> QuerySet[Replica]:
    """Where the release runs and ran, the newest first."""
    rows = Replica.objects.filter(release=release).select_related("environment", "node")
    return rows.order_by("-pk")
