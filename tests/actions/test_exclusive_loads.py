"""Two loads on one machine: the second waits, says for whom, and goes on when the first is done or dead."""

# ruff: noqa: F811 - fixtures are named as they are used

from __future__ import annotations

import pytest

import validators.execution.exclusive
from accounts.core.access import Actor
from ledger.actions import leases
from registry.models import Release
from serving.models import Node, Replica
from tests.support.worlds.gate_setup import Stage, developer, model, release, stage, validated  # noqa: F401
from validators.execution.exclusive import Disturbed, alone_on
from validators.models import GateResult

pytestmark = pytest.mark.django_db
TERM_S = 30.0


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was said before each nap; at the third the other load is over."""
    said: list[str] = []

    def nap(_: float) -> None:
        if len(said) == 3:
            leases.release("load:n1", "gate run 7 of search r2", 1)

    monkeypatch.setattr(validators.execution.exclusive, "sleep", nap)
    return said


def test_the_second_waits_and_says_for_whom(naps: list[str]) -> None:
    assert leases.acquire("load:n1", "gate run 7 of search r2", TERM_S) == 1
    with alone_on("n1", owner="gate run 8 of search r3", say=naps.append) as keep:
        assert leases.holder("load:n1") == "gate run 8 of search r3"
        keep()
    assert naps == ["waits for gate run 7 of search r2 on n1"] * 3
    assert leases.holder("load:n1") is None


def test_other_machines_are_not_waited_for(naps: list[str]) -> None:
    assert leases.acquire("load:n1", "gate run 7 of search r2", TERM_S) == 1
    with alone_on("n2", owner="gate run 8 of search r3", say=naps.append):
        pass
    assert naps == []


def test_a_machine_is_given_back_when_the_gate_breaks_and_when_the_wait_ends() -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(ZeroDivisionError), alone_on("n1", owner="a", say=stop):
        raise ZeroDivisionError
    assert leases.acquire("load:n1", "b", TERM_S)
    with pytest.raises(KeyboardInterrupt), alone_on("n1", owner="c", say=stop):
        pass
    assert leases.holder("load:n1") == "b"


def test_a_load_that_slept_past_its_term_is_told_of_the_other(monkeypatch: pytest.MonkeyPatch, naps: list[str]) -> None:
    now = [0.0]
    monkeypatch.setattr(validators.execution.exclusive, "monotonic", lambda: now[0])
    with alone_on("n1", owner="gate run 8", say=naps.append) as keep:
        leases.release("load:n1", "gate run 8", 1)  # as if its term had run out
        assert leases.acquire("load:n1", "gate run 9", TERM_S)
        keep()  # it asks only now and then
        now[0] = 6.0
        with pytest.raises(Disturbed, match="gate run 9 began on n1 meanwhile"):
            keep()
    assert leases.holder("load:n1") == "gate run 9"


def test_a_gate_run_waits_for_its_machine_before_its_load_alone(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gates before it need no machine of their own; who looks at the run meanwhile reads for whom it waits."""
    node = Node.objects.get()
    assert leases.acquire(f"load:{node.name}", "gate run 7 of search r2", TERM_S)
    seen: list[list[tuple[str, str]]] = []

    def nap(_: float) -> None:
        seen.append(list(GateResult.objects.order_by("position").values_list("verdict", "reason")))
        leases.release(f"load:{node.name}", "gate run 7 of search r2", 1)

    monkeypatch.setattr(validators.execution.exclusive, "sleep", nap)
    gate_run = validated(developer, release)
    assert gate_run.verdict == "passed"
    (meanwhile,) = seen
    assert [verdict for verdict, _ in meanwhile] == ["passed", "passed", "passed", ""]
    assert meanwhile[3][1] == f"waits for gate run 7 of search r2 on {node.name}"
    assert gate_run.results.get(gate="load").reason.endswith("proven at confidence 0.95.")
    assert Replica.objects.get().node == node
    assert leases.holder(f"load:{node.name}") is None
