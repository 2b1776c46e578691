from django.urls import path

from accounts.api import people, users

urlpatterns = [
    path("tokens", people.TokensView.as_view()),
    path("me", people.MeView.as_view()),
    path("teams", people.TeamsView.as_view()),
    path("teams/<slug:slug>/members", people.TeamMembersView.as_view()),
    path("users", users.UsersView.as_view()),
    path("users/<str:username>", users.UserView.as_view()),
    path("users/<str:username>/deactivate", users.DeactivateUserView.as_view()),
    path("users/<str:username>/reactivate", users.ReactivateUserView.as_view()),
    path("users/<str:username>/password", users.PasswordView.as_view()),
    path("users/<str:username>/tokens", users.UserTokensView.as_view()),
]
