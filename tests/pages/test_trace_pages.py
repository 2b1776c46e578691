"""Traces by page: what each is like and what uses it; adding, using, and removing what nothing uses."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.core.access import Role
from ledger.models import Event
from registry.models import ServedModel
from tests.pages.clients import dev, send_file, signed_in  # noqa: F401  # a fixture
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_release, make_user
from tests.support.worlds.registry_samples import person
from tests.support.worlds.rollout_setup import report_for
from validators.models import GateRun, Trace

pytestmark = pytest.mark.django_db
HERE = "/models/sentiment/traces/"
#: Of three hundred gaps, nine in ten of 10 ms and the others of 2 s.
BURSTS = "\n".join(str(round(sum((2.0 if one % 10 == 9 else 0.01) for one in range(at)), 3)) for at in range(301))


def post(client: Client, recording: str, **more: Any) -> Any:
    return send_file(client, f"{HERE}add/", recording.encode(), **more)


def test_a_recording_is_added_told_and_used(dev: Any) -> None:
    client = signed_in(dev)
    assert "No trace yet" in client.get(HERE).text
    text = squeezed(post(client, BURSTS).text).replace("\u202f", " ").replace("\xa0", " ")
    made = Trace.objects.get()
    assert f"300 gaps are added: {made.digest}" in text
    for told in ("cv 2.86, in bursts", ">300<", "dev", "–"):
        assert told in text, told
    use = {"digest": made.digest, "version": 1}
    assert "from the next gate run on" in client.post(f"{HERE}use/", use, follow=True).text
    assert ServedModel.objects.get().gate_policy["load"]["trace"] == made.digest
    assert client.post(f"{HERE}use/", use).status_code == 412
    assert client.post(f"{HERE}use/", {"digest": "sha256:none", "version": 2}).status_code == 404
    text = squeezed(client.get(HERE).text)
    assert "the gate policy" in text and "Use it…" not in text and "Remove…" not in text
    both = post(client, "0\n1\n3\n", use="1")
    assert "2 gaps are added" in both.text and ServedModel.objects.get().gate_policy["load"]["trace"] != made.digest


def test_what_cannot_be_read_is_said_on_the_page(dev: Any) -> None:
    client = signed_in(dev)
    bad = post(client, "0\nsoon\n")
    assert bad.status_code == 422 and "line 2 is no number of seconds" in bad.text
    assert "Choose a recording" in client.post(f"{HERE}add/", {"version": 1}).text
    assert not Trace.objects.exists()


def test_a_trace_goes_where_nothing_uses_it_and_else_stays(dev: Any, api: Any) -> None:
    client, model = signed_in(dev), ServedModel.objects.get()
    post(client, BURSTS), post(client, "0\n1\n3\n")
    used, free = Trace.objects.order_by("pk")
    client.post(f"{HERE}use/", {"digest": used.digest, "version": 1})
    gone = client.post(f"{HERE}remove/", {"digest": free.digest}, follow=True)
    assert "The trace is removed" in gone.text and list(Trace.objects.all()) == [used]
    event = Event.objects.latest("seq")
    assert (event.verb, event.facts) == ("trace.removed", {"digest": free.digest, "gaps": 2})
    assert client.post(f"{HERE}remove/", {"digest": free.digest}).status_code == 404
    refused = client.post(f"{HERE}remove/", {"digest": used.digest})
    assert refused.status_code == 409 and "uses " in refused.text and "the gate policy" in refused.text
    # its evidence outlives the policy
    run = report_for(make_release(model)).gate_run
    GateRun.objects.filter(pk=run.pk).update(policy={"load": {"trace": used.digest}})
    ServedModel.objects.update(gate_policy={})
    told = api(dev).delete(f"/api/v1/models/sentiment/traces/{used.digest}")
    assert (told.status_code, told.json()["code"]) == (409, "trace_used") and "1 gate run." in told.json()["detail"]
    assert "1 gate run" in client.get(HERE).text
    with pytest.raises(IntegrityError, match="which is its evidence"), transaction.atomic():
        Trace.objects.filter(pk=used.pk).delete()
    GateRun.objects.filter(pk=run.pk).update(policy={})
    assert api(dev).delete(f"/api/v1/models/sentiment/traces/{used.digest}").status_code == 204
    assert not Trace.objects.exists()


def test_who_may_only_read_looks_and_an_outsider_finds_nothing(dev: Any, api: Any) -> None:
    post(signed_in(dev), BURSTS)
    trace = Trace.objects.get()
    viewer = person("mara", Role.RELEASE_MANAGER)
    text = signed_in(viewer).get(HERE).text
    assert "in bursts" in text and "New trace" not in text and "Remove…" not in text
    assert signed_in(viewer).post(f"{HERE}remove/", {"digest": trace.digest}).status_code == 403
    outsider = signed_in(make_user("eve", team="audio"))
    assert (
        outsider.get(HERE).status_code == outsider.post(f"{HERE}remove/", {"digest": trace.digest}).status_code == 404
    )
    shape = api(viewer).get("/api/v1/models/sentiment/traces").json()["results"][0]["shape"]
    assert (shape["rate_per_s"], shape["cv"], shape["words"]) == (4.785, 2.86, "in bursts")
    assert Trace.objects.exists()


def test_more_traces_take_no_more_queries(dev: Any) -> None:
    client, counts = signed_in(dev), []
    for at in range(3):
        post(client, f"0\n1\n{at + 2}\n")
        client.get(HERE)
        with CaptureQueriesContext(connection) as asked:
            client.get(HERE)
        counts.append(len(asked))
    assert len(set(counts)) == 1 and counts[0] <= 12
