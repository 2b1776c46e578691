"""Everybody who is killed."""

from __future__ import annotations

from tests.kills.agent_runs import AGENTS, AgentVictim
from tests.kills.campaign import Victim
from tests.kills.engine_runs import EngineVictim
from tests.kills.fleet_stories import STORIES as FLEET_STORIES
from tests.kills.fleet_web_runs import ASKERS, Asker
from tests.kills.notify_runs import NOTIFICATIONS
from tests.kills.plane_runs import PLANES
from tests.kills.relay_runs import RELAYS, RelayVictim, in_place
from tests.kills.stories import STORIES
from tests.kills.web_runs import VERBS
from tests.kills.worker_runs import GATE_RUNS


def torn() -> list[Victim]:
    """An engine, an agent and a web process whose transactions are committed in their middle, and a relay that writes its file in place:
    the kill test must find that out."""
    engines = [EngineVictim(story, is_torn=True) for story in STORIES if story.name == "breach"]
    agents = [AgentVictim(story, is_torn=True) for story in FLEET_STORIES if story.name == "comes up"]
    askers = [Asker(one.told, is_torn=True) for one in ASKERS if one.told.name == "gateway drained"]
    return [*engines, *agents, *askers, RelayVictim(in_place)]


def victims() -> list[Victim]:
    return [
        *(EngineVictim(story) for story in STORIES),
        *GATE_RUNS,
        *NOTIFICATIONS,
        *AGENTS,
        *PLANES,
        *RELAYS,
        *VERBS,
        *ASKERS,
    ]
