"""The Python client of the REST API, which the command line uses too: `from sluicegate.client import Client`.

    with Client("https://sluicegate.example.com", token) as client:
        gates = client.wait_for_gates(client.start_gates("sentiment/r14"))
        if gates["verdict"] == "passed":
            ended = client.wait_for_rollout(client.start_rollout("sentiment/r14"))
            print(ended["state"], ended["reason"])

Answers are the API's own JSON, as docs/openapi.json states it.
"""

from sluicegate.client.client import Client
from sluicegate.client.errors import ClientError, Problem, StillRunning, Unreachable

__all__ = ["Client", "ClientError", "Problem", "StillRunning", "Unreachable"]
