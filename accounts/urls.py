from django.urls import path

from accounts.api import issuers, people, sessions, token_exchange, tokens, users

urlpatterns = [
    path("tokens", people.TokensView.as_view()),
    path("me", people.MeView.as_view()),
    path("teams", people.TeamsView.as_view()),
    path("teams/<str:slug>/members", people.TeamMembersView.as_view()),
    path("users", users.UsersView.as_view()),
    path("users/<str:username>", users.UserView.as_view()),
    path("users/<str:username>/deactivate", users.DeactivateUserView.as_view()),
    path("users/<str:username>/reactivate", users.ReactivateUserView.as_view()),
    path("users/<str:username>/password", users.PasswordView.as_view()),
    path("users/<str:username>/tokens", tokens.UserTokensView.as_view()),
    path("users/<str:username>/tokens/<int:token_id>", tokens.TokenView.as_view()),
    path("users/<str:username>/tokens/<int:token_id>/rotate", tokens.RotateTokenView.as_view()),
    path("users/<str:username>/sessions", sessions.UserSessionsView.as_view()),
    path("users/<str:username>/sessions/<int:session_id>", sessions.SessionView.as_view()),
    # issuers
    path("tokens:exchange", token_exchange.TokenExchangeView.as_view()),
    path("tokens:try", token_exchange.TokenTryView.as_view()),
    path("issuers", issuers.IssuersView.as_view()),
    path("issuers/<int:issuer_id>", issuers.IssuerView.as_view()),
    path("issuers/<int:issuer_id>/check", issuers.IssuerCheckView.as_view()),
    path("issuers/<int:issuer_id>/token-rules", issuers.TokenRulesView.as_view()),
    path("issuers/<int:issuer_id>/role-rules", issuers.RoleRulesView.as_view()),
    path("issuers/<int:issuer_id>/identities", issuers.IdentitiesView.as_view()),
    path("token-rules/<int:rule_id>", issuers.TokenRuleView.as_view()),
    path("role-rules/<int:rule_id>", issuers.RoleRuleView.as_view()),
    path("identities/<int:identity_id>", issuers.IdentityView.as_view()),
]
