"""Clients of the servers that are probed, each made once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from serving.ports import InferenceServer
from serving.servers.clients import Client, client_of
from serving.traffic.core.routes import ServerAddress

#: An idle client is closed after this long: longer than any request takes.
IDLE_S = 60.0


class ProbeClient(InferenceServer, Protocol):
    def close(self) -> None: ...


Connect = Callable[[ServerAddress], ProbeClient]


def connect(endpoint: ServerAddress) -> Client:
    return client_of(endpoint.host, endpoint.http_port, endpoint.grpc_port, endpoint.speaks)


class Servers:
    """From any thread."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._clients: dict[ServerAddress, ProbeClient] = {}
        self._needed_at: dict[ServerAddress, float] = {}

    def at(self, endpoint: ServerAddress) -> ProbeClient:
        with self._lock:
            if endpoint not in self._clients:
                self._clients[endpoint] = self._connect(endpoint)
            self._needed_at[endpoint] = time.monotonic()
            return self._clients[endpoint]

    def keep(self, endpoints: Iterable[ServerAddress]) -> None:
        """Closes the clients of all others that were not needed lately."""
        now = time.monotonic()
        with self._lock:
            self._needed_at.update({one: now for one in endpoints if one in self._clients})
            idle = [one for one, at in self._needed_at.items() if now - at > IDLE_S]
            closing = [self._clients.pop(one) for one in idle]
            for one in idle:
                del self._needed_at[one]
        for client in closing:
            client.close()

    def close(self) -> None:
        with self._lock:
            clients, self._clients, self._needed_at = list(self._clients.values()), {}, {}
        for client in clients:
            client.close()
