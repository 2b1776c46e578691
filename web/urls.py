"""Every page and live fragment. Forms post to an address of their own and come back to the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_GET, require_http_methods
from django.views.generic import RedirectView

from web import looks
from web.pages import (
    account,
    alarms,
    aliases,
    approvals,
    audit,
    audit_export,
    diagnosis,
    diffs,
    drafts,
    environments,
    errors,
    fleet,
    gates,
    gateways,
    golden_sets,
    history,
    incidents,
    issuer_sign_in,
    issuers,
    model_list,
    model_tabs,
    models,
    new_model,
    overview,
    own_status,
    ownership,
    people,
    policies,
    post_mortems,
    production,
    release_files,
    release_tabs,
    releases,
    replicas,
    reviews,
    rollout_list,
    rollouts,
    search,
    session,
    sleep,
    starting,
    token_forms,
    upload,
    webhooks,
)
from web.pages.forms import posted


def _forms(page: str, at: str, *forms: tuple[str, Callable[..., HttpResponse], str]) -> Iterator[URLPattern]:
    """The addresses of the forms of one page, each (its own part, view, name) below `at`, from whose arguments the view builds the page."""
    kept = re.findall(r"<\w+:(\w+)>", at)
    for own, view, name in forms:
        yield path(f"{at}{own}/", posted(view, page, *kept), name=name)


urlpatterns = [
    path("", require_GET(overview.overview), name="overview"),
    path("_live/", require_GET(overview.overview_live), name="overview_live"),
    # the shell
    path("looks/", looks.choose, name="looks"),
    path("_main_links/", require_GET(looks.main_links), name="main_links"),
    path("errors/", require_GET(errors.errors), name="errors"),
    path("errors/<slug:code>/", require_GET(errors.error), name="error"),
    path("search/", require_GET(search.search_page), name="search"),
    path("_search/", require_GET(search.search_fragment), name="search_fragment"),
    path("sign-in/", session.sign_in, name="sign_in"),
    path("sign-out/", session.sign_out, name="sign_out"),
    path("password/", session.password, name="password"),
    path("models/", require_GET(model_list.models), name="models"),
    # uploads: a new model, a release on its way in
    path("models/new/", require_GET(new_model.new_model), name="new_model"),
    path("models/new/create/", posted(new_model.create, "new_model"), name="new_model_create"),
    path("models/<slug:slug>/upload/", require_GET(upload.upload), name="model_upload"),
    path("drafts/", require_GET(drafts.drafts), name="drafts"),
    path("drafts/<uuid:pk>/discard/", posted(drafts.discard, "drafts"), name="draft_discard"),
    path("models/<slug:slug>/", require_GET(models.model), name="model"),
    path("models/<slug:slug>/_live/", require_GET(models.model_live), name="model_live"),
    path("models/<slug:slug>/_releases/", require_GET(models.model_releases), name="model_releases"),
    # the model's tabs
    path("models/<slug:slug>/compare/", require_GET(models.compare), name="model_compare"),
    path("models/<slug:slug>/serving/", require_GET(model_tabs.serving), name="model_serving"),
    path("models/<slug:slug>/production/", require_GET(production.production), name="model_production"),
    path("models/<slug:slug>/diagnosis/", require_GET(diagnosis.diagnosis), name="model_diagnosis"),
    path("models/<slug:slug>/sleep/", require_GET(sleep.sleep), name="model_sleep"),
    *_forms(
        "model_sleep",
        "models/<slug:slug>/sleep/",
        ("rule", sleep.rule, "model_sleep_rule"),
        ("begin", sleep.begin, "model_sleep_begin"),
        ("end", sleep.end, "model_sleep_end"),
    ),
    path("models/<slug:slug>/golden-sets/", require_GET(golden_sets.golden_sets), name="model_golden_sets"),
    path("models/<slug:slug>/golden-sets/new/", require_GET(golden_sets.new), name="model_golden_set_new"),
    path(
        "models/<slug:slug>/golden-sets/add/",
        posted(golden_sets.add, "model_golden_set_new", "slug"),
        name="model_golden_set_add",
    ),
    *_forms(
        "model_golden_sets",
        "models/<slug:slug>/golden-sets/",
        ("use", golden_sets.use, "model_golden_set_use"),
    ),
    path("models/<slug:slug>/aliases/", require_GET(aliases.aliases), name="model_aliases"),
    path("models/<slug:slug>/aliases/move/", posted(aliases.move, "model_aliases", "slug"), name="model_alias_move"),
    path(
        "models/<slug:slug>/policies/",
        require_http_methods(["GET", "HEAD", "POST"])(policies.policies),
        name="model_policies",
    ),
    path("models/<slug:slug>/activity/", require_GET(model_tabs.activity), name="model_activity"),
    path("models/<slug:slug>/roll-back/", posted(models.roll_back, "model", "slug"), name="model_roll_back"),
    # a release: its tabs, comments, comparing
    path("models/<slug:slug>/r/<int:number>/", require_GET(releases.release), name="release"),
    path("models/<slug:slug>/r/<int:number>/files/", require_GET(release_files.files), name="release_files"),
    path("models/<slug:slug>/r/<int:number>/files/<path:path>", require_GET(release_files.file), name="release_file"),
    path("models/<slug:slug>/r/<int:number>/gates/", release_tabs.gates, name="release_gates"),
    path(
        "models/<slug:slug>/r/<int:number>/gates/_live/",
        require_GET(release_tabs.gates_live),
        name="release_gates_live",
    ),
    path(
        "models/<slug:slug>/r/<int:number>/deployments/",
        require_GET(release_tabs.replicas),
        name="release_replicas",
    ),
    *_forms(
        "release_replicas",
        "models/<slug:slug>/r/<int:number>/deployments/",
        ("scale", replicas.scale, "release_scale"),
        ("replace", replicas.replace, "release_replace"),
    ),
    path(
        "models/<slug:slug>/r/<int:number>/provenance/",
        require_GET(release_tabs.provenance),
        name="release_provenance",
    ),
    *_forms(
        "release",
        "models/<slug:slug>/r/<int:number>/",
        ("waive", releases.waive, "release_waive"),
        ("comments", reviews.comment, "release_comments"),
        ("comments/<int:pk>/resolve", reviews.resolve, "release_comment_resolve"),
        ("note", releases.note, "release_note"),
        ("retire", releases.retire_release, "release_retire"),
        ("restore", releases.restore_release, "release_restore"),
    ),
    path("models/<slug:slug>/r/<int:number>/diff/", require_GET(diffs.release_diff), name="release_diff"),
    path("models/<slug:slug>/r/<int:number>/rollout/", require_GET(starting.starting), name="release_rollout"),
    *_forms(
        "release_rollout",
        "models/<slug:slug>/r/<int:number>/",
        ("preview", starting.preview, "release_preview"),
        ("start", starting.start, "release_start"),
    ),
    path("gate-runs/<int:pk>/", require_GET(gates.gate_run), name="gate_run"),
    path("gate-runs/<int:pk>/_live/", require_GET(gates.gates_live), name="gates_live"),
    path("gate-runs/<int:pk>/_run/", require_GET(gates.gate_run_live), name="gate_run_live"),
    path("gate-runs/<int:pk>/_evidence/", require_GET(gates.evidence_live), name="gate_run_evidence"),
    path("gate-runs/<int:pk>/cancel/", posted(gates.cancel, "gate_run", "pk"), name="gate_run_cancel"),
    path("rollouts/", require_GET(rollout_list.rollouts), name="rollouts"),
    path("rollouts/<int:pk>/", require_GET(rollouts.rollout), name="rollout"),
    path("rollouts/<int:pk>/_live/", require_GET(rollouts.rollout_live), name="rollout_live"),
    path("rollouts/<int:pk>/_plots/", require_GET(rollouts.rollout_plots), name="rollout_plots"),
    path("rollouts/<int:pk>/replay/", require_GET(rollouts.replay), name="rollout_replay"),
    path("rollouts/<int:pk>/post-mortem/", require_GET(post_mortems.post_mortem), name="post_mortem"),
    *_forms(
        "rollout",
        "rollouts/<int:pk>/",
        ("supersede", rollouts.supersede, "rollout_supersede"),
        ("<slug:verb>", rollouts.act_on, "rollout_act"),
    ),
    # approvals
    path("approvals/", require_GET(approvals.approvals), name="approvals"),
    path("approvals/_live/", require_GET(approvals.approvals_live), name="approvals_live"),
    path("approvals/waivers/<uuid:release>/", posted(approvals.waive, "approvals"), name="approval_waive"),
    path("approvals/<int:pk>/<slug:verb>/", posted(approvals.decide, "approvals"), name="approval_decide"),
    # alarms
    path("alarms/", require_GET(alarms.alarms), name="alarms"),
    path("alarms/_live/", require_GET(alarms.alarms_live), name="alarms_live"),
    path("alarms/<int:pk>/", require_GET(alarms.alarm), name="alarm"),
    path("alarms/<int:pk>/_live/", require_GET(alarms.alarm_live), name="alarm_live"),
    *_forms(
        "alarm",
        "alarms/<int:pk>/",
        ("acknowledge", alarms.acknowledge, "alarm_acknowledge"),
        ("mute", alarms.mute, "alarm_mute"),
        ("unmute", alarms.unmute, "alarm_unmute"),
        ("close", alarms.close, "alarm_close"),
    ),
    # incidents
    path("incidents/", require_GET(incidents.incidents), name="incidents"),
    path("incidents/_live/", require_GET(incidents.incidents_live), name="incidents_live"),
    path("incidents/open/", posted(incidents.open_one, "incidents"), name="incident_open"),
    path("incidents/<int:pk>/", require_GET(incidents.incident), name="incident"),
    path("incidents/<int:pk>/_live/", require_GET(incidents.incident_live), name="incident_live"),
    *_forms(
        "incident",
        "incidents/<int:pk>/",
        ("note", incidents.note, "incident_note"),
        ("close", incidents.close, "incident_close"),
    ),
    # fleet
    path("fleet/", require_GET(fleet.fleet), name="fleet"),
    path("fleet/_shown/", require_GET(fleet.fleet_shown), name="fleet_shown"),
    # history
    path("history/", require_GET(history.history), name="history"),
    # audit
    path("events/", require_GET(audit.moved)),
    path("audit/", require_GET(audit.audit), name="audit"),
    path("audit/verify/", require_GET(audit.verify), name="audit_verify"),
    path("audit/check/", posted(audit.check, "audit_verify"), name="audit_check"),
    path("audit/export.jsonl", require_GET(audit_export.export), {"form": "jsonl"}, name="audit_jsonl"),
    path("audit/export.csv", require_GET(audit_export.export), {"form": "csv"}, name="audit_csv"),
    path("audit/<int:seq>/", require_GET(audit.event), name="audit_event"),
    path("webhooks/", require_GET(webhooks.webhooks), name="webhooks"),
    path("webhooks/new/", posted(webhooks.create, "webhooks"), name="webhook_create"),
    path("webhooks/<int:pk>/", require_GET(webhooks.webhook), name="webhook"),
    *_forms(
        "webhook",
        "webhooks/<int:pk>/",
        ("test", webhooks.test, "webhook_test"),
        ("change", webhooks.change, "webhook_change"),
        ("rotate", webhooks.rotate, "webhook_rotate"),
        ("delete", webhooks.delete, "webhook_delete"),
        ("replay", webhooks.replay, "webhook_replay"),
        ("replay/<uuid:delivery>", webhooks.replay_one, "webhook_replay_one"),
    ),
    # ownership
    path(
        "models/<slug:slug>/ownership/",
        require_http_methods(["GET", "HEAD", "POST"])(ownership.ownership),
        name="model_ownership",
    ),
    # people
    path("account/", require_GET(account.account), name="account"),
    path("account/mails/", posted(account.choose, "account"), name="account_mails"),
    path("settings/people/", require_GET(people.people), name="people"),
    path("settings/new-person/", posted(people.create, "people"), name="person_create"),
    path("settings/people/<str:username>/", require_GET(people.person), name="person"),
    *_forms(
        "person",
        "settings/people/<str:username>/",
        ("password", people.new_password, "person_password"),
        ("tokens/new", token_forms.create_token, "token_create"),
        ("tokens/<int:pk>/rotate", token_forms.rotate_token, "token_rotate"),
        ("tokens/<int:pk>/revoke", token_forms.revoke_token, "token_revoke"),
        ("sessions/<int:pk>/end", people.end_session, "session_end"),
    ),
    *(
        path(
            f"settings/people/<str:username>/roles/{verb}/",
            posted(people.change_role, "person", "username"),
            {"verb": verb},
            name=f"role_{verb}",
        )
        for verb in ("give", "take")
    ),
    *(
        path(
            f"settings/people/<str:username>/{verb}/",
            posted(people.change_standing, "person", "username"),
            {"verb": verb},
            name=f"person_{verb}",
        )
        for verb in ("deactivate", "reactivate", "administer", "end-administration")
    ),
    path("settings/teams/", require_GET(people.teams), name="teams"),
    path("settings/new-team/", posted(people.create_team, "teams"), name="team_create"),
    path("settings/tokens/", require_GET(token_forms.tokens), name="tokens"),
    # issuers
    path("sign-in/with/<int:pk>/", require_GET(issuer_sign_in.leave), name="issuer_sign_in"),
    path("sign-in/with/<int:pk>/return/", require_GET(issuer_sign_in.come_back), name="issuer_return"),
    # settings
    path("settings/", require_GET(login_required(RedirectView.as_view(pattern_name="teams"))), name="settings"),
    path("status/", require_GET(own_status.status), name="status"),
    path("settings/environments/", require_GET(environments.environments), name="settings_environments"),
    path("settings/new-environment/", posted(environments.create, "settings_environments"), name="environment_create"),
    path("settings/environments/<slug:slug>/", require_GET(environments.environment), name="settings_environment"),
    *_forms(
        "settings_environment",
        "settings/environments/<slug:slug>/",
        ("change", environments.change, "environment_change"),
        ("remove", environments.remove, "environment_remove"),
        ("restore", environments.restore, "environment_restore"),
        ("gateways", gateways.register, "gateway_register"),
    ),
    path(
        "settings/gateways/<str:name>/<slug:verb>/",
        posted(gateways.act_on, "settings_environments"),
        name="gateway_act",
    ),
    path("settings/issuers/", require_GET(issuers.issuers), name="issuers"),
    path("settings/issuers/new/", posted(issuers.create, "issuers"), name="issuer_create"),
    path("settings/issuers/try/", issuers.try_token, name="token_try"),
    path("settings/issuers/<int:pk>/", require_GET(issuers.issuer), name="issuer"),
    *_forms(
        "issuer",
        "settings/issuers/<int:pk>/",
        ("check", issuers.check, "issuer_check"),
        ("change", issuers.change, "issuer_change"),
        ("off", issuers.turn_off, "issuer_off"),
        ("on", issuers.turn_on, "issuer_on"),
        ("rules/new", issuers.create_rule, "token_rule_create"),
        ("rules/<int:rule>/<slug:to>", issuers.turn_rule, "token_rule_turn"),
        ("roles/new", issuers.create_role_rule, "role_rule_create"),
        ("roles/<int:rule>/delete", issuers.delete_role_rule, "role_rule_delete"),
        ("people/new", issuers.prepare, "issuer_prepare"),
        ("people/<int:identity>/remove", issuers.remove, "identity_remove"),
    ),
]
