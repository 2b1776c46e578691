"""Golden sets by page and by dry check: what a file holds, its mistakes by line, what changed, what it can prove; adding and using."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from django.test import Client

from accounts.core.access import Role
from registry.models import Blob, ServedModel
from tests.pages.clients import dev, send_file, signed_in  # noqa: F401  # a fixture
from tests.pages.markup import squeezed
from tests.support.worlds.factories import make_user
from tests.support.worlds.registry_samples import person
from validators.core.certify import caught
from validators.core.policy import parse_policy
from validators.models import GoldenSet

pytestmark = pytest.mark.django_db


def lines(count: int = 40, **changes: Any) -> bytes:
    rows = [
        {"id": f"i{i}", "inputs": {"text": f"words {i}"}, "label": i % 2, "slice": "long" if i % 4 == 0 else "short"}
        for i in range(count)
    ]
    for at, row in changes.items():
        rows[int(at[1:])] |= row
    return "\n".join(map(json.dumps, rows)).encode()


def post(client: Client, data: bytes, **more: Any) -> Any:
    return send_file(client, "/models/sentiment/golden-sets/add/", data, **more)


def test_a_file_is_looked_at_and_nothing_is_stored(dev: Any, api: Callable[..., Any]) -> None:
    text = post(signed_in(dev), lines(), verb="preview").text
    assert "40 items, nothing wrong" in text and "The first 20" in text and "There is no set to compare it with" in text
    assert not GoldenSet.objects.exists() and not Blob.objects.exists()
    answer = api(dev).post("/api/v1/models/sentiment/golden-sets:check", lines(), content_type="application/jsonl")
    told = answer.json()
    assert (told["items"], len(told["rows"]), told["changes"]) == (40, 20, None)
    assert told["labels"] == [{"label": "0", "items": 20}, {"label": "1", "items": 20}]
    assert [(one["slice"], one["items"]) for one in told["slices"]] == [("short", 30), ("long", 10)]


def test_it_is_added_and_used_and_the_next_is_compared_with_it(dev: Any) -> None:
    client = signed_in(dev)
    answer = post(client, lines(), verb="add", use="1")
    made = GoldenSet.objects.get()
    assert answer.redirect_chain == [("/models/sentiment/golden-sets/", 302)] and made.digest in answer.text
    assert ServedModel.objects.get().gate_policy["golden"]["set"] == made.digest
    other = lines(42, i1={"label": 0}, i2={"inputs": {"text": "else"}}, i3={"slice": "long"})
    text = " ".join(post(client, other, verb="preview").text.split())
    assert "2 added, 0 removed, 1 with another label, 1 with other inputs, 1 in another slice, 37 the same" in text
    post(client, other, verb="add")
    newest = GoldenSet.objects.order_by("-pk")[0]
    version = ServedModel.objects.get().version
    use = {"digest": newest.digest, "version": version}
    assert "from the next gate run on" in client.post("/models/sentiment/golden-sets/use/", use, follow=True).text
    assert ServedModel.objects.get().gate_policy["golden"]["set"] == newest.digest
    assert client.post("/models/sentiment/golden-sets/use/", use).status_code == 412
    wrong = {"digest": "sha256:" + "0" * 64, "version": version + 1}
    assert client.post("/models/sentiment/golden-sets/use/", wrong).status_code == 404


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", ["line 1", "holds no item"]),
        (b"{", ["line 1", "not JSON"]),
        (lines(3, i1={"id": "i0"}) + b'\n{"id": "x"}', ["2 mistakes", "line 2", "line 4"]),
        (lines(2, i0={"inputs": {"text": 7}}), ["line 1"]),
        (b"\xff\xfe", ["line 1", "not UTF-8"]),
        (lines(2, i0={"id": "<script>x</script>", "colour": 1}), ["line 1", "there is no field"]),
    ],
)
def test_mistakes_are_told_by_line(dev: Any, data: bytes, says: list[str]) -> None:
    for verb in ("preview", "add"):
        answer = post(signed_in(dev), data, verb=verb)
        assert answer.status_code == 422 and all(one in answer.text for one in says), says
    assert "<script>x" not in post(signed_in(dev), lines(2, i0={"id": "<script>x</script>"}), verb="preview").text
    assert not GoldenSet.objects.exists()


def test_who_may(dev: Any) -> None:
    mara = signed_in(person("mara", Role.RELEASE_MANAGER))
    assert "and not add it" in mara.get("/models/sentiment/golden-sets/new/").text
    assert "40 items" in post(mara, lines(), verb="preview").text
    assert post(mara, lines(), verb="add").status_code == 403 and not GoldenSet.objects.exists()
    assert "New golden set" not in mara.get("/models/sentiment/golden-sets/").text
    eve = signed_in(make_user("eve", team="audio", role=Role.MODEL_TEAM))
    assert (
        eve.get("/models/sentiment/golden-sets/new/").status_code
        == 404
        == post(eve, lines(), verb="preview").status_code
    )


def expecting(count: int, value: Any = (0.25, 0.75), **more: Any) -> bytes:
    rows = [
        {
            "id": f"i{i}",
            "inputs": {"text": f"words {i}"},
            "expected": {"probabilities": list(value)},
            "slice": "ab"[i % 2],
        }
        for i in range(count)
    ]
    return "\n".join(json.dumps(row | more) for row in rows).encode()


def test_a_set_of_numbers_tells_what_it_would_catch_and_is_used_with_a_comparison_for_it(
    dev: Any, api: Callable[..., Any]
) -> None:
    client = signed_in(dev)
    text = squeezed(post(client, expecting(80, right_within=0.125), verb="preview").text)
    assert "They are of the kind <strong>tensors</strong>, compared by <code>largest_relative_error</code>" in text
    assert "An answer is right within 0.005, save for 80 items with another limit" in text and "[0.25, 0.75]" in text
    answer = api(dev).post(
        "/api/v1/models/sentiment/golden-sets:check", expecting(80), content_type="application/jsonl"
    )
    told = answer.json()
    golden = parse_policy({"golden": {"compare": "largest_relative_error"}}).of("golden")
    assert told["caught"] == asdict(caught(80, golden))
    assert [one["caught"] for one in told["slices"]] == [asdict(caught(40, golden, slices=2))] * 2
    assert (told["kind"], told["right_within"], told["labels"], told["own_limits"]) == ("tensors", 0.005, [], 0)
    assert told["rows"][0]["expected"] == {"probabilities": [0.25, 0.75]} and told["rows"][0]["label"] is None
    wrong = post(client, expecting(2, (1, 2, 3)), verb="preview")
    assert wrong.status_code == 422 and "2 mistakes" in wrong.text and "shape" in wrong.text
    post(client, expecting(80), verb="add", use="1")
    assert ServedModel.objects.get().gate_policy["golden"]["compare"] == "largest_relative_error"
    post(client, lines(), verb="add", use="1")
    policy = ServedModel.objects.get().gate_policy["golden"]
    assert "compare" not in policy and policy["set"] == GoldenSet.objects.order_by("-pk")[0].digest
