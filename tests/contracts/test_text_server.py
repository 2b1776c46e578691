"""The client of text servers, beside servers that answer late or not at all."""

from __future__ import annotations

import socket

import pytest

from serving.ports import InferenceError
from serving.servers import text_server
from serving.servers.clients import client_of


def test_a_server_that_is_late_to_answer_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_server, "_CONTROL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        client = client_of("127.0.0.1", port, port, "llamacpp/chat")
        assert client.why_not_loaded("chatter", control_secret="") is None
    with pytest.raises(InferenceError) as caught:
        client.why_not_loaded("chatter", control_secret="")
    assert caught.value.reason == "unreachable"
    client.close()
