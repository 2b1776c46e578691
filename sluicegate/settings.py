"""The only settings module: everything comes from the environment, with safe defaults. See docs/settings.md."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from accounts.core.access import Role
from accounts.core.addresses import API
from insights.core.incident import IncidentState
from notifications.core.delivery import DeliveryState, ReceiverKind
from notifications.core.formats import WebhookFormat
from registry.core.capabilities import KINDS, State
from registry.core.lifecycle import FileRole, ReleaseState
from registry.core.uploads import UploadState
from rollouts.core.lifecycle import RolloutState
from serving.environments.core.addresses import LOOPBACK, TlsFiles, why_not_served_at
from serving.traffic.core.gateway_standing import Standing
from sluicegate import env

BASE_DIR = Path(__file__).resolve().parent.parent
#: Where the one-machine stack keeps data, sockets, logs and generated secrets.
STATE_DIR = Path(env.text("SLUICEGATE_STATE_DIR", str(BASE_DIR / ".state")))
#: Where this process answers probes and Prometheus: host:port, port 0 for a free one; empty: nowhere.
MANAGEMENT_ADDRESS = env.text("SLUICEGATE_MANAGEMENT_ADDRESS")
#: What this process is called there.
PROCESS_NAME = env.text("SLUICEGATE_PROCESS_NAME", "sluicegate")

DEBUG = env.flag("SLUICEGATE_DEBUG")
SECRET_KEY = env.text("SLUICEGATE_SECRET_KEY", "insecure-only-for-tests-and-commands-without-a-server")
ALLOWED_HOSTS = env.names("SLUICEGATE_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1],testserver")
#: People come over HTTPS, which a proxy in front ends and says so in X-Forwarded-Proto.
IS_HTTPS = env.flag("SLUICEGATE_HTTPS")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = IS_HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if IS_HTTPS else None
CSRF_TRUSTED_ORIGINS = env.names("SLUICEGATE_CSRF_TRUSTED_ORIGINS")

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "sluicegate",
    "ledger",
    "accounts",
    "registry",
    "serving",
    "validators",
    "rollouts",
    "audit",
    "insights",
    "notifications",
    "web",
]
MIDDLEWARE = [
    "web.security_headers.SecurityHeaders",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "web.compression.GzippedPages",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "web.pages.session.SeenSessions",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "web.pages.session.RefusalPages",
]
ROOT_URLCONF = "sluicegate.urls"
ASGI_APPLICATION = "sluicegate.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "web.looks.shell",
            ],
            "builtins": ["web.templatetags.addresses"],
        },
    }
]
AUTH_USER_MODEL = "accounts.User"
#: The first finds the user of a session, the second proves passwords.
AUTHENTICATION_BACKENDS = ["accounts.adapters.session_users.SessionUsers", "django.contrib.auth.backends.ModelBackend"]
#: New passwords by the first; a hash of another kind is rewritten when its owner signs in. Source: OWASP Password Storage.
PASSWORD_HASHERS = [f"django.contrib.auth.hashers.{name}" for name in ("Argon2PasswordHasher", "PBKDF2PasswordHasher")]
#: For every way in: pages, API and command line (`accounts.actions.passwords`). Source: NIST SP 800-63B-4, 3.1.1.2: length and a
#: list of common ones, no rules of composition.
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}", "OPTIONS": options}
    for name, options in (
        ("MinimumLengthValidator", {"min_length": 12}),
        ("UserAttributeSimilarityValidator", {"user_attributes": ("username",)}),
        ("CommonPasswordValidator", {}),
        ("NumericPasswordValidator", {}),
    )
]
#: How long a token lives that is issued without an end, and the longest that may be asked for.
TOKEN_MOST_DAYS = env.number("SLUICEGATE_TOKEN_MOST_DAYS", 365.0, least=0.01, most=3650)
TOKEN_DAYS = env.number("SLUICEGATE_TOKEN_DAYS", min(90.0, TOKEN_MOST_DAYS), least=0.01, most=TOKEN_MOST_DAYS)
#: Requests a minute that one caller (a token, a session) may send to the API of a web process; 0: any number. Strangers get a twentieth.
API_PER_MINUTE = int(env.number("SLUICEGATE_API_PER_MINUTE", 6000, least=0, most=1_000_000))
#: How many proxies in front of the web process write X-Forwarded-For; 0: none, and the header is not believed.
PROXIES = int(env.number("SLUICEGATE_PROXIES", 0, least=0, most=10))
LOGIN_URL = "/sign-in/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in/"


def _database(url: str) -> dict[str, object]:
    """postgresql://user:password@host:port/name, or ?host=/socket/folder for a socket."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured(
            f"DATABASE_URL must begin with postgresql://, not {parts.scheme}://: triggers and locks need PostgreSQL."
        )
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.get("host", parts.hostname or ""),
        "PORT": str(parts.port or query.get("port", "")),
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            # A process that freezes inside a transaction holds locks that every event and every rollback waits for.
            "options": "-c lock_timeout=4000 -c statement_timeout=30000 -c idle_in_transaction_session_timeout=30000",
            # A host that is cut off answers nothing at all, and a kernel by itself believes in a connection for a quarter of an hour.
            "connect_timeout": 10,  # s; a busy machine is no lost one
            "tcp_user_timeout": 10_000,  # ms that sent data may stay unacknowledged
            "keepalives_idle": 5,  # s
            "keepalives_interval": 2,  # s
            "keepalives_count": 3,
        },
    }


DATABASES = {"default": _database(env.text("DATABASE_URL", "postgresql://sluicegate@127.0.0.1:5432/sluicegate"))}
#: The role that owns the tables, for `manage.py migrate` alone; None: the services' own role does that too, and may drop triggers.
DATABASE_OWNER = _database(owner_url) if (owner_url := env.text("DATABASE_OWNER_URL")) else None
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = env.text("REDIS_URL", "redis://127.0.0.1:6379/0")

#: Where guards with PromQL are asked, such as http://prometheus:9090; empty: nowhere, and such guards cannot tell.
PROMETHEUS_URL = env.text("PROMETHEUS_URL")
if PROMETHEUS_URL and urlsplit(PROMETHEUS_URL).scheme not in {"http", "https"}:
    raise ImproperlyConfigured("PROMETHEUS_URL must begin with http:// or https://, such as http://127.0.0.1:9090.")

#: This node's series of the DCGM exporter in that Prometheus, such as Hostname="gpu-7"; empty: NVML alone is asked.
DCGM_SELECTOR = env.text("SLUICEGATE_DCGM_SELECTOR")
#: The IPv4 address that this node's servers listen on: of this machine alone, or of a network that is named as private.
NODE_ADDRESS = env.text("SLUICEGATE_NODE_ADDRESS", LOOPBACK)
PRIVATE_NETWORKS = env.networks("SLUICEGATE_PRIVATE_NETWORKS")
if why := why_not_served_at(NODE_ADDRESS, PRIVATE_NETWORKS):
    raise ImproperlyConfigured(f"SLUICEGATE_NODE_ADDRESS: {why}")

#: A folder's path, or s3://bucket/prefix.
BLOB_STORE = env.text("SLUICEGATE_BLOB_STORE", str(STATE_DIR / "blobs"))
#: Empty: AWS. The public one is what clients are told, where they reach the bucket by another name than this process.
S3_ENDPOINT = env.text("SLUICEGATE_S3_ENDPOINT")
S3_PUBLIC_ENDPOINT = env.text("SLUICEGATE_S3_PUBLIC_ENDPOINT")
S3_REGION = env.text("SLUICEGATE_S3_REGION", "us-east-1")
S3_ACCESS_KEY, S3_SECRET_KEY = env.text("SLUICEGATE_S3_ACCESS_KEY"), env.text("SLUICEGATE_S3_SECRET_KEY")
MAX_UPLOAD_BYTES = int(env.number("SLUICEGATE_MAX_UPLOAD_BYTES", 20 * 2**30, least=1))
#: Parts of an upload have this size, or a larger one where there would be 2,000. S3 allows no smaller ones than 5 MiB.
UPLOAD_PART_BYTES = int(env.number("SLUICEGATE_UPLOAD_PART_BYTES", 16 * 2**20, least=5 * 2**20, most=5 * 2**30))
#: What one request may carry through this process; larger files come in parts.
MAX_SIMPLE_UPLOAD_BYTES = int(env.number("SLUICEGATE_MAX_SIMPLE_UPLOAD_BYTES", 64 * 2**20, least=1))
#: A node keeps copies of the blobs that its servers were started from, in up to this room.
BLOB_CACHE_BYTES = int(env.number("SLUICEGATE_BLOB_CACHE_BYTES", 200 * 2**30, least=0))
#: How often a node compares the files under its servers with what was sealed; 0: never.
DRIFT_CHECK_EVERY_S = env.number("SLUICEGATE_DRIFT_CHECK_EVERY_S", 900.0, least=0.0, most=86400 * 30)
#: The Ed25519 private key (PEM) that signs reports; made on the first run of the one-machine stack.
SIGNING_KEY_FILE = env.text("SLUICEGATE_SIGNING_KEY_FILE", str(STATE_DIR / "secrets" / "signing.pem"))
#: The ECDSA P-256 private key (PEM) that signs releases and attestations, and the public halves of keys that signed before.
RELEASE_KEY_FILE = env.text("SLUICEGATE_RELEASE_KEY_FILE", str(STATE_DIR / "secrets" / "release-signing.pem"))
FORMER_KEYS_FILE = env.text("SLUICEGATE_FORMER_KEYS_FILE", str(STATE_DIR / "secrets" / "former-keys.pem"))
#: Collection, in days: when a draft counts as abandoned, and how long bytes can be had back after they were marked.
DRAFT_RETENTION_DAYS = env.number("SLUICEGATE_DRAFT_RETENTION_DAYS", 7.0, least=0.0, most=3650)
UNDELETE_DAYS = env.number("SLUICEGATE_UNDELETE_DAYS", 14.0, least=0.0, most=3650)
#: Whether the worker collects by itself; without it only abandoned drafts go.
GC_ENABLED = env.flag("SLUICEGATE_GC_ENABLED")

CELERY_BROKER_URL = REDIS_URL
#: Celery carries ids only; rows with leases own the work (docs/decisions). Source of the values: measured redelivery of kombu 5.7.
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3600,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    # Who enqueues must not wait for a broker that is away: the row is there, and the sweep sends it later.
    "socket_connect_timeout": 1,
    "socket_timeout": 2,  # a silent server would hold its caller for ever
    "max_retries": 0,
    "interval_start": 0,
    "interval_step": 0,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = "default"
#: How long a worker may be silent before another one takes its job over.
JOB_LEASE_S = env.number("SLUICEGATE_JOB_LEASE_S", 30.0, least=0.3, most=3600)

#: How long a webhook's receiver may take to answer, in seconds.
WEBHOOK_TIMEOUT_S = env.number("SLUICEGATE_WEBHOOK_TIMEOUT_S", 5.0, least=0.1, most=30)
#: Whether administrators may name receivers at private addresses, this machine's own among them.
WEBHOOKS_ALLOW_PRIVATE = env.flag("SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE")


def _public_url(url: str) -> str:
    """An origin, without a slash at its end: the pages' own links begin at `/`."""
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    is_origin = url.removesuffix("/") == origin and parts.scheme in {"http", "https"} and bool(parts.hostname)
    try:
        is_origin = (
            is_origin
            and parts.port != 0
            and "@" not in origin
            and url.isascii()
            and url.isprintable()
            and " " not in url
        )
    except ValueError:
        is_origin = False
    if not is_origin:
        raise ImproperlyConfigured(
            f"SLUICEGATE_PUBLIC_URL={url!r} is no address of the pages. Write what people type, such as https://sluicegate.example.com, "
            "with its port and without a path."
        )
    return origin


#: Under which address people reach the pages: every link in a notification begins with it. Empty: notifications have no links.
PUBLIC_URL = _public_url(public) if (public := env.text("SLUICEGATE_PUBLIC_URL")) else ""


def _mail_server(url: str) -> SplitResult:
    parts = urlsplit(url)
    _, _, port = parts.netloc.rpartition("@")[2].partition(":")
    if url and (parts.scheme not in {"smtp", "smtps"} or not parts.hostname or not (port or "0").isdecimal()):
        raise ImproperlyConfigured("SLUICEGATE_EMAIL_URL must be smtp://user:password@host:port, or smtps://… for TLS.")
    return parts


#: Empty: no e-mail. STARTTLS is used where there is a user, or where the query says starttls=1.
_MAIL = _mail_server(env.text("SLUICEGATE_EMAIL_URL"))
EMAIL_HOST, EMAIL_USE_SSL = _MAIL.hostname or "", _MAIL.scheme == "smtps"
EMAIL_PORT = _MAIL.port or (465 if EMAIL_USE_SSL else 587)
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = unquote(_MAIL.username or ""), unquote(_MAIL.password or "")
EMAIL_USE_TLS = not EMAIL_USE_SSL and parse_qs(_MAIL.query).get("starttls", ["1" if EMAIL_HOST_USER else "0"]) == ["1"]
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.text("SLUICEGATE_EMAIL_FROM", "sluicegate@localhost")

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "accounts.api.authentication.BearerTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["sluicegate.api.JsonParser"],
    "DEFAULT_SCHEMA_CLASS": "sluicegate.openapi.ApiSchema",
    "DEFAULT_PAGINATION_CLASS": "sluicegate.api.CursorPagination",
    "PAGE_SIZE": 50,
    "EXCEPTION_HANDLER": "sluicegate.api.problem_handler",
    "DEFAULT_METADATA_CLASS": None,  # OPTIONS is 405: the schema describes an address
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Sluicegate",
    "DESCRIPTION": "Releases GPU inference models safely.",
    "VERSION": "v1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": API,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "sluicegate.openapi.with_problems",
    ],
    "ENUM_NAME_OVERRIDES": {
        "TeamRole": [(role.value, role.value) for role in Role],
        "FileRole": [(role.value, role.value) for role in FileRole],
        "DeliveryState": [(state.value, state.value) for state in DeliveryState],
        "RolloutState": [(state.value, state.value) for state in RolloutState],
        "ReleaseState": [(state.value, state.value) for state in ReleaseState],
        "EnvelopeVerdict": ["passed", "failed", "unknown"],
        "VerdictEnum": ["yes", "unknown", "no"],
        "NodeState": ["reachable", "silent"],
        "GatewayState": [(one.value, one.value) for one in Standing],
        "UploadState": [(state.value, state.value) for state in UploadState],
        "WaiverKind": [(kind, kind) for kind in ("code", "pickle")],
        "ReceiverKind": [(kind.value, kind.value) for kind in ReceiverKind],
        "CapabilityState": [str(state) for state in State],
        "CapabilityKind": list(KINDS),
        "IncidentState": [(state.value, state.value) for state in IncidentState],
        "WebhookFormat": [(form.value, form.value) for form in WebhookFormat],
    },
}

LOG_LEVEL = env.text("SLUICEGATE_LOG_LEVEL", "INFO").upper()
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    # Django's own handlers would say each line twice, and mail nobody.
    "loggers": {"django": {"handlers": [], "propagate": True, "level": LOG_LEVEL}},
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "web" / "static"]
STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
#: Where the web process collects them at its start (`web.static_files`); while debugging they are served as they are written.
STATIC_ROOT = STATE_DIR / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage" if DEBUG else "web.static_files.HashedFiles"
    },
}
WHITENOISE_USE_FINDERS = DEBUG

# The engine's clock, in seconds.
ENGINE_TICK_S = env.number("SLUICEGATE_ENGINE_TICK_S", 1.0, least=0.05, most=60)
ENGINE_LEASE_S = env.number("SLUICEGATE_ENGINE_LEASE_S", 3.0, least=0.5, most=60)
# Networks of the proxies before the gateways whose word on a request's tenant is believed.
TRUSTED_PROXIES = tuple(env.networks("SLUICEGATE_TRUSTED_PROXIES"))
# The control plane that gateways connect to.
XDS_ADDRESS = env.text("SLUICEGATE_XDS_ADDRESS", "127.0.0.1:18000")
# From machine to machine both sides show a certificate: PEM files of this control plane's own, and of who signed the gateways'.
_XDS_FILES = (
    env.text("SLUICEGATE_XDS_CERTIFICATE_FILE"),
    env.text("SLUICEGATE_XDS_KEY_FILE"),
    env.text("SLUICEGATE_XDS_CA_FILE"),
)
if any(_XDS_FILES) and not all(_XDS_FILES):
    raise ImproperlyConfigured(
        "SLUICEGATE_XDS_CERTIFICATE_FILE, SLUICEGATE_XDS_KEY_FILE and SLUICEGATE_XDS_CA_FILE go together; set all three, or none."
    )
XDS_TLS = TlsFiles(*_XDS_FILES) if all(_XDS_FILES) else None
# Where gateways send copies of requests, to be asked of both releases of a rollout; host:port, none without a prober.
PROBER_ADDRESS = env.text("SLUICEGATE_PROBER_ADDRESS")
# Comparisons a second of one rollout, at most: each asks its candidate once and its stable release twice.
PROBER_PER_S = env.number("SLUICEGATE_PROBER_PER_S", 20.0, least=0.1, most=1000)
# How long a user's request may take in all, and one attempt of it on one server, in seconds.
GATEWAY_TIMEOUT_S = env.number("SLUICEGATE_GATEWAY_TIMEOUT_S", 10.0, least=0.1, most=600)
GATEWAY_ATTEMPT_TIMEOUT_S = env.number("SLUICEGATE_GATEWAY_ATTEMPT_TIMEOUT_S", 2.0, least=0.1, most=GATEWAY_TIMEOUT_S)
# This machine's agent.
NODE_NAME = env.text("SLUICEGATE_NODE", "local")
# Whether releases that bring code run on a machine that cannot shut them in.
ALLOW_UNCONTAINED_CODE = env.flag("SLUICEGATE_ALLOW_UNCONTAINED_CODE", False)
SERVING_VENV = Path(env.text("SLUICEGATE_SERVING_VENV", str(BASE_DIR / ".venv-serving")))
# The folder below which the model repositories of listed servers lie; empty: none is shared with this machine.
STATIC_FOLDER = env.text("SLUICEGATE_STATIC_FOLDER")
ENVOY_BINARY = Path(env.text("SLUICEGATE_ENVOY_BINARY", str(BASE_DIR / ".venv-gateway" / "envoy" / "_bin" / "envoy")))
