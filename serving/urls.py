"""Addresses of environments and servers under the API's."""

from __future__ import annotations

from django.urls import path

from serving.api import capabilities, gateways, node_fit, nodes, release_check, replicas, sleep, static_servers
from serving.api import environments as api
from serving.api.series import SeriesView

urlpatterns = [
    path("models/<slug:slug>/releases:check", release_check.ReleaseCheckView.as_view(), name="release-check"),
    path("models/<slug:slug>/releases/<str:name>/fit", node_fit.FitView.as_view(), name="release-fit"),
    path("models/<slug:slug>/releases/<str:name>/replicas", replicas.ReplicasView.as_view(), name="release-replicas"),
    path(
        "models/<slug:slug>/releases/<str:name>/replicas/replace",
        replicas.ReplaceView.as_view(),
        name="release-replace-replica",
    ),
    path("models/<slug:slug>/series", SeriesView.as_view(), name="model-series"),
    path("models/<slug:slug>/sleep", sleep.SleepsView.as_view(), name="model-sleep"),
    path("models/<slug:slug>/sleep/begin", sleep.SleepBeginView.as_view(), name="model-sleep-begin"),
    path("models/<slug:slug>/sleep/end", sleep.SleepEndView.as_view(), name="model-sleep-end"),
    path("capabilities", capabilities.CapabilitiesView.as_view(), name="capabilities"),
    path("environments", api.EnvironmentsView.as_view(), name="environments"),
    path("environments/<slug:slug>", api.EnvironmentView.as_view(), name="environment"),
    path("environments/<slug:slug>/servers", static_servers.ListedServersView.as_view(), name="environment-servers"),
    path(
        "environments/<slug:slug>/servers/<slug:name>/remove",
        static_servers.ServerRemoveView.as_view(),
        name="environment-server-remove",
    ),
    path("gateways", gateways.GatewaysView.as_view(), name="gateways"),
    path("gateways/<str:name>/drain", gateways.GatewayDrainView.as_view(), name="gateway-drain"),
    path("gateways/<str:name>/remove", gateways.GatewayRemoveView.as_view(), name="gateway-remove"),
    path("gateways/<str:name>/resume", gateways.GatewayResumeView.as_view(), name="gateway-resume"),
    path("nodes", nodes.NodesView.as_view(), name="nodes"),
    path("servers", api.ServersView.as_view(), name="servers"),
    path("runtimes", api.RuntimesView.as_view(), name="runtimes"),
]
