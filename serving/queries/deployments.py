"""Named reads of environments, nodes, deployments and servers."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Prefetch, QuerySet
from django.db.models.expressions import RawSQL

from ledger.core.errors import NotFound
from registry.models import Release, ServedModel
from serving.core.lifecycle import LIVE, DeploymentState
from serving.models import Deployment, Environment, Node, Route, RouteAck, Server


def get_environment(slug: str, models: QuerySet[ServedModel] | None = None) -> Environment:
    """With its gateways and routes, those of `models` or all. Raises NotFound."""
    found = environments(models).filter(slug=slug).first()
    if found is None:
        known = ", ".join(Environment.objects.order_by("slug").values_list("slug", flat=True))
        raise NotFound(
            "no_such_environment", f"There is no environment {slug}; there are {known or 'none yet'}.", environment=slug
        )
    return found


def environments(models: QuerySet[ServedModel] | None = None) -> QuerySet[Environment]:
    acks = Prefetch("acks", RouteAck.objects.select_related("gateway"))
    routes = (
        Route.objects.select_related("model", "stable__model", "candidate__model")
        .prefetch_related(acks)
        .order_by("model__slug")
    )
    if models is not None:
        routes = routes.filter(model__in=models)
    return Environment.objects.prefetch_related("gateways", Prefetch("routes", routes)).order_by("slug")


def deployment_of(release: Release, environment: Environment) -> Deployment | None:
    """The deployment that is not gone yet, in any state."""
    return live_deployments().filter(release=release, environment=environment).order_by("-is_wanted", "-pk").first()


def live_deployments() -> QuerySet[Deployment]:
    return Deployment.objects.filter(state__in=sorted(LIVE)).select_related(
        "release__model__team", "environment", "node"
    )


def ready_server(release: Release, environment: Environment) -> Server | None:
    """The newest server of a ready, wanted deployment that answered a real inference and is not known to be broken."""
    return (
        current_servers()
        .filter(
            deployment__release=release,
            deployment__environment=environment,
            deployment__state=DeploymentState.READY,
            deployment__is_wanted=True,
            is_serving=True,
        )
        .order_by("-pk")
        .first()
    )


def current_servers() -> QuerySet[Server]:
    """Servers whose process is not known to be over."""
    return (
        Server.objects.filter(ended_at=None)
        .select_related("deployment__release__model__team", "deployment__environment", "deployment__node")
        .order_by("-pk")
    )


def server_of(deployment: Deployment) -> Server | None:
    """The deployment's newest server that is not over."""
    return current_servers().filter(deployment=deployment).first()


def is_last_of_stable(deployment: Deployment) -> bool:
    """Whether a route names its release as stable and no other deployment's server answers for that release there."""
    release, environment = deployment.release_id, deployment.environment_id
    if not Route.objects.filter(environment=environment, stable=release).exists():
        return False
    others = current_servers().exclude(deployment=deployment)
    return not others.filter(
        deployment__release=release,
        deployment__environment=environment,
        deployment__state=DeploymentState.READY,
        is_serving=True,
    ).exists()


def nodes() -> QuerySet[Node]:
    return Node.objects.order_by("name")


def among(ids: Iterable[object], kind: str = "bigint") -> RawSQL:
    """For `…__in=`: however many ids there are, one parameter. A list of a thousand takes longer to send than to answer."""
    return RawSQL(f"SELECT unnest(%s::{kind}[])", [f"{{{','.join(map(str, ids))}}}"])  # noqa: S611  # kind is a constant
