"""The rows of the table, in their order, each with the bound that it is held to and where the bound comes from."""

from __future__ import annotations

from benchmarks.losses import cut, killed, takeover
from benchmarks.losses.scene import Found, Row, Scene, is_answering
from benchmarks.losses.story import Story
from benchmarks.losses.users import Question, anything
from benchmarks.losses.world import Machines

__all__ = ["ROWS", "Found", "Row", "Scene", "cast", "is_answering"]

_LEASE = "the lease is 3 s, a turn 1 s; a new leader's first turn and the gateways' word come on top"
ROWS = [
    Row("node killed", killed.node_killed, 8, 2.0, "what is in flight there, of 8 users; the rest is tried elsewhere"),
    Row("gateway killed", killed.gateway_killed, 0, 10.0, "its own users wait; of the other's none is lost"),
    Row("control plane killed", killed.plane_killed, 0, 5.0, "its streams end: Envoy calls again within 1 s, a trial takes 1 s"),
    Row("database killed", killed.database_killed, 0, 15.0, "services connect again; the lease is 3 s"),
    Row("node cut", cut.node_cut, 0, 15.0, "an attempt takes 2 s and is made again elsewhere; set aside for 3 s, 6 s, 9 s"),
    Row("node cut from one gateway", cut.node_cut_from_one, 0, 10.0, "as before; the other gateway does not notice"),
    Row("control plane cut", cut.plane_cut, 0, 25.0, "keep-alive: 10 s of silence, 10 s for an answer; a trial takes 1 s"),
    Row(
        "both control planes cut, a gateway restarts", cut.planes_cut_and_gateway_restarts, 0, 10.0,
        "it serves its snapshot once two trials of 1 s have failed",
    ),
    Row(
        "gateway cut while a rollback is decided", cut.gateway_cut_while_taken_back, 0, 25.0,
        "keep-alive, as above, or sooner: what was sent is sent again",
    ),
    Row("database cut from both engines", cut.database_cut, 0, 30.0, "what was sent is sent again; the lease; a turn"),
    Row("leader killed", takeover.engine_killed, 0, 10.0, _LEASE),
    Row("leader frozen", takeover.engine_frozen, 0, 30.0, f"{_LEASE}; gateways leave the frozen control plane after 20 s"),
    Row("leader cut from the database", takeover.engine_cut_from_database, 0, 10.0, _LEASE),
    Row("leader cut off", takeover.engine_cut_off, 0, 30.0, f"{_LEASE}; gateways leave its control plane after 20 s"),
]  # fmt: skip


def cast(machines: Machines) -> tuple[Story, Question]:
    """Who tells the story, and what its users ask."""
    story = Story(machines)
    return story, anything(story.model.slug)
