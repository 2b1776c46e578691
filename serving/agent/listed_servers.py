"""Tends the servers that environments list: an agent for each, all in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connection

from serving.agent.node_agent import Agent
from serving.models import ListedServer
from serving.queries.static_servers import listed_servers

log = logging.getLogger(__name__)
LOOK_EVERY_S = 2.0


class ListedServers:
    """Runs `make(server)` in a thread while the server is listed. A server that is listed anew, with another address for example,
    gets another agent.

    Nothing is kept but what the database and the servers themselves hold, so the process may end at any time.
    """

    def __init__(self, make: Callable[[ListedServer], Agent]) -> None:
        self._make = make
        self._agents: dict[tuple[object, ...], tuple[Agent, threading.Thread]] = {}
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Works until `stop()`. Releases stay on their servers."""
        while not self._stop.is_set():
            try:
                self.look()
            except (OperationalError, InterfaceError) as error:
                log.warning("the listed servers cannot be read (%s); trying again", str(error).partition("\n")[0])
                connection.close()
            self._stop.wait(LOOK_EVERY_S)
        self._end(list(self._agents))
        connection.close()

    def look(self) -> None:
        """Begins and ends agents, so that each listed server has one."""
        listed = {(server.node_id, server.listed_at): server for server in listed_servers()}
        self._end([key for key in self._agents if key not in listed])
        for key, server in listed.items():
            if key not in self._agents:
                agent = self._make(server)
                thread = threading.Thread(target=agent.run, name=f"server-{server.node_id}", daemon=True)
                self._agents[key] = (agent, thread)
                thread.start()

    def _end(self, keys: list[tuple[object, ...]]) -> None:
        ended = [self._agents.pop(key) for key in keys]
        for agent, _ in ended:
            agent.stop()
        for _, thread in ended:
            thread.join()
