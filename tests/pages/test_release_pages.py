"""The tabs of a release: what it is, its files as text, its gate runs, where it runs, and who vouches for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from registry import actions
from registry.models import Release
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_environment, make_node, make_replica, make_team, make_user
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import draft_with, served_model
from tests.support.worlds.rollout_setup import TOLD, proven_on, put, report_for, serves, started
from validators.models import GateResult, GateRun

pytestmark = pytest.mark.django_db
TABS = ("release", "release_files", "release_gates", "release_replicas", "release_provenance")
HOSTILE = (
    b"import os\n# \xe2\x80\xae trojan \xe2\x81\xa6\n\tx = '<script>alert(1)</script>'\n" + b"y = " + b"1" * 700 + b"\n"
)


@pytest.fixture
def release() -> Release:
    system = Actor.system("tests")
    make_team("vision")
    model = served_model(system)
    return actions.seal(actor=system, release=draft_with(system, model, onnx_file("one"), artifact__model_py=HOSTILE))


@pytest.fixture
def member(client: Client, release: Release) -> Client:
    client.force_login(make_user("mia", team=release.model.team, role=Role.MODEL_TEAM))
    return client


def shown(client: Client, name: str, *arguments: Any, status: int = 200, **query: str) -> str:
    answer = client.get(reverse(name, args=["sentiment", *(arguments or [1])]), query)
    assert answer.status_code == status
    return squeezed(answer.content.decode())


def waived(release: Release) -> None:
    manager = make_user("mara", team=release.model.team, role=Role.RELEASE_MANAGER)
    actions.grant_waiver(actor=actor_for(manager), release=release, reason="Read.")


def test_every_tab_is_there_and_an_outsider_sees_none(member: Client, release: Release) -> None:
    make_node()
    for name in TABS:
        page = shown(member, name)
        assert page.count("<h1>") == 1 and 'aria-current="page"' in page
        for other in TABS:
            assert reverse(other, args=["sentiment", 1]) in page
    member.force_login(make_user("eve", team="sound"))
    for name in TABS:
        shown(member, name, status=404)
    shown(member, "release_file", 1, "artifact/model.onnx", status=404)


def test_a_text_shows_what_hides_in_it_and_nothing_of_it_is_markup(member: Client, release: Release) -> None:
    page = shown(member, "release_file", 1, "artifact/model.py")
    assert "2 hidden characters (line 2: U+202E, U+2066)" in page and "in another order" in page
    assert '<span class="k-hid" title="RIGHT-TO-LEFT OVERRIDE">U+202E</span>' in page
    assert "\u202e" not in page and "<script>alert" not in page and "&lt;script&gt;" in page
    assert 'class="k-tab"' in page
    assert "204 more characters" in page and 'id="L4"' in page and 'data-n="4"' in page


def test_a_binary_says_so_and_shows_its_header(member: Client, release: Release) -> None:
    page = shown(member, "release_file", 1, "artifact/model.onnx")
    assert "Binary, " in page and "Header (onnx)" in page and "inputs (" in page
    assert "/api/v1/models/sentiment/releases/r1/files/artifact/model.onnx" in page
    for path in ("artifact/none", "../etc/passwd", "artifact/%00"):
        shown(member, "release_file", 1, path, status=404)


def test_files_are_filtered(member: Client, release: Release) -> None:
    assert "artifact/model.py" in shown(member, "release_files")
    assert "artifact/model.py" not in shown(member, "release_files", q="onnx")
    assert "No file is called that" in shown(member, "release_files", q="<b>\0")


def test_code_is_said_first_with_what_to_read_and_who_may_allow_it(member: Client, release: Release) -> None:
    page = shown(member, "release")
    assert page.index("This release brings its own code") < page.index("Contents") and "(code)" in shown(
        member, "release_files"
    )
    its_page = reverse("release_file", args=["sentiment", 1, "artifact/model.py"])
    assert f'<a href="{its_page}"><code>artifact/model.py</code></a>' in page and "contains hidden characters" in page
    assert "No server loads it and no gate runs" in page and "a waiver for code" in page
    assert "Run the gates" not in page and "Roll it out…" not in page and "no release manager has waived it" in page
    assert "Record the waiver" not in page and f'href="{reverse("approvals")}"' in page
    mara = make_user("mara", team=release.model.team, role=Role.RELEASE_MANAGER)
    manager = Client()
    manager.force_login(mara)
    assert "Record the waiver" in shown(manager, "release")
    address = reverse("release_waive", args=["sentiment", 1])
    assert manager.post(address, {"reason": ""}).status_code == 422
    done = squeezed(manager.post(address, {"reason": "Read line by line."}, follow=True).content.decode())
    assert "mara allowed its code" in done and "“Read line by line.”" in done
    assert "No server loads it" not in done and "Record the waiver" not in done and "Run the gates" in done
    files = shown(member, "release_files")
    assert files.index("artifact/model.py") < files.index("artifact/model.onnx")


def test_notes_are_written_here_and_escaped(member: Client, release: Release) -> None:
    address = reverse("release_note", args=["sentiment", 1])
    answer = member.post(
        address, {"version": "0", "text": "<b>x</b>\u202e", "tags": "precision=int8, june"}, follow=True
    )
    page = answer.content.decode()
    assert "&lt;b&gt;x&lt;/b&gt;" in page and "U+202E" in page and '<span class="tag">june</span>' in page
    assert "The note on r1 is written." in page
    stale = member.post(address, {"version": "0", "text": "kept what was typed"})
    assert stale.status_code == 412 and "kept what was typed" in stale.content.decode()


def test_the_signature_is_verified_and_a_forged_one_is_told(member: Client, release: Release) -> None:
    page = shown(member, "release_provenance")
    assert "verified</span> with key" in page and "the stored manifest has it" in page
    assert "mlbom" in page and "not verified" not in page


def test_it_is_retired_by_its_name_and_restored(member: Client, release: Release) -> None:
    address = reverse("release_retire", args=["sentiment", 1])
    form = {"version": str(release.version), "reason": "old"}
    refused = member.post(address, {**form, "confirm": "sentiment/r2"})
    assert refused.status_code == 422 and "not_confirmed" in refused.content.decode()
    assert "is retired" in member.post(address, {**form, "confirm": "sentiment/r1"}, follow=True).content.decode()
    release.refresh_from_db()
    page = shown(member, "release")
    assert "Restore r1" in page and "restore it before it is rolled out" in page
    address = reverse("release_restore", args=["sentiment", 1])
    form = {"version": str(release.version), "reason": "needed"}
    assert "sealed again" in member.post(address, form, follow=True).content.decode()


def test_what_serves_or_failed_is_not_offered_and_says_why(member: Client, release: Release) -> None:
    waived(release)
    assert "Roll it out…" in shown(member, "release")
    report = report_for(release, "failed")
    GateResult.objects.create(gate_run=report.gate_run, gate="load", position=0, verdict="failed", reason="Too slow.")
    page = shown(member, "release")
    assert "Roll it out…" not in page and "it failed the load gate: Too slow." in page
    assert "change the gate policy and run the gates again" in page and "Mend it" not in page
    serves(release)
    page = shown(member, "release")
    assert "Roll it out…" not in page and "r1 serves production already" in page and "serves</span> production" in page
    assert "stable in production" in shown(member, "release_replicas")


def test_a_release_that_was_rolled_back_says_so_on_every_tab(member: Client, release: Release) -> None:
    system = Actor.system("tests")
    other = actions.seal(actor=system, release=draft_with(system, release.model, onnx_file("two")))
    serves(other)
    waived(release)
    put(started(candidate=release), "rolled_back", weight_bp=0, reason="Errors: 15 of 95.")
    for name in TABS:
        page = shown(member, name)
        assert "rolled this release back" in page and "Errors: 15 of 95." in page


def test_while_gates_run_nothing_of_the_tab_is_of_before(member: Client, release: Release) -> None:
    """The table above showed “passed, 4 of 4”, and the rest of the tab showed “running”."""
    run = report_for(release, "failed").gate_run
    GateResult.objects.create(gate_run=run, gate="golden", position=0, verdict="", reason="")
    GateRun.objects.filter(pk=run.pk).update(state="running", verdict="")
    page = shown(member, "release_gates")
    element = page[page.index('id="release-gates"') :]
    assert f"gate-run:{run.pk}" in element and "Re-run expired gates" not in page
    GateResult.objects.update(verdict="passed", reason="It passed.")
    GateRun.objects.filter(pk=run.pk).update(state="finished", verdict="passed")
    fragment = squeezed(member.get(reverse("release_gates_live", args=["sentiment", 1])).content.decode())
    assert "It passed." in fragment and "running" not in fragment and "not judged yet" not in fragment
    assert "<html" not in fragment
    assert Client().get(reverse("release_gates_live", args=["sentiment", 1])).status_code == 401


def test_gate_runs_stand_side_by_side(member: Client, release: Release) -> None:
    for verdict in ("failed", "passed"):
        run = report_for(release, verdict).gate_run
        GateResult.objects.create(gate_run=run, gate="load", position=0, verdict=verdict, reason=f"It {verdict}.")
    page = shown(member, "release_gates")
    assert page.count('scope="col"><a href="/gate-runs/') == 2 and "It failed." in page and "It passed." in page
    make_replica(release, state="gone")
    assert "gone" in shown(member, "release_replicas")


def test_what_expired_is_listed_with_a_button_that_runs_only_that(member: Client, release: Release) -> None:
    waived(release)
    make_environment("staging", is_routed=False)
    runtime = json.loads(release.manifest)["runtime"]
    offers = {"image": runtime["image"], "server": "triton", "backends": [runtime["backend"]], "versions": {}}
    node = make_node(facts=TOLD, runtimes=[offers])
    report = proven_on(node, release, "contract", "load")
    assert "Re-run expired gates" not in shown(member, "release_gates")
    node.facts = {**TOLD, "cpu_model": "Xeon"}
    node.save()
    page = shown(member, "release_gates")
    assert "CPU of load: measured on EPYC, and node local has Xeon" in page and "Re-run expired gates" in page
    member.post(reverse("release_gates", args=["sentiment", 1]), {"only_expired": "1"})
    taken = GateResult.objects.get(reused_from=report)
    assert taken.gate == "contract"
    page = squeezed(member.get(reverse("gate_run", args=[taken.gate_run_id])).content.decode())
    assert "taken over since it holds still" in page


@pytest.mark.parametrize("many", [1, 60])
def test_tabs_ask_few_questions(
    member: Client, release: Release, many: int, django_assert_max_num_queries: Any
) -> None:
    for i in range(many):
        report_for(release)
        make_node(f"node-{i}")
    for name in TABS:
        with django_assert_max_num_queries(15 if name == "release" else 13):  # two more for the code that it brings
            shown(member, name)
