"""The Python client of the REST API, which the command line uses too: `from sluicegate.client import Client`.

    with Client("https://sluicegate.example.com", token) as client:
        release = client.push("release/", has_gates=True)
        if release["gate_run"]["verdict"] == "passed":
            rollout = client.start_rollout(f"{release['model']}/{release['name']}")
            ended = client.wait_for_rollout(rollout["id"])
            print(ended["state"], ended["reason"])

Answers are the API's own JSON, as docs/openapi.json states it.
"""

from sluicegate.client.client import Client
from sluicegate.client.errors import (
    ClientError,
    Expired,
    LostSight,
    Mistake,
    Problem,
    StillRunning,
    Unreachable,
    Untrusted,
)

__all__ = [
    "Client",
    "ClientError",
    "Expired",
    "LostSight",
    "Mistake",
    "Problem",
    "StillRunning",
    "Unreachable",
    "Untrusted",
]
