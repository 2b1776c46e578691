"""Requests that were made beforehand, on a server that fails as it is told: what each protocol says of it is the same."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from serving.ports import HTTP, InferenceError, PreparedRequests
from serving.servers.adapters.triton_requests import parcel_of
from tests.support.servers.stub_requests import backend, requests  # noqa: F401
from tests.support.servers.stub_server import FULL, Backend


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("error", "server_error"), ("unknown", "server_error"), ("bad_input", "rejected"), ("lost", "rejected"),
        ("full", "full"), ("cut", "unreachable"), ("hang", "timeout"),
    ],
)  # fmt: skip
def test_a_failure_is_told_alike(backend: Backend, requests: PreparedRequests, mode: str, reason: str) -> None:
    requests.connect()
    requests.send(7, timeout_s=30)
    backend.mode = mode
    with pytest.raises(InferenceError) as caught:
        requests.send(0, timeout_s=0.2 if mode == "hang" else 30)
    assert caught.value.reason == reason
    if mode == "full":
        assert caught.value.message == FULL
    backend.mode = "ok"
    requests.send(1, timeout_s=30)


def test_a_server_that_is_not_there_is_unreachable(backend: Backend, requests: PreparedRequests) -> None:
    backend.stop()
    requests.connect()  # says nothing
    with pytest.raises(InferenceError) as caught:
        requests.send(0, timeout_s=30)
    assert caught.value.reason == "unreachable"


def test_a_server_that_takes_json_alone_is_sent_all_in_json() -> None:
    batch = {"x": np.array([[1.5, 2]], np.float32), "text": np.array([[b"gr\xc3\xbcn"]], object)}
    parcel = parcel_of("m", [batch], protocol=HTTP, host="", port=0, is_json=True)
    assert parcel.json_bytes == (0,)
    assert json.loads(parcel.bodies[0])["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2]},
        {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["grün"]},
    ]


@pytest.mark.parametrize("value", [np.array([np.nan], np.float32), np.array([b"\xff"], object)])
def test_what_json_cannot_say_is_refused_and_never_sent_as_something_else(value: npt.NDArray[Any]) -> None:
    with pytest.raises(InferenceError, match="'x' is not to be said in JSON") as caught:
        parcel_of("m", [{"x": value}], protocol=HTTP, host="", port=0, is_json=True)
    assert caught.value.reason == "rejected"
