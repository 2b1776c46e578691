"""What is kept of a server that failed a gate or was lost in it: it goes into the report, since its folder goes with the server.

The log is the one that its node's agent keeps of servers that no user reaches: without paths, secrets and control characters.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import asdict
from time import sleep
from typing import Any

from serving.ports import InferenceError, InferenceServer
from serving.targets.port import ServerEnd, TrialServer
from validators.core.verdict import Judgement

#: Of each, in UTF-8.
MOST_LOG_BYTES, MOST_STATISTICS_BYTES, MOST_REASON_BYTES = 8_192, 4_096, 2_048
#: How often is looked, and how long between, until the agent has noted how a server that does not answer ended.
_LOOKS, _LOOK_EVERY_S = 20, 0.25


def with_last_words(
    judgement: Judgement, server: TrialServer, client: InferenceServer, model: str, *, pulse: Callable[[str], None]
) -> Judgement:
    """The judgement with `server` in its evidence: the end of its log, how it ended, its last reading, its statistics.

    A server that does not answer is given some seconds, in which its agent may note how it ended; `pulse` may end that.
    """
    if not _answers(client):
        for _ in range(_LOOKS):
            if server.end() is not None:
                break
            pulse("waits to know how its server ended")
            sleep(_LOOK_EVERY_S)
    return Judgement(
        judgement.verdict,
        judgement.reason,
        {**judgement.evidence, "server": {**of_server(server), "statistics": _statistics(client, model)}},
    )


def of_server(server: TrialServer) -> dict[str, Any]:
    """{"log", "exit_code", "signal", "ended", "last_reading"}, each None if it is unknown. Bounded."""
    end = server.end() or ServerEnd()
    reading, log = server.last_reading(), server.log()
    return {
        "log": None if log is None else _end_of(log, MOST_LOG_BYTES),
        "exit_code": end.exit_code,
        "signal": _signal(end.exit_code),
        "ended": _end_of(end.reason, MOST_REASON_BYTES) or None,
        "last_reading": None if reading is None else {"at_s": round(reading.at_s, 3), **asdict(reading.use)},
    }


def _answers(client: InferenceServer) -> bool:
    try:
        return client.is_live()
    except InferenceError:
        return False


def _statistics(client: InferenceServer, model: str) -> dict[str, Any] | None:
    """None where it does not tell, or more than is kept."""
    try:
        found = client.statistics(model)
    except InferenceError:
        return None
    return found if len(json.dumps(found, default=str).encode()) <= MOST_STATISTICS_BYTES else None


def _signal(exit_code: int | None) -> str | None:
    """SIGKILL for -9; None for an end that no signal brought."""
    if exit_code is None or exit_code >= 0:
        return None
    known = {one.value: one.name for one in signal.Signals}
    return known.get(-exit_code, f"signal {-exit_code}")


def _end_of(text: str, most_bytes: int) -> str:
    """Its last lines, of which the first may be cut."""
    whole = text.encode()
    return text if len(whole) <= most_bytes else f"…{whole[3 - most_bytes :].decode(errors='ignore')}"
