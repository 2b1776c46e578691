"""The five exit codes, and which outcome gives which. CI scripts branch on these, so they never change.

0  ok
1  a gate failed or stayed undecided, a digest did not match, or the rollout was rolled back or never got live
2  infrastructure: a server cannot be reached, answered 5xx or 429, a token ended while it was in use, or a check broke
   (verdict errored) or is unknown here (an engine plan's verdict unknown)
3  refused: by permission, policy, state or validation (any other 4xx), by a local check, a certificate that is not
   trusted, or wrong usage
4  the wait ended and the rollout did not: --timeout passed, it is paused, or the token ended;
   the judge is inconclusive
"""

from __future__ import annotations

OK, FAILED, INFRASTRUCTURE, REFUSED, UNDER_WAY = 0, 1, 2, 3, 4


def of_status(status: int) -> int:
    """The exit code for an HTTP status: 2 for 5xx, 408 and 429, 3 for every other 4xx, else 0."""
    if status >= 500 or status in {408, 429}:
        return INFRASTRUCTURE
    return REFUSED if status >= 400 else OK


def of_verdict(verdict: str) -> int:
    """passed → 0 · errored → 2, because the check itself failed · all else → 1."""
    return {"passed": OK, "errored": INFRASTRUCTURE}.get(verdict, FAILED)


def of_build(verdict: str) -> int:
    """built → 0 · failed → 1, the graph is bad · unknown → 2, without a verdict."""
    return {"built": OK, "failed": FAILED}.get(verdict, INFRASTRUCTURE)


def of_rollout(state: str) -> int:
    """promoted → 0 · rejected → 3, by a person or a policy · every other end → 1."""
    return {"promoted": OK, "rejected": REFUSED}.get(state, FAILED)
