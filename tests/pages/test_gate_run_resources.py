"""What a server used, and what was kept of one that failed, on the page of a gate run."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from serving.targets.core.use import Reading, Use
from tests.pages.test_gate_run_page import judge, member, running, shown  # noqa: F401
from validators.core.answered import Answered
from validators.core.envelope import judged
from validators.core.policy import parse_policy
from validators.core.resources import judge_resources
from validators.models import GateResult, GateRun
from web.pages.gate_plots import memory_plot

pytestmark = pytest.mark.django_db
MIB = 2**20


def evidence(per_request: float, *, memory_mib: int | None = 512) -> dict[str, Any]:
    """Of our own judge."""
    found = [
        Reading(at / 2, Use(300 * MIB, round(90 * MIB + per_request * 20 * at), 3 * MIB, at * 0.1, 70))
        for at in range(121)
    ]
    envelope = {"host": {"memory_mib_min": memory_mib}} if memory_mib else {}
    policy = parse_policy({"gates": ["resources"]})
    judgement = judge_resources(found, Answered(0.0, (40,) * 60), policy.of("resources"))
    args = (envelope, policy.of("envelope"))
    return judged(judgement, "resources", *args, hardware="NVIDIA L4", uses_gpu=False).evidence


def test_it_shows_what_was_held_what_is_declared_and_how_it_grew(member: Client, running: GateRun) -> None:
    GateResult.objects.create(gate_run=running, gate="resources", position=2)
    judge(running, "resources", evidence(10486.0), "failed")
    page = shown(member, "gate_run", running)
    assert '<th scope="row">memory</th><td class="num">300 MiB</td>' in page
    assert '<th scope="row">GPU memory</th><td class="num">unknown</td>' in page
    assert ">host.memory_mib_min</code>" in page and "512 MiB" in page
    assert "It leaks: its memory grew by 10486 bytes a request" in page
    assert "Memory grew by 10486 bytes a request <span" in page
    assert "<dt>most memory</dt>" in page and "<dt>cpu time per request</dt>" in page and "5.00 ms" in page
    assert 'id="plot-memory"' in page and "512 MiB are declared" in page


def test_the_plot_has_the_line_that_was_fitted_and_none_where_there_is_no_growth() -> None:
    found = memory_plot(evidence(10486.0))
    assert found is not None and [one.label for one in found.key] == ["all memory", "allocated", "its growth"]
    few = evidence(0.0, memory_mib=None) | {"growth": None}
    plain = memory_plot(few)
    assert plain is not None and len(plain.key) == 2
    assert memory_plot({"leak": "unknown"}) is None


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ({"exit_code": -9, "signal": "SIGKILL"}, "Last output of the server, which SIGKILL ended"),
        ({"exit_code": 3, "signal": None}, "which ended with status 3"),
        ({"exit_code": None, "signal": None}, "Last output of the server</summary>"),
    ],
)
def test_the_last_words_of_a_server_are_shown_escaped(
    member: Client, running: GateRun, end: dict[str, Any], says: str
) -> None:
    kept = {"log": "E1 <b>out of memory</b>", "ended": None, "last_reading": None, "statistics": None, **end}
    judge(running, "golden", {"server": kept}, "errored")
    page = shown(member, "gate_run", running)
    assert says in page.replace(" </summary>", "</summary>") and "E1 &lt;b&gt;out of memory" in page
    judge(running, "load", {"server": {**kept, "log": None}}, "errored")
    assert "No log was kept of it." in shown(member, "gate_run", running)
