"""What runs on one machine: which processes, in which order, on which ports, with which environment."""

from __future__ import annotations

import http.client
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accounts.core.addresses import API
from ledger.adapters.deadline_http import DeadlineConnection
from serving.targets.adapters.listening import takes_connections
from sluicegate.stack import child, secrets, sockets
from sluicegate.stack.postgres import Postgres
from sluicegate.stack.processes import Process, output_since_start
from sluicegate.stack.tcp_ports import Ports, ReservedPorts
from sluicegate.stack.valkey import Valkey

BASE_DIR = Path(__file__).resolve().parents[2]
STORES, BOOTSTRAP, SERVICES, GATEWAY, STANDBY = range(5)
GATEWAY_NAME = "local-gateway"
#: What a person would like to type; taken only by a stack that a person starts.
FRIENDLY_PORTS = {"web": 8700, "gateway_http": 8701, "gateway_grpc": 8702}
#: Who must be told when one of these listens elsewhere than before, and what it is.
_KNOWN_TO = {
    "web": "the pages and the API listen",
    "gateway_http": "the gateway listens for HTTP",
    "gateway_grpc": "the gateway listens for gRPC",
}
#: Where the bootstrap leaves the first administrator's password, for `up` to show once and delete.
FIRST_PASSWORD = Path("secrets/first-password")
ADMIN_TOKEN = Path("secrets/admin-token")
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True)
class Options:
    """Options of a stack. `env` is set for every process on top of the stack's own variables."""

    state_dir: Path
    port: int | None = None  # of the web pages and the API; otherwise remembered, or chosen
    is_verbose: bool = False
    ready_file: Path | None = None  # gets the addresses as JSON once everything is ready
    wants_friendly_ports: bool = True
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """A prepared machine: what to run, and where its parts will be found."""

    processes: list[Process]
    base_url: str
    gateway_http: str
    gateway_grpc: str  # host:port
    gateway_admin: str  # unix:/path
    xds_address: str  # unix:/path
    env: dict[str, str]
    warnings: tuple[str, ...] = ()  # for the operator who starts the stack, one sentence each


def prepare(options: Options, reserved: ReservedPorts) -> Machine:
    """Folders, secrets, ports and the stores' data made ready; nothing is started. Raises RuntimeError, FileNotFoundError.

    The ports are reserved at once: the stores and the migrations take a minute on a busy machine before a server listens.
    """
    state = options.state_dir
    (state / "secrets").mkdir(mode=0o700, exist_ok=True)
    secrets.remembered(state / "secrets" / "django")
    ports, warnings = _choose_ports(options)
    for port in ports.values():
        reserved.reserve(port)
    postgres, valkey = Postgres(state), Valkey(state)
    postgres_argv, valkey_argv = postgres.prepare(), valkey.prepare()
    run = sockets.make_folder(state)
    ours = {
        "DATABASE_URL_FILE": secrets.kept(state / "secrets" / "database-url", postgres.url),
        "REDIS_URL_FILE": secrets.kept(state / "secrets" / "redis-url", valkey.url),
        "DJANGO_SETTINGS_MODULE": "sluicegate.settings",
        "SLUICEGATE_STATE_DIR": str(state),
        "SLUICEGATE_SECRET_KEY_FILE": str(state / "secrets" / "django"),
        "SLUICEGATE_XDS_ADDRESS": f"unix:{run / sockets.CONTROL_PLANE}",
        "SLUICEGATE_PROBER_ADDRESS": f"unix:{run / sockets.PROBER}",
        # Everything here listens on this machine alone, so an administrator's receivers may too.
        "SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE": os.environ.get("SLUICEGATE_WEBHOOKS_ALLOW_PRIVATE", "1"),
        # Where the pages are served, unless whoever starts it knows a better name for that.
        "SLUICEGATE_PUBLIC_URL": os.environ.get("SLUICEGATE_PUBLIC_URL", f"http://127.0.0.1:{ports['web']}"),
        # Whoever starts the stack owns all of it: code that this machine cannot shut in is told of, and may run.
        "SLUICEGATE_ALLOW_UNCONTAINED_CODE": os.environ.get("SLUICEGATE_ALLOW_UNCONTAINED_CODE", "1"),
        **options.env,
    }
    owner = {"DATABASE_OWNER_URL_FILE": secrets.kept(state / "secrets" / "database-owner-url", postgres.owner_url)}
    env = {**with_bytecode(_inherited({**ours, **owner}), state), **ours, "PYTHONUNBUFFERED": "1"}
    stores = [
        Process(
            "postgres",
            STORES,
            postgres_argv,
            env=child.BARE,
            is_ready=postgres.is_ready,
            user=postgres.user,
            cwd=Path("/"),
            stop_signal=postgres.stop_signal,
            death_signal=postgres.stop_signal,
            grace_s=15,
        ),
        Process("valkey", STORES, valkey_argv, env=child.BARE, is_ready=valkey.is_ready, death_signal=signal.SIGTERM),
    ]
    bootstrap = Process(
        "bootstrap", BOOTSTRAP, _bootstrap(state, run, ports), env={**env, **owner}, cwd=BASE_DIR, runs_once=True
    )
    return Machine(
        processes=[*stores, bootstrap, *_services(state, run, ports, env)],
        base_url=f"http://127.0.0.1:{ports['web']}",
        gateway_http=f"http://127.0.0.1:{ports['gateway_http']}",
        gateway_grpc=f"127.0.0.1:{ports['gateway_grpc']}",
        gateway_admin=f"unix:{run / sockets.GATEWAY_ADMIN}",
        xds_address=ours["SLUICEGATE_XDS_ADDRESS"],
        env=ours,
        warnings=warnings,
    )


def _choose_ports(options: Options) -> tuple[dict[str, int], tuple[str, ...]]:
    """The port of every server, and a sentence for each that people know and that is not where it was or should be."""
    ports = Ports(options.state_dir / "ports.json")
    friendly = FRIENDLY_PORTS if options.wants_friendly_ports else {}
    names = ["web", "gateway_http", "gateway_grpc"]
    ports.keep({*names, "postgres", "valkey"})
    if options.port:
        ports.require("web", options.port)
    chosen = {name: ports.choose(name, preferred=friendly.get(name)) for name in names}
    warnings = (
        f"Port {ports.moved[name]} is taken by another program: {what} on port {chosen[name]} from now on."
        for name, what in _KNOWN_TO.items()
        if name in ports.moved
    )
    return chosen, tuple(warnings)


def _inherited(ours: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what would contradict ours: X beside our X_FILE, and X_FILE beside our X."""
    contradicting = {f"{name}_FILE" for name in ours} | {name.removesuffix("_FILE") for name in ours}
    return {name: value for name, value in os.environ.items() if name not in contradicting}


def with_bytecode(env: Mapping[str, str], state: Path) -> dict[str, str]:
    """The environment with a place for compiled modules, if they may not lie beside the sources, as in many containers.

    Without them a process that is started again compiles a thousand modules, which takes more time than all else it does.
    """
    found = {name: value for name, value in env.items() if name != _NO_BYTECODE}
    if env.get(_NO_BYTECODE) or not os.access(BASE_DIR, os.W_OK):
        found.setdefault("PYTHONPYCACHEPREFIX", str(state / "bytecode"))
    return found


def _services(state: Path, run: Path, ports: Mapping[str, int], env: Mapping[str, str]) -> list[Process]:
    manage = [sys.executable, str(BASE_DIR / "manage.py")]

    def process(
        name: str, level: int, argv: list[str], is_ready: Callable[[], bool] | None = None, **more: Any
    ) -> Process:
        # Without a sign of readiness a process must live for about as long as the others take to become ready.
        settles_s = 0.0 if is_ready or more.get("ports") else 2.5
        named = {
            **env,
            "SLUICEGATE_MANAGEMENT_ADDRESS": "127.0.0.1:0",
            "SLUICEGATE_PROCESS_NAME": name,
        }
        ours = {"env": named, "cwd": BASE_DIR, "is_ready": is_ready, "settles_s": settles_s}
        return Process(name, level, argv, **{**ours, **more})

    return [
        process(
            "web",
            SERVICES,
            _web(ports["web"]),
            lambda: _answers(ports["web"], f"{API}/me"),
            ports=(ports["web"],),
        ),
        process("worker", SERVICES, _worker(), lambda: "ready." in output_since_start(state / "logs" / "worker.log")),
        process("scheduler", SERVICES, [*manage, "scheduler"]),
        process("agent", SERVICES, [*manage, "agent"], grace_s=10),
        process("engine", SERVICES, [*manage, "engine"]),
        process("prober", SERVICES, [*manage, "run_prober"], lambda: takes_connections(run / sockets.PROBER)),
        process(
            "control_plane",
            SERVICES,
            [*manage, "control_plane"],
            lambda: takes_connections(run / sockets.CONTROL_PLANE),
        ),
        process(
            "relay",
            SERVICES,
            _relay(state, run),
            lambda: takes_connections(run / sockets.RELAY),
            env=child.BARE,
        ),
        process(
            "envoy",
            GATEWAY,
            _envoy(state, env),
            env=child.BARE,
            is_ready=lambda: _is_open(run / sockets.GATEWAY_ADMIN),
            ports=tuple(ports[name] for name in ("gateway_http", "gateway_grpc")),
        ),
        # One engine leads. The other has started already when a leader dies, which saves a second or more of
        # Python's start, five on a busy machine. Nothing waits for the standby.
        process("engine_2", STANDBY, [*manage, "engine"], lambda: True),
    ]


def _bootstrap(state: Path, run: Path, ports: Mapping[str, int]) -> list[str]:
    told = [f"--{name.replace('_', '-')}-port={ports[name]}" for name in ("gateway_http", "gateway_grpc")]
    told += [f"--gateway-admin=unix:{run / sockets.GATEWAY_ADMIN}", f"--gateway-relay=unix:{run / sockets.RELAY}"]
    told += [f"--envoy-config={state / 'envoy.json'}"]
    return [sys.executable, "-m", "sluicegate.stack.bootstrap", *told]


def _web(port: int) -> list[str]:
    said = "--loop uvloop --http sluicegate.web_server:BoundedHttp --lifespan off --no-proxy-headers --no-server-header --no-access-log"
    where = ["--host", "127.0.0.1", "--port", str(port), "--timeout-graceful-shutdown", "2"]
    return [sys.executable, "-m", "uvicorn", "sluicegate.asgi:application", *where, *said.split()]


def _worker() -> list[str]:
    """Threads, as the handlers mostly wait for servers; gossip and its kin talk to other workers, and there is one."""
    said = "-P threads -c 4 -Q default,validate --without-gossip --without-mingle --without-heartbeat -l INFO"
    return [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "sluicegate",
        "worker",
        "--hostname",
        "worker@sluicegate",
        *said.split(),
    ]


def _relay(state: Path, run: Path) -> list[str]:
    """Beside Envoy, with Envoy's last configuration; it knows only its two neighbours."""
    where = [f"--listen=unix:{run / sockets.RELAY}", f"--control-planes=unix:{run / sockets.CONTROL_PLANE}"]
    kept = f"--file={state / 'gateway-snapshot'}"
    return [sys.executable, "-m", "serving.traffic.control_plane.relay", GATEWAY_NAME, *where, kept]


def _envoy(state: Path, env: Mapping[str, str]) -> list[str]:
    binary = env.get("SLUICEGATE_ENVOY_BINARY", str(BASE_DIR / ".venv-gateway" / "envoy" / "_bin" / "envoy"))
    return [
        binary,
        "-c",
        str(state / "envoy.json"),
        *["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"],
    ]


def _answers(port: int, path: str) -> bool:
    """Whether an HTTP server on this port answers without an error of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _is_open(admin: Path) -> bool:
    """Whether a gateway with this admin interface has its configuration to serve."""
    try:
        with DeadlineConnection(f"unix:{admin}", time.monotonic() + 2) as line:
            return line.ask("GET", "/ready")[0] == 200
    except (OSError, http.client.HTTPException):
        return False
