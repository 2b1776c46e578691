"""The tables of accounts. Replaces the first 7 migrations: a database that applied them all skips this one."""

import django.contrib.auth.models
import django.contrib.auth.validators
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

from ledger.migrations._together import Together


class Migration(migrations.Migration):
    replaces = [
        ("accounts", "0001_initial"),
        ("accounts", "0002_people_shut_out"),
        ("accounts", "0003_scopes_and_cross_team"),
        ("accounts", "0004_sessions"),
        ("accounts", "0005_issuers"),
        ("accounts", "0006_roles_of_several_issuers"),
        ("accounts", "0007_tallies_found_by_index"),
    ]

    initial = True

    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        Together(
            migrations.CreateModel(
                name="SignInTally",
                fields=[
                    ("key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                    ("failures", models.PositiveIntegerField(default=0)),
                    ("failed_at", models.DateTimeField(null=True)),
                    ("known_at", models.DateTimeField(null=True)),
                    ("forget_at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ],
            ),
            migrations.CreateModel(
                name="Team",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("slug", models.SlugField(unique=True)),
                    ("title", models.CharField(max_length=120)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                ],
            ),
            migrations.CreateModel(
                name="User",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("password", models.CharField(max_length=128, verbose_name="password")),
                    ("last_login", models.DateTimeField(blank=True, null=True, verbose_name="last login")),
                    (
                        "is_superuser",
                        models.BooleanField(
                            default=False,
                            help_text="Designates that this user has all permissions without explicitly assigning them.",
                            verbose_name="superuser status",
                        ),
                    ),
                    (
                        "username",
                        models.CharField(
                            error_messages={"unique": "A user with that username already exists."},
                            help_text="Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.",
                            max_length=150,
                            unique=True,
                            validators=[django.contrib.auth.validators.UnicodeUsernameValidator()],
                            verbose_name="username",
                        ),
                    ),
                    ("first_name", models.CharField(blank=True, max_length=150, verbose_name="first name")),
                    ("last_name", models.CharField(blank=True, max_length=150, verbose_name="last name")),
                    ("email", models.EmailField(blank=True, max_length=254, verbose_name="email address")),
                    (
                        "is_staff",
                        models.BooleanField(
                            default=False,
                            help_text="Designates whether the user can log into this admin site.",
                            verbose_name="staff status",
                        ),
                    ),
                    (
                        "is_active",
                        models.BooleanField(
                            default=True,
                            help_text="Designates whether this user should be treated as active. Unselect this instead of deleting accounts.",
                            verbose_name="active",
                        ),
                    ),
                    (
                        "date_joined",
                        models.DateTimeField(default=django.utils.timezone.now, verbose_name="date joined"),
                    ),
                    ("credentials_version", models.PositiveIntegerField(default=1)),
                    (
                        "groups",
                        models.ManyToManyField(
                            blank=True,
                            help_text="The groups this user belongs to. A user will get all permissions granted to each of their groups.",
                            related_name="user_set",
                            related_query_name="user",
                            to="auth.group",
                            verbose_name="groups",
                        ),
                    ),
                    (
                        "user_permissions",
                        models.ManyToManyField(
                            blank=True,
                            help_text="Specific permissions for this user.",
                            related_name="user_set",
                            related_query_name="user",
                            to="auth.permission",
                            verbose_name="user permissions",
                        ),
                    ),
                ],
                options={
                    "verbose_name": "user",
                    "verbose_name_plural": "users",
                    "abstract": False,
                },
                managers=[
                    ("objects", django.contrib.auth.models.UserManager()),
                ],
            ),
            migrations.CreateModel(
                name="Token",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("name", models.CharField(max_length=120)),
                    ("sha256", models.CharField(max_length=64, unique=True)),
                    ("prefix", models.CharField(max_length=12)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("expires_at", models.DateTimeField(blank=True, null=True)),
                    ("last_used_at", models.DateTimeField(blank=True, null=True)),
                    ("revoked_at", models.DateTimeField(blank=True, null=True)),
                    ("previous_sha256", models.CharField(blank=True, max_length=64, null=True, unique=True)),
                    ("previous_until", models.DateTimeField(blank=True, null=True)),
                    ("previous_used_at", models.DateTimeField(blank=True, null=True)),
                    ("rotated_at", models.DateTimeField(blank=True, null=True)),
                    ("scope_models", models.JSONField(blank=True, null=True)),
                    ("scope_verbs", models.JSONField(blank=True, null=True)),
                    (
                        "user",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="tokens",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="Issuer",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("title", models.CharField(max_length=80)),
                    ("url", models.CharField(max_length=300, unique=True)),
                    (
                        "kind",
                        models.CharField(
                            choices=[("github", "github"), ("gitlab", "gitlab"), ("other", "other")], max_length=10
                        ),
                    ),
                    ("is_active", models.BooleanField(default=True)),
                    ("is_for_people", models.BooleanField(default=False)),
                    ("client_id", models.CharField(blank=True, max_length=300)),
                    ("client_secret", models.TextField(blank=True)),
                    ("creates_accounts", models.BooleanField(default=False)),
                    ("session_hours", models.PositiveIntegerField(default=12)),
                    ("audience", models.CharField(blank=True, max_length=300)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("created_by", models.CharField(max_length=150)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                ],
                options={
                    "ordering": ["pk"],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("kind__in", ["github", "gitlab", "other"])), name="issuer_kind_known"
                        )
                    ],
                },
            ),
            migrations.CreateModel(
                name="Membership",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "role",
                        models.CharField(
                            choices=[
                                ("viewer", "viewer"),
                                ("model_team", "model_team"),
                                ("ci", "ci"),
                                ("release_manager", "release_manager"),
                            ],
                            max_length=20,
                        ),
                    ),
                    (
                        "user",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="memberships",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "team",
                        models.ForeignKey(
                            blank=True,
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="memberships",
                            to="accounts.team",
                        ),
                    ),
                ],
                options={
                    "constraints": [
                        models.UniqueConstraint(
                            fields=("user", "team", "role"), name="membership_once", nulls_distinct=False
                        ),
                        models.CheckConstraint(
                            condition=models.Q(("role__in", ["viewer", "model_team", "ci", "release_manager"])),
                            name="membership_role_known",
                        ),
                        models.CheckConstraint(
                            condition=models.Q(
                                ("team__isnull", False), ("role__in", ["release_manager", "viewer"]), _connector="OR"
                            ),
                            name="membership_of_every_team",
                        ),
                    ]
                },
            ),
            migrations.CreateModel(
                name="TokenRule",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("title", models.CharField(max_length=100)),
                    ("claims", models.JSONField()),
                    ("scope_verbs", models.JSONField()),
                    ("scope_models", models.JSONField(blank=True, null=True)),
                    ("life_s", models.PositiveIntegerField(default=900)),
                    ("is_active", models.BooleanField(default=True)),
                    ("last_used_at", models.DateTimeField(blank=True, null=True)),
                    ("version", models.PositiveIntegerField(default=1)),
                    ("created_by", models.CharField(max_length=150)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    (
                        "issuer",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="token_rules",
                            to="accounts.issuer",
                        ),
                    ),
                    (
                        "user",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                        ),
                    ),
                ],
                options={
                    "ordering": ["pk"],
                },
            ),
            migrations.CreateModel(
                name="UsedIdToken",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("sha256", models.CharField(max_length=64)),
                    ("ends_at", models.DateTimeField()),
                    (
                        "issuer",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="+",
                            to="accounts.issuer",
                        ),
                    ),
                ],
                options={
                    "indexes": [models.Index(fields=["ends_at"], name="used_id_token_to_forget")],
                    "constraints": [models.UniqueConstraint(fields=("issuer", "sha256"), name="used_id_token_once")],
                },
            ),
            migrations.CreateModel(
                name="UserSession",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("key_sha256", models.CharField(max_length=64, unique=True)),
                    ("begun_at", models.DateTimeField(auto_now_add=True)),
                    ("seen_at", models.DateTimeField()),
                    ("address", models.CharField(blank=True, max_length=64)),
                    ("browser", models.CharField(max_length=60)),
                    (
                        "issuer",
                        models.ForeignKey(
                            blank=True,
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="+",
                            to="accounts.issuer",
                        ),
                    ),
                    (
                        "user",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="sessions",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="ExchangedToken",
                fields=[
                    (
                        "token",
                        models.OneToOneField(
                            on_delete=django.db.models.deletion.CASCADE,
                            primary_key=True,
                            related_name="exchanged",
                            serialize=False,
                            to="accounts.token",
                        ),
                    ),
                    (
                        "rule",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="tokens", to="accounts.tokenrule"
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="Identity",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("sub", models.CharField(max_length=255)),
                    ("created_by", models.CharField(max_length=150)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    ("signed_in_at", models.DateTimeField(blank=True, null=True)),
                    (
                        "user",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="identities",
                            to=settings.AUTH_USER_MODEL,
                        ),
                    ),
                    (
                        "issuer",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="identities",
                            to="accounts.issuer",
                        ),
                    ),
                ],
                options={
                    "ordering": ["pk"],
                    "constraints": [models.UniqueConstraint(fields=("issuer", "sub"), name="identity_once")],
                },
            ),
            migrations.CreateModel(
                name="RuleMembership",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    (
                        "issuer",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.issuer"
                        ),
                    ),
                    (
                        "membership",
                        models.ForeignKey(
                            db_index=False,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="by_rules",
                            to="accounts.membership",
                        ),
                    ),
                ],
                options={
                    "ordering": ["pk"],
                    "constraints": [
                        models.UniqueConstraint(fields=("membership", "issuer"), name="rule_membership_once")
                    ],
                },
            ),
            migrations.CreateModel(
                name="RoleRule",
                fields=[
                    (
                        "id",
                        models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                    ),
                    ("claims", models.JSONField()),
                    (
                        "role",
                        models.CharField(
                            choices=[
                                ("viewer", "viewer"),
                                ("model_team", "model_team"),
                                ("ci", "ci"),
                                ("release_manager", "release_manager"),
                            ],
                            max_length=20,
                        ),
                    ),
                    ("created_by", models.CharField(max_length=150)),
                    ("created_at", models.DateTimeField(auto_now_add=True)),
                    (
                        "issuer",
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.CASCADE, related_name="role_rules", to="accounts.issuer"
                        ),
                    ),
                    (
                        "team",
                        models.ForeignKey(
                            blank=True,
                            null=True,
                            on_delete=django.db.models.deletion.CASCADE,
                            related_name="+",
                            to="accounts.team",
                        ),
                    ),
                ],
                options={
                    "ordering": ["pk"],
                    "constraints": [
                        models.CheckConstraint(
                            condition=models.Q(("role__in", ["viewer", "model_team", "ci", "release_manager"])),
                            name="role_rule_role_known",
                        )
                    ],
                },
            ),
        ),
    ]
