"""The ports that programs of this machine choose from, as somebody wrote them down."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from ledger.adapters.local_ports import ports_of
from serving.targets.agent import server_ports
from sluicegate.stack import tcp_ports
from sluicegate.stack.tcp_ports import ReservedPorts, is_free


def test_a_range_is_what_it_says() -> None:
    assert ports_of("20000-25999") == range(20_000, 26_000)
    assert ports_of("20000-20002") == range(20_000, 20_003)


@pytest.mark.parametrize(
    "told", ["", "20000", "20000-", "-20000", "20000-20001", "30000-20000", "80-200", "20000-70000", "a-b", "1-2-3"]
)
def test_what_is_no_range_stops_the_start_with_a_sentence(told: str) -> None:
    with pytest.raises(ValueError, match=r"^SLUICEGATE_PORTS=.* must be the first and the last of .*\.$"):
        ports_of(told)


@pytest.mark.parametrize("module", ["serving.targets.agent.server_ports", "sluicegate.stack.tcp_ports"])
def test_a_program_says_no_more_than_that(module: str) -> None:
    command = [sys.executable, "-c", f"import {module}"]
    ended = subprocess.run(
        command,
        env={"SLUICEGATE_PORTS": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1 and len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("SLUICEGATE_PORTS='' must be")


def test_a_reserved_port_is_no_other_programs_until_its_server_starts() -> None:
    with ReservedPorts() as reserved:
        port = next(one for one in tcp_ports.CHOICES if is_free(one))
        reserved.reserve(port)
        assert not is_free(port)
        with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", port)):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=30)
        reserved.reserve(port)  # it is reserved already
        reserved.release([port, port + 1])
        with socket.create_server(("127.0.0.1", port)):
            assert not is_free(port)
        reserved.reserve(port)
    assert is_free(port)


def test_a_narrow_range_has_ports_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    middle = server_ports.CHOICES.start + len(server_ports.CHOICES) // 2
    monkeypatch.setattr(server_ports, "CHOICES", range(middle, middle + 100))
    for _ in range(100):  # also what was given before, once all was
        found = server_ports.free_ports()
        assert len(set(found.values())) == 3 and set(found.values()) <= set(server_ports.CHOICES)


def test_servers_that_are_started_together_get_no_port_twice() -> None:
    given = [port for _ in range(100) for port in server_ports.free_ports().values()]
    assert len(set(given)) == 300
