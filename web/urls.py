"""Every page and live fragment. Forms post to an address of their own and come back to the page."""

from __future__ import annotations

from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from web.pages import diffs, events, gates, models, overview, releases, rollouts, session, starting, webhooks

urlpatterns = [
    path("", require_GET(overview.overview), name="overview"),
    path("_live/", require_GET(overview.overview_live), name="overview_live"),
    path("sign-in/", session.sign_in, name="sign_in"),
    path("sign-out/", session.sign_out, name="sign_out"),
    path("models/", require_GET(models.models), name="models"),
    path("models/<slug:slug>/", require_GET(models.model), name="model"),
    path("models/<slug:slug>/roll-back/", require_POST(models.roll_back), name="model_roll_back"),
    path("models/<slug:slug>/r/<int:number>/", require_GET(releases.release), name="release"),
    path("models/<slug:slug>/r/<int:number>/diff/", require_GET(diffs.release_diff), name="release_diff"),
    path("models/<slug:slug>/r/<int:number>/gates/", require_POST(releases.run_gates), name="release_gates"),
    path("models/<slug:slug>/r/<int:number>/waive/", require_POST(releases.waive), name="release_waive"),
    path("models/<slug:slug>/r/<int:number>/rollout/", require_GET(starting.starting), name="release_rollout"),
    path("models/<slug:slug>/r/<int:number>/preview/", require_POST(starting.preview), name="release_preview"),
    path("models/<slug:slug>/r/<int:number>/start/", require_POST(starting.start), name="release_start"),
    path("gate-runs/<int:pk>/", require_GET(gates.gate_run), name="gate_run"),
    path("gate-runs/<int:pk>/_live/", require_GET(gates.gates_live), name="gates_live"),
    path("rollouts/", require_GET(rollouts.rollouts), name="rollouts"),
    path("rollouts/<int:pk>/", require_GET(rollouts.rollout), name="rollout"),
    path("rollouts/<int:pk>/_live/", require_GET(rollouts.rollout_live), name="rollout_live"),
    path("rollouts/<int:pk>/replay/", require_GET(rollouts.replay), name="rollout_replay"),
    path("rollouts/<int:pk>/supersede/", require_POST(rollouts.supersede), name="rollout_supersede"),
    path("rollouts/<int:pk>/<slug:verb>/", require_POST(rollouts.act_on), name="rollout_act"),
    path("events/", require_GET(events.events), name="events"),
    path("webhooks/", require_GET(webhooks.webhooks), name="webhooks"),
    path("webhooks/new/", require_POST(webhooks.create), name="webhook_create"),
    path("webhooks/<int:pk>/", require_GET(webhooks.webhook), name="webhook"),
    path("webhooks/<int:pk>/test/", require_POST(webhooks.test), name="webhook_test"),
    path("webhooks/<int:pk>/change/", require_POST(webhooks.change), name="webhook_change"),
    path("webhooks/<int:pk>/rotate/", require_POST(webhooks.rotate), name="webhook_rotate"),
    path("webhooks/<int:pk>/delete/", require_POST(webhooks.delete), name="webhook_delete"),
    path("webhooks/<int:pk>/replay/", require_POST(webhooks.replay), name="webhook_replay"),
    path("webhooks/<int:pk>/replay/<uuid:delivery>/", require_POST(webhooks.replay_one), name="webhook_replay_one"),
]
