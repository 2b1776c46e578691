"""What the adapter makes of a server's own words: where they end, whose folders they name, and when they say that it is full."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving.ports import InferenceError
from serving.servers.adapters.triton import TritonServer
from serving.servers.core.redaction import last_words, redacted


def test_a_traceback_keeps_files_and_lines_but_no_folders() -> None:
    text = 'ValueError: no\n\nAt:\n  /var/lib/servers/a-r1/repository/a/1/model.py(20): execute\n  File "/opt/x/y.py", line 3'
    assert redacted(text) == 'ValueError: no\n\nAt:\n  model.py(20): execute\n  File "y.py", line 3'


def test_a_message_has_an_end() -> None:
    assert len(redacted("x" * 10_000)) < 2100


def test_of_a_log_the_end_is_kept() -> None:
    assert last_words("/a/b.cc:1 it ends") == "b.cc:1 it ends"
    kept = last_words(f"{'x' * 10_000} /c/d.cc:2 the port is taken")
    assert kept.startswith("… x") and kept.endswith("x d.cc:2 the port is taken") and len(kept) == 2002


@pytest.mark.parametrize("path", [Path("/etc/passwd"), Path("/dev/shm/x")])
def test_redaction_leaves_the_last_part_of_a_path(path: Path) -> None:
    assert redacted(f"cannot open {path}: no") == f"cannot open {path.name}: no"


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        ("UNAVAILABLE", "[request id: <id_unknown>] Exceeds maximum queue size", "full"),
        ("RESOURCE_EXHAUSTED", "too many requests are in flight", "full"),
        ("INTERNAL", "CUDA out of memory", "server_error"),
        ("UNAVAILABLE", "failed to connect to all addresses", "unreachable"),
        ("UNAVAILABLE", "This protocol is restricted, expecting header 'triton-grpc-protocol-x'", "rejected"),
    ],
)
def test_only_a_refusal_for_being_full_is_told_as_one(status: str, words: str, reason: str) -> None:
    class Refuses(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda _, call: call.abort(grpc.StatusCode[status], words))

    served = grpc.server(ThreadPoolExecutor(1), handlers=[Refuses()])
    port = served.add_insecure_port("127.0.0.1:0")
    served.start()
    client = TritonServer("127.0.0.1", 0, port)
    try:
        with pytest.raises(InferenceError) as caught:
            client.infer("m", {"x": np.full((1, 4), 1.0)}, timeout_s=10)
    finally:
        client.close()
        served.stop(None)
    assert (caught.value.reason, caught.value.message) == (reason, words)
