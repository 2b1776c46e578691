"""Users, teams, memberships and hashed tokens."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils.crypto import salted_hmac

from accounts.core.access import Role


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
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=20, choices=[(r.value, r.value) for r in Role])

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "team", "role"], name="membership_once"),
            models.CheckConstraint(condition=models.Q(role__in=[r.value for r in Role]), name="membership_role_known"),
        ]


class Token(models.Model):
    """A bearer token for the command line or CI. Only its sha256 is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=120)
    sha256 = models.CharField(max_length=64, unique=True)  # looked up on every API call
    prefix = models.CharField(max_length=12)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)


class SignInTally(models.Model):
    """Wrong passwords of late: of an account, a network, or an account from a network (`accounts.core.throttle`)."""

    key = models.CharField(primary_key=True, max_length=64)
    failures = models.PositiveIntegerField(default=0)
    failed_at = models.DateTimeField(null=True)
    known_at = models.DateTimeField(null=True)  # of a pair: its last success

    class Meta:
        indexes = [models.Index(fields=["failed_at"], name="sign_in_tally_to_forget")]
