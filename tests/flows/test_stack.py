"""The whole one-machine stack: it comes up, it heals, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from accounts.core.addresses import API
from ledger.adapters.deadline_http import DeadlineConnection
from sluicegate.stack import Stack, running
from sluicegate.stack.sockets import make_folder, remove_folder
from sluicegate.stack.tcp_ports import is_bound_by, is_free
from tests.support.rigs.other_user import as_stranger, everything_in, trespasses
from tests.support.rigs.prometheus_rig import PrometheusProcess

pytestmark = [pytest.mark.real("postgres", "valkey", "envoy", "prometheus"), pytest.mark.timeout(900)]
#: What a stack that was told to stop takes away.
MADE = ["ready.json", "processes.json", "run"]
KEPT = [
    "postgres",
    "valkey",
    "web",
    "worker",
    "scheduler",
    "agent",
    "engine",
    "engine_2",
    "prober",
    "control_plane",
    "relay",
    "envoy",
]


@contextmanager
def state_folder() -> Iterator[Path]:
    """Passable for an unprivileged user, as PostgreSQL's data must be when root runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="sluicegate-test-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Life:
    """What was seen of a stack that has ended. `left`: what there still was of it then."""

    stack: Stack
    said: str
    ports: dict[str, int]
    left: list[str]


@dataclass(frozen=True)
class Lives:
    """Three on one folder: told to stop, its supervisor killed, and one that goes on though a port of it was taken."""

    first: Life
    second: Life
    third: Stack


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    with state_folder() as folder:
        with up(folder) as one:
            pids = descendants(one.supervisor_pid)
        first = seen(one, [*left_of(folder, pids), *(name for name in MADE if (folder / name).exists())])
        with up(folder) as two:
            pids = descendants(two.supervisor_pid)
            os.kill(two.supervisor_pid, signal.SIGKILL)
            second = seen(two, left_of(folder, pids))
        with socket.create_server(("127.0.0.1", first.ports["gateway_http"])), up(folder) as third:
            yield Lives(first, second, third)


@pytest.fixture(scope="module")
def stack(lives: Lives) -> Stack:
    return lives.third


def up(folder: Path) -> AbstractContextManager[Stack]:
    return running(folder, ready_s=300)


def seen(stack: Stack, left: list[str]) -> Life:
    ports = json.loads((stack.state_dir / "ports.json").read_text())
    return Life(stack, stack.log_of("up").read_text(), ports, left)


@pytest.fixture(scope="module")
def known(stack: Stack) -> Iterator[dict[str, int]]:
    """The pid of each process as the tests that killed some left them: what depends on a killed one may fall over later."""
    pids = {name: stack.pid_of(name) for name in KEPT}
    yield pids
    time.sleep(1)
    assert {name: stack.pid_of(name) for name in KEPT} == pids


def get(url: str, token: str = "") -> int:
    """The status; 0 while nobody answers."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request("GET", parts.path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def until(is_so: Callable[[], object], what: str, within_s: float = 180.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.1)


def descendants(pid: int) -> set[int]:
    """The process and everything that descends from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    found, last = {pid}, set[int]()
    while found != last:
        last = set(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left_of(state_dir: Path, pids: set[int]) -> list[str]:
    """Processes that live on for long, and ports that are not free."""
    assert len(pids) > len(KEPT)
    with contextlib.suppress(AssertionError):
        until(lambda: not any(map(is_alive, pids)), "no process of the stack", within_s=60)
    ports = json.loads((state_dir / "ports.json").read_text())
    return [
        *(f"process {pid}" for pid in pids if is_alive(pid)),
        *(name for name, port in ports.items() if not is_free(port)),
    ]


def is_gateway_ready(stack: Stack) -> bool:
    try:
        with DeadlineConnection(stack.gateway_admin, time.monotonic() + 30) as admin:
            return admin.ask("GET", "/ready")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def is_healthy(stack: Stack) -> bool:
    return get(f"{stack.base_url}/api/v1/me", stack.admin_token) == 200 and is_gateway_ready(stack)


def test_it_comes_up_and_says_where(lives: Lives, stack: Stack) -> None:
    for said, one in ((lives.first.said, lives.first.stack), (stack.log_of("up").read_text(), stack)):
        assert said.count("Sluicegate is READY") == 1
        for address in (one.base_url, one.gateway_http, one.gateway_grpc, one.admin_password):
            assert address in said
    until(lambda: is_healthy(stack), "healthy")
    assert get(f"{stack.base_url}/api/v1/me") == 401
    assert get(f"{stack.base_url}/api/v1/me", stack.admin_token) == 200
    assert get(f"{stack.gateway_http}/v2/health/ready") == 200
    assert sorted(KEPT) == sorted(name for name in KEPT if stack.pid_of(name))


def listening_on(ports: set[int]) -> dict[int, str]:
    """{port: address as the kernel writes it} for those of the ports on which something listens."""
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]]
    listening = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {int(port, 16): address for address, port in listening if int(port, 16) in ports}


def test_it_listens_on_loopback_only(stack: Stack) -> None:
    ports = set(json.loads((stack.state_dir / "ports.json").read_text()).values())
    deadline = time.monotonic() + 120  # a process that another test killed may still be starting
    while set(ours := listening_on(ports)) != ports and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(ours) == ports
    assert set(ours.values()) <= {
        "0100007F",
        "0000000000000000FFFF00000100007F",
    }  # 127.0.0.1, as IPv4 and as IPv6 writes it


def test_secrets_are_for_their_owner_only(stack: Stack) -> None:
    secrets = stack.state_dir / "secrets"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert {"django", "postgres", "valkey", "admin-token"} <= {file.name for file in secrets.iterdir()}
    assert {stat.S_IMODE(file.stat().st_mode) for file in secrets.iterdir()} == {0o600}
    assert not (secrets / "first-password").exists()
    command_lines = []
    for pid in descendants(stack.supervisor_pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            command_lines.append(Path(f"/proc/{pid}/cmdline").read_text())
    assert len(command_lines) > len(KEPT)
    assert not [line for line in command_lines for file in secrets.iterdir() if file.read_text().strip() in line]
    passwords = [
        (secrets / name).read_text().strip() for name in ("postgres", "postgres-owner", "valkey", "admin-token")
    ]
    for name in KEPT:  # our own are told where the secrets are, the others not even that
        environment = Path(f"/proc/{stack.pid_of(name)}/environ").read_text()
        assert not [one for one in passwords if one in environment], name
        if name in ("postgres", "valkey", "relay", "envoy"):
            assert str(secrets) not in environment and "SLUICEGATE" not in environment, name


def test_another_user_of_the_machine_gets_at_nothing_but_the_public_ports(stack: Stack) -> None:
    until(lambda: is_healthy(stack), "healthy")
    assert get(f"{stack.gateway_http}/v2/models/sentiment/infer") == 404
    assert get(f"{stack.base_url}/api/v1/teams", stack.admin_token) == 200
    walked = everything_in(stack.state_dir)
    assert {"gateway-admin.sock", "control-plane.sock", "prober.sock", "relay.sock"} <= {
        path.name for path in walked if path.is_socket()
    }
    assert {"envoy.log", "ready.json", "envoy.json", "ports.json", "up.log"} <= {path.name for path in walked}
    assert trespasses(stack.state_dir) == []
    assert {stat.S_IMODE(path.lstat().st_mode) for path in walked if path.is_socket()} == {0o600}


def test_a_stock_prometheus_finds_and_reads_every_process(stack: Stack, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(stack.admin_token)
    discovery = {
        "url": f"{stack.base_url}{API}/prometheus-targets",
        "refresh_interval": "1s",
        "authorization": {"type": "Bearer", "credentials_file": str(token)},
    }
    processes = set(KEPT) - {"postgres", "valkey", "relay", "envoy"}
    scraping = PrometheusProcess(tmp_path, {"http_sd_configs": [discovery]}, every_s=5.0)
    scraping.start()
    try:
        until(
            lambda: {one["metric"]["process"] for one in scraping.ask("max_over_time(up[5m]) == 1")} == processes,
            "every process is read",
        )
        until(
            lambda: scraping.has('max_over_time(sluicegate_gateway_up{gateway="local-gateway"}[5m]) == 1'),
            "the gateway's counts are read",
        )
        assert len(scraping.ask("sluicegate_database_size_bytes")) == 1  # of the leader alone
        assert scraping.has("sluicegate_engine_turn_seconds_count > 0")
        assert not scraping.has("sluicegate_figures_failed")
    finally:
        scraping.stop()


@pytest.mark.needs_root
def test_another_user_sees_no_more_of_the_processes_than_everybody_must(stack: Stack) -> None:
    until(lambda: is_healthy(stack), "healthy")
    pids = descendants(stack.supervisor_pid)
    secret = [file.read_text().strip() for file in (stack.state_dir / "secrets").iterdir()]

    def look() -> Iterator[str]:
        for pid in pids:
            for name in ("environ", "mem", "maps", "fd"):
                with contextlib.suppress(OSError):
                    found = (
                        os.listdir(f"/proc/{pid}/{name}") if name == "fd" else Path(f"/proc/{pid}/{name}").read_bytes()
                    )
                    if found:
                        yield f"{name} of {pid}"
            with contextlib.suppress(OSError):
                said = Path(f"/proc/{pid}/cmdline").read_text()
                yield from (f"a secret in the command line of {pid}" for one in secret if one in said)

    assert as_stranger(look) == []


def test_a_state_folder_with_a_long_path_has_its_sockets_elsewhere(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    folder = make_folder(long)
    try:
        assert long not in folder.parents and stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert make_folder(long) == folder  # what a killed stack left is taken over
    finally:
        remove_folder(long)
    assert not folder.exists()
    folder.symlink_to(tmp_path)
    try:
        with pytest.raises(RuntimeError, match="is not a folder of this user"):
            make_folder(long)
    finally:
        folder.unlink()
    assert make_folder(tmp_path) == tmp_path / "run"


def test_a_second_stack_on_the_same_folder_is_refused(stack: Stack) -> None:
    again = subprocess.run(
        [sys.executable, "-m", "sluicegate.stack", "--state", str(stack.state_dir)],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert again.returncode == 2
    assert f"already runs on {stack.state_dir} (process {stack.supervisor_pid})" in again.stderr
    assert is_healthy(stack)


def test_each_part_is_told_when_it_is_ready(lives: Lives) -> None:
    said = lives.first.said
    assert "for the first time: it makes a database" in said
    for name in (*KEPT, "bootstrap"):
        assert re.search(rf"^ *{name} │ (ready|done), \d+\.\d s$", said, re.M)


@pytest.mark.parametrize("name", KEPT)
def test_whatever_is_killed_comes_back(stack: Stack, known: dict[str, int], name: str) -> None:
    until(lambda: is_healthy(stack), "healthy before")
    before = {one: stack.pid_of(one) for one in KEPT}
    assert before == known  # nothing fell over since the one before was killed
    os.kill(before[name], signal.SIGKILL)
    known[name] = stack.pid_of(name, unlike=before[name], within_s=120)
    assert known[name] != before[name]
    until(lambda: is_healthy(stack), f"healthy after {name} was killed")
    assert {one: stack.pid_of(one) for one in KEPT} == known


def test_the_engine_that_runs_beside_a_killed_leader_leads(stack: Stack, known: dict[str, int]) -> None:
    until(lambda: is_healthy(stack), "healthy before")
    engines = {name: stack.pid_of(name) for name in ("engine", "engine_2")}
    leader = stack.leading_engine()
    (killed,) = [name for name, pid in engines.items() if pid == leader]
    (standby,) = [pid for pid in engines.values() if pid != leader]
    os.kill(leader, signal.SIGKILL)
    until(lambda: stack.leading_engine() == standby, "the standby leads")
    known[killed] = stack.pid_of(killed, unlike=leader, within_s=120)
    assert {name: stack.pid_of(name) for name in engines} == {name: known[name] for name in engines}
    assert stack.leading_engine() == standby  # the leader's successor waits


def test_the_agent_that_replaces_a_killed_one_watches_quiet_models(stack: Stack, known: dict[str, int]) -> None:
    until(lambda: is_healthy(stack), "healthy before")
    watcher = "SELECT split_part(owner, ':', 2) FROM ledger_lease WHERE name = 'sleep_watch'"
    with psycopg.connect(stack.database_url, autocommit=True) as session:
        until(lambda: session.execute(watcher).fetchone() == (str(known["agent"]),), "the agent watches")
        os.kill(before := known["agent"], signal.SIGKILL)
        known["agent"] = stack.pid_of("agent", unlike=before, within_s=120)
        until(lambda: session.execute(watcher).fetchone() == (str(known["agent"]),), "the new agent watches")
    until(lambda: is_healthy(stack), "healthy again")


def test_engine_worker_and_control_plane_killed_at_once_come_back(stack: Stack, known: dict[str, int]) -> None:
    names = ["engine", "engine_2", "worker", "control_plane"]
    before = {name: stack.pid_of(name) for name in names}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    known.update({name: stack.pid_of(name, unlike=pid, within_s=120) for name, pid in before.items()})
    assert all(known[name] != pid for name, pid in before.items())
    until(lambda: is_healthy(stack), "healthy again")


def test_a_gateway_killed_while_its_control_plane_is_frozen_serves_what_it_had(
    stack: Stack, known: dict[str, int]
) -> None:
    until(lambda: is_healthy(stack), "healthy before")
    frozen, envoy = stack.pid_of("control_plane"), stack.pid_of("envoy")
    url = f"{stack.gateway_http}/v2/models/sentiment/infer"
    answer = get(url)
    os.kill(frozen, signal.SIGSTOP)
    try:
        os.kill(envoy, signal.SIGKILL)
        known["envoy"] = stack.pid_of("envoy", unlike=envoy, within_s=120)
        until(lambda: is_healthy(stack), "the gateway serves")
        assert get(url) == answer
        assert "Envoy is served the last snapshot" in stack.log_of("relay").read_text()
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert stack.pid_of("control_plane") == frozen


def test_a_stop_or_a_killed_supervisor_leaves_nothing_and_the_next_start_finds_everything(lives: Lives) -> None:
    assert lives.first.left == [] and lives.second.left == []
    assert lives.second.ports == lives.first.ports
    assert lives.first.stack.admin_password
    assert lives.second.stack.admin_password == ""
    assert "sign in as" not in lives.second.said


def test_a_gateway_whose_port_was_taken_meanwhile_moves_and_says_so(lives: Lives, stack: Stack) -> None:
    until(lambda: is_healthy(stack), "healthy")
    taken, moved = lives.first.ports["gateway_http"], urlsplit(stack.gateway_http).port
    told = f"Port {taken} is taken by another program: the gateway listens for HTTP on port {moved} from now on."
    assert stack.log_of("up").read_text().count(told) == 2  # at once, and beside the addresses
    assert is_bound_by(stack.pid_of("envoy"), moved) is True
    assert is_bound_by(stack.pid_of("envoy"), taken) is False
