"""The management address of a process, and where Prometheus finds it."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test import Client

from ledger.actions.processes import note_process
from ledger.models import ProcessAddress
from sluicegate.management_address import MOST_AT_ONCE, ManagementServer
from tests.support.rigs.gateway_rig import wait_until
from tests.support.worlds.factories import make_release, make_replica, make_server

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def served() -> Iterator[ManagementServer]:
    server = ManagementServer("127.0.0.1:0", "engine")
    yield server
    server.close()


def get(address: str, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=30)) as line:
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, answer.read().decode()


def test_a_process_answers_probes_and_prometheus_and_says_where(served: ManagementServer) -> None:
    assert get(served.address, "/livez") == (200, "engine runs\n")
    assert get(served.address, "/readyz") == (200, "engine is ready\n")
    status, text = get(served.address, "/metrics")
    assert status == 200 and "process_cpu_seconds_total" in text and "_created" not in text
    assert get(served.address, "/")[0] == 404
    wait_until(
        lambda: ProcessAddress.objects.filter(address=served.address, name="engine").exists(), "it told the database"
    )


def test_without_its_database_a_process_lives_and_is_not_ready(
    served: ManagementServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise OSError("gone")

    monkeypatch.setattr(type(connection._connections["default"]), "cursor", lambda self: away())  # type: ignore[attr-defined]
    assert get(served.address, "/livez")[0] == 200
    assert get(served.address, "/readyz") == (503, "The database does not answer: OSError.\n")


def test_who_holds_all_places_leaves_them_again(served: ManagementServer) -> None:
    host, _, port = served.address.partition(":")
    held = [socket.create_connection((host, int(port)), timeout=30) for _ in range(MOST_AT_ONCE)]
    with pytest.raises((http.client.HTTPException, OSError)):
        get(served.address, "/livez")
    for one in held:
        one.close()

    def answers() -> bool:
        try:
            return get(served.address, "/livez")[0] == 200
        except (http.client.HTTPException, OSError):
            return False

    wait_until(answers, "a place is free again")


@pytest.mark.parametrize("address", ["9090", "127.0.0.1:", "127.0.0.1:x", ":1", "127.0.0.1:99999"])
def test_what_is_no_address_is_refused_in_words(address: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="write one such as"):
        ManagementServer(address, "engine")


def test_prometheus_finds_processes_and_servers(admin_client: Client) -> None:
    note_process("127.0.0.1:7", "engine")
    release = make_release()
    make_server(make_replica(release), metrics_port=9)
    found = admin_client.get("/api/v1/prometheus-targets").json()
    assert found[0] == {"targets": ["127.0.0.1:7"], "labels": {"job": "sluicegate", "process": "engine"}}
    [server] = found[1:]
    assert server["targets"] == ["127.0.0.1:9"]
    assert (
        server["labels"].items() >= {"job": "inference", "model": release.model.slug, "release": release.name}.items()
    )
