"""Answers of a release are read within a bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serving.ports import InferenceError
from serving.servers.adapters import triton_requests
from serving.servers.adapters.triton_errors import grpc_error, http_error
from serving.servers.adapters.triton_requests import CHANNEL, MOST_ANSWER_BYTES, responses


def test_a_stream_has_a_bound_on_all_its_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_requests, "MOST_ANSWER_BYTES", 100)
    sent: list[int] = []

    def call(body: bytes, timeout: float) -> Iterator[bytes]:
        for i in range(1_000_000):
            sent.append(i)
            yield b"\x12" + bytes(39)

    with pytest.raises(InferenceError) as caught:
        list(responses(call, b"", timeout_s=1))
    assert (caught.value.reason, len(sent)) == ("server_error", 3)


def test_an_answer_that_is_too_long_is_the_server_s_fault() -> None:
    error = grpc_error("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (300000000 vs. 268435456)")
    assert error.reason == "server_error"
    assert grpc_error("RESOURCE_EXHAUSTED", "Exceeds maximum queue size").reason == "full"
    assert dict(CHANNEL)["grpc.max_receive_message_length"] == MOST_ANSWER_BYTES


def test_of_a_long_error_the_beginning_is_read() -> None:
    class Body(bytes):
        def decode(self, *args: Any, **kwargs: Any) -> str:
            raise AssertionError("the whole body was read")

    assert len(str(http_error(500, Body(b"x" * (10 << 20))))) < 3000
