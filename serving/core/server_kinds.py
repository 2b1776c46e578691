"""Knowledge of inference servers by the name in their metadata."""

from __future__ import annotations

from typing import Final

#: Servers that answer the liveness call on threads of their own, while a model computes. Others answer it on the event
#: loop that runs the model: a model that computes there for a minute keeps the call waiting for a minute.
#: Source: `tests/contracts/test_liveness.py`, on real servers.
TELLS_LIVE: Final = frozenset({"triton"})


def tells_live(name: str) -> bool:
    """Whether silence of this server's liveness call means that its process is frozen."""
    return name in TELLS_LIVE
