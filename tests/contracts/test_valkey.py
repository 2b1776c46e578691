"""Our own Valkey: what the stack relies on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from sluicegate.stack.valkey import Valkey


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path)
    yield server
    server.stop()


def test_it_keeps_what_it_holds_over_a_stop_and_its_port(valkey: Valkey) -> None:
    url = valkey.start()
    with redis.Redis.from_url(url) as client:
        client.set("kept", "7")
    assert valkey.start() == url  # idempotent
    valkey.stop()
    assert not valkey.is_ready()
    assert valkey.start() == url
    with redis.Redis.from_url(url) as client:
        assert client.get("kept") == b"7"


def test_a_kill_loses_nothing_older_than_a_second(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.start()) as client:
        client.rpush("queue", *range(500))
        client.execute_command("WAITAOF", 1, 0, 60_000)  # until it is on disk, as everysec does within a second
    assert valkey.process is not None
    valkey.process.kill()
    valkey.process.wait()
    with redis.Redis.from_url(valkey.start()) as client:
        assert client.llen("queue") == 500


def test_only_this_machine_with_the_password_gets_in_and_nothing_is_evicted(valkey: Valkey) -> None:
    url = valkey.start()
    with redis.Redis(port=valkey.port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    with redis.Redis.from_url(url) as client:
        assert client.config_get("bind")["bind"] == "127.0.0.1"
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert client.config_get("appendonly")["appendonly"] == "yes"


def test_the_password_is_not_on_the_command_line(valkey: Valkey, tmp_path: Path) -> None:
    valkey.start()
    assert valkey.process is not None
    password = (tmp_path / "secrets" / "valkey").read_text().strip()
    assert password not in Path(f"/proc/{valkey.process.pid}/cmdline").read_text()
