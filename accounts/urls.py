from django.urls import path

from accounts.api import people

urlpatterns = [
    path("tokens", people.TokensView.as_view()),
    path("me", people.MeView.as_view()),
    path("teams", people.TeamsView.as_view()),
    path("teams/<slug:slug>/members", people.TeamMembersView.as_view()),
    path("users", people.UsersView.as_view()),
    path("users/<str:username>/tokens", people.UserTokensView.as_view()),
]
