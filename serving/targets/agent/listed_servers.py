"""Tends the servers that environments list: an agent for each, all in this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import InterfaceError, InternalError, OperationalError, connection

from serving.models import ListedServer
from serving.targets.agent.node_agent import Agent
from serving.targets.queries.static_servers import listed_servers, why_out_of_bounds

log = logging.getLogger(__name__)
LOOK_EVERY_S = 2.0


class ListedServers:
    """Runs `make(server)` in a thread while the server is listed. A server that is listed anew, with another address for example,
    gets another agent, and so does a server whose agent ended by an error.

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
            except (OperationalError, InterfaceError, InternalError) as error:
                log.warning("the listed servers cannot be read (%s); trying again", str(error).partition("\n")[0])
                connection.close()
            except Exception:
                log.exception("the listed servers cannot be tended; it is tried again")
            self._stop.wait(LOOK_EVERY_S)
        self._end(list(self._agents))
        connection.close()

    def look(self) -> None:
        """Begins and ends agents, so that each listed server within the bounds has one that runs."""
        listed = {(one.node_id, one.listed_at): one for one in listed_servers() if not why_out_of_bounds(one)}
        self._end([key for key, (_, thread) in self._agents.items() if key not in listed or not thread.is_alive()])
        for key, server in listed.items():
            if key not in self._agents:
                try:
                    agent = self._make(server)
                except Exception:  # the other servers get their agents
                    log.exception("%s gets no agent; it is tried again", server.node_id)
                    continue
                thread = threading.Thread(target=_run, args=(agent,), name=f"server-{server.node_id}", daemon=True)
                self._agents[key] = (agent, thread)
                thread.start()

    def _end(self, keys: list[tuple[object, ...]]) -> None:
        ended = [self._agents.pop(key) for key in keys]
        for agent, _ in ended:
            agent.stop()
        for _, thread in ended:
            thread.join()


def _run(agent: Agent) -> None:
    try:
        agent.run()
    except Exception:
        log.exception("the agent of a listed server ended; another one begins")
