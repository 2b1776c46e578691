"""A trace that is removed just as a policy or a gate run comes to name it."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import pytest

from accounts.core.access import Actor
from registry.actions import change_model
from registry.models import Release, ServedModel
from tests.support.worlds.gate_setup import developer, model, release, stage  # noqa: F401
from tests.support.worlds.lock_races import behind
from validators import actions
from validators.models import GateRun, Trace

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,  # threads that wait for one another
    pytest.mark.usefixtures("stage"),
]


@pytest.fixture
def digest(developer: Actor, model: ServedModel) -> str:
    return actions.add_trace(actor=developer, model=model, recording=b"1\n2\n4\n")[0].digest


@pytest.fixture
def policy(model: ServedModel, digest: str) -> dict[str, object]:
    """The gate policy that names the trace."""
    return {**model.gate_policy, "load": {**model.gate_policy["load"], "trace": digest}}


def test_a_trace_that_just_came_into_the_policy_stays(
    developer: Actor, model: ServedModel, digest: str, policy: dict[str, object]
) -> None:
    def change() -> None:
        change_model(actor=developer, model=model, expected_version=model.version, changes={"gate_policy": policy})

    assert behind(change, lambda: actions.remove_trace(actor=developer, model=model, digest=digest)) == "trace_used"
    assert Trace.objects.get().digest == digest


def test_of_a_gate_run_and_the_removal_of_its_trace_the_first_wins(
    developer: Actor, release: Release, digest: str, policy: dict[str, object]
) -> None:
    """The policy names another by then, which changes nothing for the gate run."""
    model = ServedModel.objects.get(pk=release.model_id)
    model.gate_policy = policy
    release.model = model

    def request() -> None:
        actions.request_gate_run(actor=developer, release=release)

    def remove() -> None:
        actions.remove_trace(actor=developer, model=model, digest=digest)

    assert behind(remove, request) == "no_such_trace" and not GateRun.objects.exists()
    actions.add_trace(actor=developer, model=model, recording=b"1\n2\n4\n")
    assert behind(request, remove) == "trace_used" and Trace.objects.get().digest == digest
