"""Users who ask every gateway all the time, over HTTP and gRPC, one of each at each."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter

import grpc

from tests.gateway_rig import grpc_infer
from tests.stub_server import MODEL

#: Longer than any attempt and its retry.
PATIENCE_S = 20.0
PAUSE_S = 0.02


class Users:
    def __init__(self, gateways: list[tuple[str, int, int]]) -> None:
        """`gateways`: address, port of HTTP, port of gRPC."""
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._asked, self._lost = 0, Counter[str]()
        self._last: dict[int, str] = {}
        jobs = [(self._http, index, at, http_port) for index, (at, http_port, _) in enumerate(gateways)]
        jobs += [(self._grpc, index, at, grpc_port) for index, (at, _, grpc_port) in enumerate(gateways)]
        self._threads = [threading.Thread(target=run, args=told, daemon=True) for run, *told in jobs]
        for thread in self._threads:
            thread.start()

    def answered_by(self, gateway: int, release: str) -> bool:
        """Whether the gateway's last answer over HTTP was this release's."""
        return self._last.get(gateway) == release

    def stop(self) -> tuple[int, dict[str, int]]:
        """(how many were asked, those lost by reason)"""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
        return self._asked, dict(self._lost)

    def _note(self, error: str) -> None:
        with self._lock:
            self._asked += 1
            if error:
                self._lost[error] += 1

    def _http(self, index: int, address: str, port: int) -> None:
        line = http.client.HTTPConnection(address, port, timeout=PATIENCE_S)
        while not self._stop.wait(PAUSE_S):
            try:
                line.request("POST", f"/v2/models/{MODEL}/infer", b"{}")
                answer = line.getresponse()
                answer.read()
                self._last[index] = answer.getheader("x-sluicegate-release") or ""
                self._note("" if answer.status == 200 else f"HTTP {answer.status}")
            except OSError as error:
                self._note(type(error).__name__)
                line.close()
        line.close()

    def _grpc(self, index: int, address: str, port: int) -> None:
        with grpc.insecure_channel(f"{address}:{port}") as channel:
            while not self._stop.wait(PAUSE_S):
                code, _, _ = grpc_infer(channel, timeout_s=PATIENCE_S)
                self._note("" if code is grpc.StatusCode.OK else code.name)


def answers(address: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        line = http.client.HTTPConnection(address, port, timeout=1)
        line.request("POST", f"/v2/models/{MODEL}/infer", b"{}")
        return line.getresponse().status == 200
    return False
