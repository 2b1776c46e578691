from django.urls import path

from rollouts.api import alarms, approvals, environments, judgements, serving_history, tenants
from rollouts.api import rollouts as api

urlpatterns = [
    path("alarms", alarms.AlarmsView.as_view()),
    path("alarms/<int:alarm_id>", alarms.AlarmView.as_view()),
    *(path(f"alarms/<int:alarm_id>/{verb}", view.as_view()) for verb, view in alarms.VERB_VIEWS.items()),
    path("approvals", approvals.ApprovalsView.as_view()),
    path("judgements", judgements.JudgementsView.as_view()),
    path("judgements/flagger", judgements.FlaggerView.as_view()),
    path("rollouts", api.RolloutsView.as_view()),
    path("rollouts/preview", api.PreviewView.as_view()),
    path("rollouts/<int:rollout_id>", api.RolloutView.as_view()),
    path("rollouts/<int:rollout_id>/wait", api.RolloutWaitView.as_view()),
    path("rollouts/<int:rollout_id>/observations", api.ObservationsView.as_view()),
    path("rollouts/<int:rollout_id>/decisions", api.DecisionsView.as_view()),
    path("rollouts/<int:rollout_id>/replay", api.ReplayView.as_view()),
    path("rollouts/<int:rollout_id>/supersede", api.SupersedeView.as_view()),
    *(path(f"rollouts/<int:rollout_id>/{verb}", view.as_view()) for verb, view in api.VERB_VIEWS.items()),
    path("models/<slug:slug>/rollback", api.RollbackView.as_view()),
    path("environments/<slug:slug>/remove", environments.EnvironmentRemoveView.as_view()),
    path("environments/<slug:slug>/restore", environments.EnvironmentRestoreView.as_view()),
    path("environments/<slug:slug>/models/<slug:model>/objectives", alarms.ObjectivesView.as_view()),
    path("environments/<slug:slug>/models/<slug:model>/tenants", tenants.TenantsView.as_view()),
    path("environments/<slug:slug>/models/<slug:model>/served", serving_history.ServedView.as_view()),
    path("environments/<slug:slug>/models/<slug:model>/served/history", serving_history.ServedHistoryView.as_view()),
]
