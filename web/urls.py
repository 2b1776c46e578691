"""Every page and live fragment. Forms post to an address of their own and come back to the page."""

from __future__ import annotations

from django.urls import path
from django.views.decorators.http import require_GET

from web.pages import diffs, events, gates, models, overview, releases, rollouts, session, starting, webhooks
from web.pages.forms import posted

#: The pages of forms, with what their addresses take from the form's.
_RELEASE, _STARTING = ("release", "slug", "number"), ("release_rollout", "slug", "number")
_ROLLOUT, _WEBHOOK = ("rollout", "pk"), ("webhook", "pk")

urlpatterns = [
    path("", require_GET(overview.overview), name="overview"),
    path("_live/", require_GET(overview.overview_live), name="overview_live"),
    path("sign-in/", session.sign_in, name="sign_in"),
    path("sign-out/", session.sign_out, name="sign_out"),
    path("password/", session.password, name="password"),
    path("models/", require_GET(models.models), name="models"),
    path("models/<slug:slug>/", require_GET(models.model), name="model"),
    path("models/<slug:slug>/_live/", require_GET(models.model_live), name="model_live"),
    path("models/<slug:slug>/roll-back/", posted(models.roll_back, "model", "slug"), name="model_roll_back"),
    path("models/<slug:slug>/r/<int:number>/", require_GET(releases.release), name="release"),
    path("models/<slug:slug>/r/<int:number>/diff/", require_GET(diffs.release_diff), name="release_diff"),
    path(
        "models/<slug:slug>/r/<int:number>/gates/",
        posted(releases.run_gates, *_RELEASE),
        name="release_gates",
    ),
    path(
        "models/<slug:slug>/r/<int:number>/waive/",
        posted(releases.waive, *_RELEASE),
        name="release_waive",
    ),
    path("models/<slug:slug>/r/<int:number>/rollout/", require_GET(starting.starting), name="release_rollout"),
    path(
        "models/<slug:slug>/r/<int:number>/preview/",
        posted(starting.preview, *_STARTING),
        name="release_preview",
    ),
    path(
        "models/<slug:slug>/r/<int:number>/start/",
        posted(starting.start, *_STARTING),
        name="release_start",
    ),
    path("gate-runs/<int:pk>/", require_GET(gates.gate_run), name="gate_run"),
    path("gate-runs/<int:pk>/_live/", require_GET(gates.gates_live), name="gates_live"),
    path("rollouts/", require_GET(rollouts.rollouts), name="rollouts"),
    path("rollouts/<int:pk>/", require_GET(rollouts.rollout), name="rollout"),
    path("rollouts/<int:pk>/_live/", require_GET(rollouts.rollout_live), name="rollout_live"),
    path("rollouts/<int:pk>/replay/", require_GET(rollouts.replay), name="rollout_replay"),
    path("rollouts/<int:pk>/supersede/", posted(rollouts.supersede, *_ROLLOUT), name="rollout_supersede"),
    path("rollouts/<int:pk>/<slug:verb>/", posted(rollouts.act_on, *_ROLLOUT), name="rollout_act"),
    path("events/", require_GET(events.events), name="events"),
    path("webhooks/", require_GET(webhooks.webhooks), name="webhooks"),
    path("webhooks/new/", posted(webhooks.create, "webhooks"), name="webhook_create"),
    path("webhooks/<int:pk>/", require_GET(webhooks.webhook), name="webhook"),
    path("webhooks/<int:pk>/test/", posted(webhooks.test, *_WEBHOOK), name="webhook_test"),
    path("webhooks/<int:pk>/change/", posted(webhooks.change, *_WEBHOOK), name="webhook_change"),
    path("webhooks/<int:pk>/rotate/", posted(webhooks.rotate, *_WEBHOOK), name="webhook_rotate"),
    path("webhooks/<int:pk>/delete/", posted(webhooks.delete, *_WEBHOOK), name="webhook_delete"),
    path("webhooks/<int:pk>/replay/", posted(webhooks.replay, *_WEBHOOK), name="webhook_replay"),
    path(
        "webhooks/<int:pk>/replay/<uuid:delivery>/",
        posted(webhooks.replay_one, *_WEBHOOK),
        name="webhook_replay_one",
    ),
]
