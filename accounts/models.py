"""Users, teams, memberships and hashed tokens."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone
from django.utils.crypto import salted_hmac

from accounts.core.access import CROSS_TEAM, EVERY_TEAM, Role
from accounts.core.claims import USUAL_LIFE_S, IssuerKind, rule_problems
from accounts.core.scope import Scope


class User(AbstractUser):
    """A person or a robot. `is_superuser` is the administrator.

    Sessions belong to the password and to `credentials_version`: a change of either ends them all.
    """

    credentials_version = models.PositiveIntegerField(default=1)

    def _get_session_auth_hash(
        self, secret: Any = None
    ) -> str:  # what Django compares at each request, also by fallback keys
        stated = f"{self.password}\0{self.credentials_version}"
        return salted_hmac("accounts.User.session", stated, secret=secret, algorithm="sha256").hexdigest()


class Team(models.Model):
    slug = models.SlugField(unique=True)
    title = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.slug


class Membership(models.Model):
    """A role that a user holds in a team; `team` None: in every team, those to come among them."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships", null=True, blank=True)
    role = models.CharField(max_length=20, choices=[(r.value, r.value) for r in Role])

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "team", "role"], name="membership_once", nulls_distinct=False),
            models.CheckConstraint(condition=models.Q(role__in=[r.value for r in Role]), name="membership_role_known"),
            models.CheckConstraint(
                condition=models.Q(team__isnull=False) | models.Q(role__in=sorted(r.value for r in CROSS_TEAM)),
                name="membership_of_every_team",
            ),
        ]

    @property
    def team_slug(self) -> str:
        """The team's name, or `*` for every team."""
        return EVERY_TEAM if self.team is None else self.team.slug


class Token(models.Model):
    """A bearer token for the command line or CI. Only the sha256 of its secret is kept.

    `scope_verbs` and `scope_models` are lists; None is all. For a while after a rotation the secret before is good as well.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=120)
    sha256 = models.CharField(max_length=64, unique=True)  # looked up on every API call
    prefix = models.CharField(max_length=12)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    scope_verbs = models.JSONField(null=True, blank=True)
    scope_models = models.JSONField(null=True, blank=True)
    rotated_at = models.DateTimeField(null=True, blank=True)
    previous_sha256 = models.CharField(max_length=64, unique=True, null=True, blank=True)  # as sha256
    previous_until = models.DateTimeField(null=True, blank=True)
    previous_used_at = models.DateTimeField(null=True, blank=True)

    #: SHA-256 of the secret in the request: the present secret, or the previous one during its overlap.
    secret_sha256: str = ""

    @property
    def scope(self) -> Scope:
        """Its scope."""
        verbs, patterns = self.scope_verbs, self.scope_models
        return Scope(
            None if verbs is None else frozenset(verbs),
            None if patterns is None else frozenset(patterns),
        )


class UserSession(models.Model):
    """A living session of a browser, so that a person sees where they are signed in. Only the sha256 of its key is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="sessions")
    key_sha256 = models.CharField(max_length=64, unique=True)  # by which a browser's own row is found
    begun_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()
    address = models.CharField(max_length=64, blank=True)
    browser = models.CharField(max_length=60)
    # issuer of the sign-in; None: by password
    issuer = models.ForeignKey("Issuer", on_delete=models.CASCADE, null=True, blank=True, related_name="+")


class SignInTally(models.Model):
    """Wrong passwords of late: of an account, a network, or an account from a network (`accounts.core.throttle`)."""

    key = models.CharField(primary_key=True, max_length=64)
    failures = models.PositiveIntegerField(default=0)
    failed_at = models.DateTimeField(null=True)
    known_at = models.DateTimeField(null=True)  # of a pair: its last success
    forget_at = models.DateTimeField(default=timezone.now, db_index=True)  # the end of its effect: the oldest go first


class Issuer(models.Model):
    """An identity provider with OpenID Connect, for people (sign-in) and for programs (token rules)."""

    title = models.CharField(max_length=80)  # on the button of the sign-in page
    url = models.CharField(max_length=300, unique=True)  # `iss`, to the letter
    kind = models.CharField(max_length=10, choices=[(k.value, k.value) for k in IssuerKind])
    is_active = models.BooleanField(default=True)
    is_for_people = models.BooleanField(default=False)  # the sign-in page offers it
    client_id = models.CharField(max_length=300, blank=True)
    client_secret = models.TextField(blank=True)  # encrypted: see ledger.adapters.secret_encryption
    creates_accounts = models.BooleanField(
        default=False
    )  # the first sign-in of a person creates an account, without roles
    session_hours = models.PositiveIntegerField(default=12)  # of a sign-in by it
    audience = models.CharField(max_length=300, blank=True)  # of programs' identity tokens; empty: none are taken
    version = models.PositiveIntegerField(default=1)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=[k.value for k in IssuerKind]), name="issuer_kind_known"
            ),
        ]

    def __str__(self) -> str:
        return self.title


class TokenRule(models.Model):
    """Which identity tokens of an issuer are exchanged for a token, of which robot, with which scope and life."""

    issuer = models.ForeignKey(Issuer, on_delete=models.CASCADE, related_name="token_rules")
    title = models.CharField(max_length=100)
    claims = models.JSONField()  # {name: value}, all of which hold: see accounts.core.claims
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")  # the robot that the token acts as
    scope_verbs = models.JSONField()  # never all: see accounts.actions.token_rules
    scope_models = models.JSONField(null=True, blank=True)  # as a token's
    life_s = models.PositiveIntegerField(default=USUAL_LIFE_S)
    is_active = models.BooleanField(default=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]

    @property
    def problems(self) -> list[dict[str, str]]:
        """Why it could not be saved today, as {field, message, fix}: one of before, when less was asked. It gives no token."""
        return rule_problems(self.claims, IssuerKind(self.issuer.kind))


class ExchangedToken(models.Model):
    """A token that an identity token was exchanged for, so that turning its rule off ends it."""

    token = models.OneToOneField(Token, on_delete=models.CASCADE, primary_key=True, related_name="exchanged")
    rule = models.ForeignKey(TokenRule, on_delete=models.CASCADE, related_name="tokens")


class UsedIdToken(models.Model):
    """An identity token that was exchanged: no second time while it lives."""

    issuer = models.ForeignKey(Issuer, on_delete=models.CASCADE, related_name="+", db_index=False)
    sha256 = models.CharField(max_length=64)  # of its jti, or else of all signed bytes
    ends_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "sha256"], name="used_id_token_once")]
        indexes = [models.Index(fields=["ends_at"], name="used_id_token_to_forget")]


class FollowedRun(models.Model):
    """A gate run or rollout that a token asked for: it may read this run after its own end (`accounts.actions.following`)."""

    token = models.ForeignKey(Token, on_delete=models.CASCADE, related_name="followed", db_index=False)
    subject_type = models.CharField(max_length=20)  # gate_run or rollout, as events call them
    subject_id = models.BigIntegerField()
    until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["token", "subject_type", "subject_id"], name="followed_run_once")
        ]
        indexes = [models.Index(fields=["until"], name="followed_run_to_forget")]


class RoleRule(models.Model):
    """Which people of an issuer hold a role, by their claims, from sign-in to sign-in; `team` None: in every team."""

    issuer = models.ForeignKey(Issuer, on_delete=models.CASCADE, related_name="role_rules")
    claims = models.JSONField()
    team = models.ForeignKey(Team, on_delete=models.CASCADE, null=True, blank=True, related_name="+")
    role = models.CharField(max_length=20, choices=[(r.value, r.value) for r in Role])
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.CheckConstraint(condition=models.Q(role__in=[r.value for r in Role]), name="role_rule_role_known")
        ]


class Identity(models.Model):
    """A user as an issuer knows them: by `sub`, which it never gives to another; never by an e-mail address."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="identities")
    issuer = models.ForeignKey(Issuer, on_delete=models.CASCADE, related_name="identities", db_index=False)
    sub = models.CharField(max_length=255)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    signed_in_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["issuer", "sub"], name="identity_once")]


class RuleMembership(models.Model):
    """That an issuer's role rules give a role, as of the person's last sign-in by it. The role goes with the last of its rows; one
    that was given by hand has none, and stays."""

    membership = models.ForeignKey(Membership, on_delete=models.CASCADE, related_name="by_rules", db_index=False)
    # PROTECT: without its row the role would read as given by hand.
    issuer = models.ForeignKey(Issuer, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["membership", "issuer"], name="rule_membership_once")]
