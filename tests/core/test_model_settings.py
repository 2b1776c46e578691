"""What a model promises and release.yaml may say: every limit at its edge."""

from __future__ import annotations

from typing import Any

import pytest

from registry.core.contract import read_settings, read_slug
from registry.core.schema import Problem
from registry.core.spec import DOCUMENT, PROVENANCE, RUNTIME, refuse
from serving.traffic.core.request_limits import LONGEST_S

TENSOR = {"name": "x", "data_type": "FP32", "dims": [2]}


def wrong(settings: dict[str, Any]) -> list[str]:
    read, problems = read_settings(settings)
    assert isinstance(read, dict)
    return [one.field for one in problems]


def objectives(**said: Any) -> list[str]:
    return [field.removeprefix("objectives.") for field in wrong({"objectives": said})]


@pytest.mark.parametrize("name", ["timeout_s", "attempt_timeout_s"])
def test_a_wait_is_above_nothing_and_at_most_ten_minutes(name: str) -> None:
    assert objectives(**{name: 600}) == objectives(**{name: 0.001}) == []
    assert objectives(**{name: 600.001})[0] == objectives(**{name: 0})[0] == name


def test_a_model_may_wait_as_long_as_a_gateway_does_and_no_longer() -> None:
    assert objectives(timeout_s=LONGEST_S) == [] and objectives(timeout_s=LONGEST_S + 0.001) == ["timeout_s"]


def test_one_attempt_is_not_longer_than_the_whole() -> None:
    assert objectives(timeout_s=2, attempt_timeout_s=2) == objectives(timeout_s=0.5) == []
    assert objectives(timeout_s=2, attempt_timeout_s=2.5) == ["attempt_timeout_s"]
    assert objectives(attempt_timeout_s=600) == []  # the installation's own time-out is not known here


def test_fractions_are_up_to_one_and_thresholds_up_to_an_hour() -> None:
    assert objectives(errors_max_frac=1, slow={"threshold_ms": 3_600_000, "max_frac": 1}, wrong={"max_frac": 1}) == []
    assert objectives(errors_max_frac=0, slow={"threshold_ms": 0.1, "max_frac": 0}, wrong={"max_frac": 0}) == []
    assert objectives(errors_max_frac=1.1, slow={"threshold_ms": 3_600_001, "max_frac": 1.1}, wrong={"max_frac": 1.1}) == [
        "errors_max_frac", "slow.threshold_ms", "slow.max_frac", "wrong.max_frac",
    ]  # fmt: skip
    assert objectives(slow={"threshold_ms": 0, "max_frac": 0}) == ["slow.threshold_ms"]
    assert objectives(slow={}, wrong={}) == ["slow.threshold_ms", "slow.max_frac", "wrong.max_frac"]


def test_titles_descriptions_and_contracts_are_so_long() -> None:
    good = {"title": "t" * 120, "description": "d" * 10_000}
    assert wrong(good) == [] and wrong({"title": "t" * 121, "description": "d" * 10_001}) == ["title", "description"]
    for side in ("inputs", "outputs"):
        many = [{**TENSOR, "name": f"x{i}"} for i in range(201)]
        assert wrong({"contract": {side: many[:200]}}) == [] and wrong({"contract": {side: many}}) == [
            f"contract.{side}"
        ]
        assert wrong({"contract": {side: [TENSOR, TENSOR]}}) == [f"contract.{side}"]
    assert wrong({"contract": {"inputs": [TENSOR], "outputs": [TENSOR]}}) == []
    assert read_settings({"contract": {}}) == ({"contract": {"inputs": [], "outputs": []}}, [])
    assert read_settings([])[0] == {} and read_settings([])[1]  # type: ignore[arg-type]


def test_a_models_name() -> None:
    assert read_slug("a" * 60) == read_slug("0-a_b") == []
    for odd in ("a" * 61, "-a", "A", "", "a b", 5):
        (problem,) = read_slug(odd)
        assert problem.field == "slug" and problem.fix


# --- release.yaml


def spoilt(kind: Any, value: dict[str, Any]) -> list[str]:
    problems: list[Problem] = []
    kind.read(value, "", problems)
    return [one.field for one in problems]


@pytest.mark.parametrize(
    ("name", "most"),
    [("git_repository", 500), ("git_branch", 200), ("dataset", 500), ("trained_by", 200), ("framework", 200), ("license", 200),
     ("notes", 4000)],
)  # fmt: skip
def test_texts_of_provenance_are_so_long(name: str, most: int) -> None:
    assert spoilt(PROVENANCE, {name: "x" * most}) == [] and spoilt(PROVENANCE, {name: "x" * (most + 1)}) == [name]


def test_forms_of_provenance() -> None:
    url = "https://ci.example.com/"
    assert spoilt(PROVENANCE, {"ci_run_url": url + "x" * (500 - len(url)), "labels": {"a": "x" * 1000}}) == []
    assert spoilt(PROVENANCE, {"ci_run_url": url + "x" * (501 - len(url))}) == ["ci_run_url"]
    assert spoilt(PROVENANCE, {"labels": {"a": "x" * 1001}}) == ["labels.a"]
    for commit, fits in (("a" * 7, True), ("a" * 64, True), ("a" * 6, False), ("a" * 65, False)):
        assert (spoilt(PROVENANCE, {"git_commit": commit}) == []) == fits
    assert spoilt(PROVENANCE, {"dataset_digest": "sha256:" + "a" * 64}) == []
    assert spoilt(PROVENANCE, {"dataset_digest": "a" * 64}) == ["dataset_digest"]


def image(name: str) -> str:
    """What is said of an image; nothing where it is in order."""
    problems: list[Problem] = []
    RUNTIME.read({"image": name, "backend": "python"}, "", problems)
    return " ".join(f"{one.message} {one.fix}" for one in problems)


def test_an_image_is_named_by_its_digest() -> None:
    digest = "@sha256:" + "a" * 64
    assert image("t" * (500 - len(digest)) + digest) == "" and image("t" * (501 - len(digest)) + digest)
    assert image("host:5000/team/triton" + digest) == ""
    for name, tag, bare in (
        ("triton:24.10", "24.10", "triton"), ("triton", "latest", "triton"), ("host:5000/triton", "latest", "host:5000/triton"),
        ("host:5000/team/triton:1", "1", "host:5000/team/triton"), ("a:1/b/c", "latest", "a:1/b/c"),
    ):  # fmt: skip
        assert f"names a tag ({tag})" in image(name) and f"Write the digest: {bare}@sha256:" in image(name)
    assert "Write the digest: name@sha256:" in image(":1")


def test_what_a_release_must_say_and_what_it_may() -> None:
    assert spoilt(DOCUMENT, {}) == ["model", "runtime", "serving"]
    assert spoilt(RUNTIME, {}) == ["image", "backend"] and spoilt(RUNTIME, {"server": "other"})[1] == "server"


def test_a_refusal_counts_its_mistakes_and_tells_the_first() -> None:
    from ledger.core.errors import Invalid

    refuse("c", "It", [])
    for problems, says in (
        ([Problem("f", "m.", "x.")], "It has 1 mistake. f: m. x."),
        ([Problem("", "m.", "x."), Problem("g", "n.", "y.")], "It has 2 mistakes. m. x."),
    ):
        with pytest.raises(Invalid) as caught:
            refuse("c", "It", problems)
        assert caught.value.code == "c" and says in str(caught.value)
        assert caught.value.facts["errors"] == [one.as_json() for one in problems]
