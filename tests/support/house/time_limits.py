"""The table of all time limits beside `objectives.timeout_s`: `make time-limits` writes it to docs/time-limits.md.

Values come from the code that keeps them. A limit that follows from the objectives is called for several of them; another
limit states why it cannot contradict them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import django
from django.apps import apps

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
if not apps.ready:
    django.setup()

from accounts.api import waiting
from rollouts.core.presets import PRESETS
from serving.targets.agent import server_shim, static_launcher
from serving.targets.agent.timings import AgentTimings
from serving.targets.core import health, sleep
from serving.traffic.adapters import envoy_bootstrap
from serving.traffic.control_plane import clusters, listener, request_guard, virtual_hosts
from serving.traffic.core.request_limits import USUAL_LIMITS, Limits, limits_stated
from sluicegate import settings
from validators.core.policy import parse_policy
from validators.core.request_time import ASKING

#: For which values of `objectives.timeout_s` the table shows a limit that follows from it, in seconds.
SHOWN_S = (1, 10, 120, 600)
PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "time-limits.md"
BEGIN, END = "<!-- begin: make time-limits -->", "<!-- end -->"
PACE = AgentTimings()


@dataclass(frozen=True)
class Follows:
    """A limit that is derived from a model's objectives. `at`: its value in seconds for a `timeout_s`.

    `covers`: a request that takes its whole `timeout_s` never meets it.
    """

    who: str
    what: str
    at: Callable[[float], float]
    why: str
    covers: bool = True


@dataclass(frozen=True)
class Apart:
    """A limit that no request can meet: it times something else, or ends nothing. `why` states that."""

    who: str
    what: str
    value_s: float
    why: str


def policy_of(timeout_s: float) -> Any:
    return parse_policy({}, {"timeout_s": timeout_s})


def limits_of(timeout_s: float) -> Limits:
    return limits_stated({"timeout_s": timeout_s}, USUAL_LIMITS)


def busy_s(silent_s: float) -> Callable[[float], float]:
    return lambda timeout_s: health.Timeouts.of(silent_s=silent_s, request_s=timeout_s).busy_s


def of_gate(name: str) -> Callable[[float], float]:
    return lambda timeout_s: float(policy_of(timeout_s).of(name)["timeout_s"])


FOLLOWING: tuple[Follows, ...] = (
    Follows("gateway", "whole request, HTTP and gRPC", lambda t: limits_of(t).timeout_s, "it is `timeout_s`"),
    Follows(
        "gateway",
        "first attempt, if another server can answer",
        lambda t: limits_of(t).attempt_timeout_s,
        "`attempt_timeout_s`, else the installation's and half of the whole's excess over the installation's; the first "
        "attempt goes on beside the second, and the first answer counts",
        covers=False,
    ),
    Follows(
        "gateway",
        "pause within a stream; a stream itself has no limit",
        virtual_hosts.stream_idle_s,
        "no shorter than a request",
    ),
    Follows(
        "agent",
        "no finished request, for a live server",
        busy_s(health.HUNG_AFTER_S),
        "the longest that a running request may take; 600 s for a release that streams, and without a gateway",
    ),
    Follows(
        "agent",
        "the same, last server of stable",
        busy_s(health.HUNG_AFTER_LAST_STABLE_S),
        "the longest that a running request may take",
    ),
    Follows(
        "agent",
        "the same, for servers that compute on the event loop that answers (KServe, MLServer)",
        lambda t: health.Timeouts.of(silent_s=health.HUNG_AFTER_S, request_s=t, tells_live=False).busy_s,
        "one request may stand behind another, and such a server counts nothing",
    ),
    Follows(
        "agent",
        "requests of a server that leaves, before it is ended",
        lambda t: max(PACE.drain, t),
        "it waits while callers hold connections; `lifecycle.drain_s` may add to it",
    ),
    Follows("agent", "one warm-up request", lambda t: max(PACE.warmup_timeout, t), "no shorter than a request"),
    *(
        Follows(
            "gates",
            f"`{name}.timeout_s`, one request",
            of_gate(name),
            "the policy's; less than an attempt is refused at save",
        )
        for name in ASKING
    ),
    Follows(
        "gates",
        "`cold_start.max_s`, until ready",
        lambda t: float(policy_of(t).of("cold_start")["max_s"]),
        "the policy's; a start ends with an inference",
    ),
    Follows(
        "gates",
        "`gate_timeout_s`, a whole gate",
        lambda t: float(policy_of(t).gate_timeout_s),
        "the policy's, or 60 requests; less than a request is refused at save",
    ),
    Follows(
        "prober",
        "one shadow request",
        lambda t: limits_of(t).attempt_timeout_s,
        "the time of an attempt; late answers are not compared",
        covers=False,
    ),
)

APART: tuple[Apart, ...] = (
    Apart("gateway", "head of a request", listener.HEAD_WITHIN_S, "over before the request runs"),
    Apart("gateway", "body of a request received", request_guard.BODY_WITHIN_S, "over before the request runs"),
    Apart("gateway", "first answer of a stream", virtual_hosts.REQUEST_WITHIN_S, "longer than any request"),
    Apart("gateway", "request that stands still", virtual_hosts.UNARY_IDLE_S, "longer than any request"),
    Apart("gateway", "connecting to a server", clusters.CONNECT_TIMEOUT_S, "over before the request runs"),
    Apart(
        "gateway",
        "copy for the prober",
        clusters.MIRROR_TIMEOUT_S,
        "the prober takes it at once, and no user waits for it",
    ),
    Apart(
        "gateway",
        "request that stands still, memory nearly full",
        envoy_bootstrap.PATIENT_S,
        "only from 70 % of its memory on, and then requests are ended on purpose",
    ),
    Apart(
        "gateway",
        "ping of the control plane's connection",
        float(envoy_bootstrap.KEEPALIVE["timeout"].rstrip("s")),
        "carries no request; neither callers' nor servers' connections are pinged or have a longest duration",
    ),
    Apart(
        "agent",
        "liveness call unanswered",
        health.HUNG_AFTER_S,
        "needs no model, and is asked only of servers that answer it while they compute",
    ),
    Apart("agent", "the same, last server of stable", health.HUNG_AFTER_LAST_STABLE_S, "as above"),
    Apart("agent", "one health probe", PACE.probe_timeout, "a late probe ends no server"),
    Apart("agent", "the same, after a late probe", PACE.patient_timeout, "a late probe ends no server"),
    Apart("agent", "gateways take the end of a server", PACE.follow, "the drain begins after it"),
    Apart("agent", "a server's own end", server_shim.EXIT_GRACE_S, "the drain is over before it"),
    Apart(
        "agent",
        "loading, if the envelope states nothing",
        PACE.load_timeout,
        "no request runs before; `lifecycle.load_timeout_s` replaces it",
    ),
    Apart("agent", "one look at a static server", static_launcher._LOOK_S, "no answer in time ends nothing"),
    Apart("sleep", "least idle time", float(sleep.LEAST_S), "a model with something in flight does not sleep"),
    Apart(
        "jobs", "lease of a job", settings.JOB_LEASE_S, "a thread of its own renews it while a gate waits for a request"
    ),
    Apart(
        "engine",
        "`no_data_s` of the presets",
        float(min(one["no_data_s"] for one in PRESETS.values())),
        "without an attempt that ended the rollout holds; it goes on by itself",
    ),
    Apart(
        "engine",
        "`prepare_deadline_s` of the presets",
        float(min(one["prepare_deadline_s"] for one in PRESETS.values())),
        "no request runs before",
    ),
    Apart(
        "engine",
        "`stable_gone_s` of the presets",
        float(min(one["stable_gone_s"] for one in PRESETS.values())),
        "stable has no server then; a longer cold start that stable declares replaces it",
    ),
    Apart("API", "one wait for a run (`wait`)", waiting.MOST_S, "answers 202, and is asked again"),
)


def table() -> str:
    """The two tables as Markdown."""
    head = " | ".join(f"{shown} s" for shown in SHOWN_S)
    lines = [f"| who | what | {head} | from |", f"|---|---|{'---|' * len(SHOWN_S)}---|"]
    for one in FOLLOWING:
        values = " | ".join(f"{one.at(shown):g}" for shown in SHOWN_S)
        lines.append(f"| {one.who} | {one.what} | {values} | {one.why} |")
    lines += ["", "| who | what | s | why it contradicts no request |", "|---|---|---|---|"]
    lines += [f"| {one.who} | {one.what} | {one.value_s:g} | {one.why} |" for one in APART]
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the table of now between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
