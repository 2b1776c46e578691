"""Requests that were made beforehand, on a server that fails as it is told: what each protocol says of it is the same."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import pytest

from serving.ports import InferenceError, PreparedRequests
from tests.stub_requests import backend, requests  # noqa: F401
from tests.stub_server import FULL, Backend


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
