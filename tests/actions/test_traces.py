"""Traces of a model: what of a recording is kept, and the load that goes by one that a policy names."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, NotFound, Refused
from ledger.models import Event
from registry.models import Blob, Release, ServedModel
from registry.queries.gc_plan import present_plan
from registry.storage import store
from tests.support.worlds.factories import make_actor, make_model
from tests.support.worlds.gate_setup import Stage, developer, model, release, stage, validated  # noqa: F401
from validators import actions
from validators.core.load import arrivals
from validators.core.verdict import Judgement, Verdict
from validators.execution.gates import MEASURES, GateContext
from validators.execution.runners import load as load_runner
from validators.models import Trace
from validators.queries.traces import trace_gaps, traces_of

pytestmark = pytest.mark.django_db
RECORDING = b"timestamp,user\n10,mara\n10.25,jo\n10.75,mara\n"


def test_a_trace_keeps_the_gaps_of_a_recording_and_nothing_else(developer: Actor, model: ServedModel) -> None:
    found, is_new = actions.add_trace(actor=developer, model=model, recording=RECORDING)
    assert is_new and (found.gaps, found.lasts_s) == (2, 0.75)
    with store().open(found.blob_id) as stream:
        assert stream.read() == b"250000\n500000\n"
    assert list(trace_gaps(model, found.digest)) == [0.25, 0.5]
    again, is_new = actions.add_trace(actor=developer, model=model, recording=b"1\n1.25\n1.75\n")  # as it is kept
    assert (again, is_new) == (found, False) and list(traces_of(model)) == [found]
    assert Event.objects.get(verb="trace.added").facts == {"digest": found.digest, "gaps": 2}


@pytest.mark.parametrize(
    ("recording", "says"),
    [
        (b"1\n2\nsoon\n", "line 3 is no number of seconds"),
        (b"1\n2\n\xff\n", "line 3 is no UTF-8 text"),
        (b"", "it has no two instants"),
        (b"1\n" * 9_000_000, "it has more than 16 MiB"),
    ],
)  # fmt: skip
def test_a_recording_that_cannot_be_read_leaves_nothing(
    developer: Actor, model: ServedModel, recording: bytes, says: str
) -> None:
    before = Blob.objects.count()
    with pytest.raises(Invalid, match=says) as caught:
        actions.add_trace(actor=developer, model=model, recording=recording)
    assert caught.value.code == "trace_invalid"
    assert not Trace.objects.exists() and Blob.objects.count() == before


def test_who_may_not_change_what_gates_ask_adds_no_trace(model: ServedModel) -> None:
    with pytest.raises(Refused):
        actions.add_trace(actor=make_actor(Role.CI), model=model, recording=RECORDING)


def test_a_trace_is_never_changed_and_keeps_its_bytes(developer: Actor, model: ServedModel) -> None:
    found, _ = actions.add_trace(actor=developer, model=model, recording=RECORDING)
    with pytest.raises(IntegrityError, match="evidence names traces"), transaction.atomic():
        Trace.objects.update(gaps=1)
    Trace.objects.update(created_by=None)  # who added it may leave
    Blob.objects.update(created_at=timezone.now() - timedelta(days=400))
    (why,) = [item.reason for item in present_plan().items if found.blob_id in item.subject]
    assert why == f"needed by trace {found.pk}"


def test_the_table_of_traces_cannot_be_emptied() -> None:
    with pytest.raises(IntegrityError, match="evidence names traces"), transaction.atomic():
        connection.cursor().execute("TRUNCATE validators_trace")


def names(model: ServedModel, digest: str) -> None:
    model.gate_policy = {**model.gate_policy, "load": {**model.gate_policy["load"], "trace": digest}}
    model.save()


def test_the_load_goes_by_the_trace_that_the_policy_names(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = actions.add_trace(actor=developer, model=release.model, recording=b"0\n1\n2\n3\n10\n")
    names(release.model, found.digest)
    schedules: list[Any] = []
    drive = load_runner.drive
    monkeypatch.setattr(
        load_runner, "drive", lambda asked, schedule, **how: schedules.append(schedule) or drive(asked, schedule, **how)
    )
    gate_run = validated(developer, release)
    assert gate_run.verdict == "passed" and gate_run.policy["load"]["trace"] == found.digest
    assert (schedules[0] == arrivals(1000, 0.2, seed=1, trace=[1, 1, 1, 7])).all()
    assert len(set(np.diff(schedules[0]).round(9))) == 2


def test_every_gate_that_sends_a_load_gets_the_trace(
    stage: Stage, developer: Actor, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy names no load gate: the search alone follows the trace."""
    found, _ = actions.add_trace(actor=developer, model=release.model, recording=RECORDING)
    names(release.model, found.digest)
    release.model.gate_policy["gates"] = ["contract", "capacity"]
    release.model.save()
    traces: list[Any] = []

    def search(context: GateContext) -> Judgement:
        traces.append(context.trace)
        return Judgement(Verdict.PASSED, "Holds.")

    monkeypatch.setitem(MEASURES, "capacity", search)
    assert validated(developer, release).verdict == "passed"
    assert [list(trace) for trace in traces] == [[0.25, 0.5]]


def test_a_trace_that_the_model_does_not_have_starts_no_gates(stage: Stage, developer: Actor, release: Release) -> None:
    other, _ = actions.add_trace(actor=developer, model=make_model("reranker"), recording=RECORDING)
    names(release.model, other.digest)
    with pytest.raises(NotFound, match="sentiment has no trace sha256:") as caught:
        actions.request_gate_run(actor=developer, release=release)
    assert caught.value.code == "no_such_trace"
