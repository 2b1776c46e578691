from django.urls import path

from accounts import api

urlpatterns = [
    path("tokens", api.TokensView.as_view()),
    path("me", api.MeView.as_view()),
    path("teams", api.TeamsView.as_view()),
    path("teams/<slug:slug>/members", api.TeamMembersView.as_view()),
    path("users", api.UsersView.as_view()),
    path("users/<str:username>/tokens", api.UserTokensView.as_view()),
]
