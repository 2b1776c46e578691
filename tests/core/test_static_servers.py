"""Servers that somebody else runs: how one is named, and what contradicts a release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.targets.core.containment import may_run_code
from serving.targets.core.static_servers import NOTHING, REQUEST, StaticServer, differences, mistakes, share_files

SETTINGS = str(Path(__file__).resolve().parents[2] / "sluicegate" / "settings.py")
RUNTIME = f"company/triton@sha256:{'a' * 64}"
SERVING = {
    "inputs": [{"name": "x", "data_type": "FP32", "dims": [4]}, {"name": "n", "data_type": "INT64", "dims": [-1]}],
    "outputs": [{"name": "y", "data_type": "FP32", "dims": [4]}],
}
X, N, Y = ("x", "FP32", (4,)), ("n", "INT64", (-1,)), ("y", "FP32", (4,))


def test_one_is_named_by_its_address_and_two_ports() -> None:
    one = StaticServer.at("10.20.0.7:8000:8001")
    assert one == StaticServer("10.20.0.7", 8000, 8001) and str(one) == "10.20.0.7:8000:8001"
    for text in ("10.20.0.7", "10.20.0.7:8000", ":8000:8001", "h:0:1", "h:1:65536", "h:1:2:3", "h:1:x", "http://h:1:2"):
        with pytest.raises(ValueError, match="is not address:HTTP port:gRPC port"):
            StaticServer.at(text)


@pytest.mark.parametrize("loads", [NOTHING, REQUEST, "/srv/models/one"])
def test_a_server_is_listed_with_its_runtime_and_how_releases_get_there(loads: str) -> None:
    assert mistakes(loads, RUNTIME, root="/srv/models") == []
    for image in ("", "company/triton:24.10", "@sha256:" + "a" * 64, RUNTIME[:-1], f"{'c' * 300}{RUNTIME}"):
        ((field, _),) = mistakes(loads, image, root="/srv/models")
        assert field == "runtime"


@pytest.mark.parametrize(
    "loads",
    [
        "", "Request", "models", "/", "/srv/models", "/srv/models/", "/srv/models/..", "/srv/models/../etc", "/srv/models2/one",
        "/etc", "/srv/models//one", "/srv/models/one/", "/srv/models/" + "m" * 300,
    ],
)  # fmt: skip
def test_no_folder_beside_the_shared_one_is_written_to(loads: str) -> None:
    ((field, _),) = mistakes(loads, RUNTIME, root="/srv/models")
    assert field == "loads"
    ((field, says),) = mistakes("/srv/models/one", RUNTIME, root="")
    assert field == "loads" and "SLUICEGATE_STATIC_FOLDER, which is not set" in says


def test_two_folders_share_files_if_one_is_or_contains_the_other() -> None:
    for one, other in (("/srv/a", "/srv/a"), ("/srv/a", "/srv/a/b")):
        assert share_files(one, other) and share_files(other, one)
    for one, other in (("/srv/a", "/srv/ab"), (NOTHING, NOTHING), (REQUEST, REQUEST), (REQUEST, "/srv/a")):
        assert not share_files(one, other) and not share_files(other, one)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([X, N], [Y], ""),
        ([N, X], [Y, ("more", "FP32", (1,))], ""),
        ([("x", "FP32", (-1,)), N], [("y", "FP32", (-1,))], ""),
        ([X], [Y], "states no input n"),
        ([X, N], [], "states no output y"),
        ([], [], "states neither inputs nor outputs"),
        ([X, N, ("z", "BOOL", ())], [Y], "asks for the input z"),
        ([("x", "FP64", (4,)), N], [Y], "input x is FP64[4], and FP32[4] is declared"),
        ([("x", "FP32", (5,)), N], [Y], "input x is FP32[5]"),
        ([("x", "FP32", (1, 4)), N], [Y], "input x is FP32[1, 4]"),
        ([X, ("n", "INT64", (8,))], [Y], "input n is INT64[8], and INT64[-1] is declared"),
    ],
)
def test_what_a_server_states_is_held_against_what_is_declared(
    inputs: list[Any], outputs: list[Any], words: str
) -> None:
    found = " ".join(differences(SERVING, inputs, outputs))
    assert words in found and bool(found) == bool(words)


def test_code_is_not_loaded_where_nothing_is_known_of_containment_unless_the_owner_lets_it() -> None:
    told = {"static": {"address": "h:1:2"}, "containment": {"tier": "unknown", "allows_uncontained_code": False}}
    assert may_run_code(told) is False
    assert may_run_code({**told, "containment": {"tier": "unknown", "allows_uncontained_code": True}}) is True
