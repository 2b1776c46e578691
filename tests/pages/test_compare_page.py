"""Comparing two releases: what a reviewer sees first, the answers that differ, the code as a diff, and the decision in place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from ledger.core.canonical import canonical_bytes
from registry import actions
from registry.models import Release, ReviewComment
from rollouts.actions import start_rollout
from rollouts.models import Approval, Rollout
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_environment, make_team, make_user
from tests.support.worlds.model_files import onnx_file, tokenizer_file
from tests.support.worlds.registry_samples import draft_with, served_model
from tests.support.worlds.rollout_setup import report_for, serves
from validators.actions import add_golden_set
from validators.models import GateResult, Report

pytestmark = pytest.mark.django_db
OLD_CODE = b"import os\n\n\ndef run(x):\n    return x + 1\n"
NEW_CODE = b"import os\n\n\ndef run(x):\n    return x + 2  # \xe2\x80\xae\n"
ITEMS = 12


def golden_lines() -> bytes:
    texts = ["=HYPERLINK(1)", "<b>bold</b>", *(f"text {i}" for i in range(2, ITEMS))]
    items = [
        {"id": f"i{i}", "inputs": {"text": text}, "label": i % 2, "slice": "ab"[i < 6]} for i, text in enumerate(texts)
    ]
    return "\n".join(json.dumps(item) for item in items).encode()


@pytest.fixture
def releases() -> tuple[Release, Release]:
    """(r1, r2) with code, configuration, tensors and answers that differ."""
    system = Actor.system("tests")
    make_team("vision")
    model = served_model(system)
    golden, _ = add_golden_set(actor=system, model=model, data=golden_lines())
    drafts = (
        draft_with(system, model, onnx_file("one"), artifact__model_py=OLD_CODE, artifact__config_json=b'{"a": 1, "b": 2}',
                   tokenizer__tokenizer_json=tokenizer_file({"[UNK]": 0, "good": 1})),
        draft_with(
            system, model, onnx_file("two", weights=[("layers.3.w", "FP16", [2])]), {"provenance.notes": "<i>x</i>"},
            artifact__model_py=NEW_CODE, artifact__config_json=b'{"b": 3,\n "a": 1}',
            tokenizer__tokenizer_json=tokenizer_file({"[UNK]": 0, "fine": 1}),
        ),
    )  # fmt: skip
    old, new = (actions.seal(actor=system, release=draft) for draft in drafts)
    right = [i % 2 for i in range(ITEMS)]
    answered(old, golden.digest, [*right[:-1], 1 - right[-1]], 0.9)
    answered(new, golden.digest, [1 - right[0], 1 - right[1], *right[2:]], 0.8)
    return old, new


def answered(release: Release, golden: str, predictions: list[int], accuracy: float) -> Report:
    """A report whose golden gate has these answers."""
    report = report_for(release)
    share = {"value": accuracy, "low": accuracy - 0.02, "high": accuracy + 0.02, "n": 800}
    evidence = {"golden_set": golden, "output": "probabilities", "predictions": predictions, "accuracy": share}
    GateResult.objects.create(gate_run=report.gate_run, gate="golden", position=0, verdict="passed", evidence=evidence)
    body = json.loads(report.body)
    body["gates"] = [{"gate": "golden", "verdict": "passed", "evidence": evidence}]
    # reports are never changed: this one is written anew, and nothing on this page asks whether it is authentic
    forged = {"body": canonical_bytes(body).decode(), "digest": f"sha256:{release.pk.hex * 2}"}
    return report_for(release, forged=forged)


@pytest.fixture
def member(client: Client, releases: tuple[Release, Release]) -> Client:
    client.force_login(make_user("mia", team=releases[0].model.team, role=Role.MODEL_TEAM))
    return client


def page(client: Client, query: str = "?against=r1") -> str:
    answer = client.get(reverse("release_diff", args=["sentiment", 2]) + query)
    assert answer.status_code == 200
    return squeezed(answer.content.decode())


def test_what_a_reviewer_needs_stands_first_and_in_order(member: Client) -> None:
    shown = page(member)
    places = [
        shown.index(f'<h2 id="{name}">')
        for name in ("verdict", "metrics", "golden", "configuration", "code", "tensors", "comments")
    ]
    assert places == sorted(places) and shown.count("<h1>") == 1
    assert "r2 is worse in accuracy (-10.00 points)." in shown and "at once against r1" in shown
    assert "-10.00 points" in shown and "Shares with their intervals" in shown
    assert "&lt;i&gt;x" in shown and "<i>x" not in shown
    assert "layers.3.w" in shown


def test_code_is_a_diff_with_words_marked_and_hidden_characters_boxed(member: Client) -> None:
    shown = page(member)
    assert '<td data-sign="−"> return x + 1</td>' in shown
    assert "U+202E" in shown and "\u202e" not in shown and "contains hidden characters" in shown
    assert "Members were sorted and put on lines" in shown
    only = page(member, "?against=r1&file=artifact/model.py")
    assert "artifact/config.json</code> changed" not in only and "All files" in only


def test_golden_answers_that_differ_are_counted_and_filtered(member: Client) -> None:
    shown = page(member)
    assert "3 of 12: 2 lost, 1 won." in shown and "&lt;b&gt;bold&lt;/b&gt;" in shown and "<b>bold" not in shown
    assert "1 items" in page(member, "?against=r1&how=won") and "i11" in page(member, "?against=r1&how=won")
    assert "i11" not in page(member, "?against=r1&how=lost") and "i11" not in page(member, "?against=r1&slice=b")
    told = member.get("/api/v1/models/sentiment/releases/r2/disagreements?against=r1&limit=1").json()
    assert (told["total"], len(told["rows"]), told["by_how"]) == (3, 1, {"lost": 2, "won": 1})


def test_comments_are_written_and_resolved_in_place(member: Client) -> None:
    address = reverse("release_comments", args=["sentiment", 2])
    form = {"against": "r1", "section": "code", "path": "artifact/model.py", "line": "5", "text": "Why <2>?"}
    shown = member.post(address, form, follow=True).content.decode()
    assert "Why &lt;2&gt;?" in shown and "artifact/model.py:5" in shown and "1 open comment" in shown
    refused = member.post(address, {**form, "line": "five"})
    assert refused.status_code == 422 and "Why &lt;2&gt;?" in refused.content.decode()
    comment = ReviewComment.objects.get()
    settle = reverse("release_comment_resolve", args=["sentiment", 2, comment.pk])
    assert "resolved by mia" in member.post(settle, follow=True).content.decode()
    assert member.post(settle).status_code == 409


@pytest.fixture
def waiting(releases: tuple[Release, Release]) -> tuple[Rollout, Any]:
    """(a rollout of r2 that waits for its first yes, an unrelated release manager)."""
    old, new = releases
    team = new.model.team
    manager = make_user("mara", team=team, role=Role.RELEASE_MANAGER)
    for release in releases:
        actions.grant_waiver(actor=actor_for(manager), release=release, reason="Read.")
    serves(old)
    production = make_environment("production", needs_passed_report=False)
    policy = {"preset": "demo", "approvals": {"start": 1}}
    asker = make_user("otto", team=team, role=Role.RELEASE_MANAGER)
    rollout = start_rollout(actor=actor_for(asker), candidate=new, environment=production, policy=policy)
    return rollout, manager


def test_a_release_manager_decides_in_place_and_who_asked_is_refused_in_words(
    client: Client, waiting: tuple[Rollout, Any]
) -> None:
    rollout, manager = waiting
    client.force_login(manager)
    shown = page(client)
    assert (
        "decide below" in shown and shown.count("at once against r1") >= 3
    )  # in the verdict, beside the button, in the sheet
    assert 'popovertarget="sheet-approve"' in shown and 'popovertarget="sheet-reject"' in shown
    form = {"version": str(rollout.version), "stage": "start", "reason": "The diff is small."}
    done = client.post(reverse("rollout_act", args=[rollout.pk, "approve"]), form)
    assert done.status_code == 302 and Approval.objects.get().manifest_digest == rollout.candidate.digest
    client.force_login(rollout.requested_by)
    shown = page(client)
    assert "someone else must approve it" in shown and 'popovertarget="sheet-approve"' not in shown
    client.force_login(make_user("mia", team=rollout.model.team, role=Role.MODEL_TEAM))
    assert "It takes a release manager" in page(client)


def test_no_second_rollout_is_offered_while_one_waits(client: Client, waiting: tuple[Rollout, Any]) -> None:
    rollout, manager = waiting
    client.force_login(manager)
    shown = squeezed(client.get(reverse("release", args=["sentiment", 2])).content.decode())
    assert f"Rollout {rollout.pk} of r2 in production is under way." in shown and "Roll it out…" not in shown


def test_nothing_of_another_team_is_seen(client: Client, releases: tuple[Release, Release]) -> None:
    client.force_login(make_user("eve", team="sound"))
    assert client.get(reverse("release_diff", args=["sentiment", 2]), {"against": "r1"}).status_code == 404
    assert client.post(reverse("release_comments", args=["sentiment", 2]), {"text": "x"}).status_code == 404
