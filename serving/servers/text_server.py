"""A client of a server that takes texts and answers with texts, as its kind's codec states it, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import OK
from typing import Any

import numpy as np

from registry.core.kinds.kind import HTTP, Codec, ServerKind
from registry.core.kinds.texts import BODY, PROMPT, TEXT
from serving.ports import Inference, InferenceError, Parcel, PreparedRequests, Tensors, TensorSpec
from serving.servers.adapters.triton_control import About
from serving.servers.adapters.triton_errors import http_error
from serving.servers.adapters.triton_requests import HttpRequests
from serving.servers.core.redaction import READ_BYTES, redacted

_CONTROL_S = 5.0
_JSON = {"Content-Type": "application/json"}


class TextServer:
    """Implements `serving.ports.InferenceServer`. Safe to use from several threads."""

    def __init__(self, host: str, http_port: int, kind: ServerKind, codec: Codec) -> None:
        self.host, self.http_port, self._kind, self._codec = host, http_port, kind, codec
        self._line = HttpRequests(self._parcel("", ()))
        self._prepared: list[HttpRequests] = []

    def close(self) -> None:
        for requests in (self._line, *self._prepared):
            requests.close()

    def is_live(self, *, timeout_s: float = 1.0) -> bool:
        try:
            return self._line.ask("GET", self._kind.health, b"", {}, timeout_s=timeout_s)[0] == OK
        except InferenceError:
            return False

    def why_not_loaded(self, model: str, *, control_secret: str) -> str | None:
        """None while the server still loads; empty once it has loaded. A server that cannot load ends itself.

        A server that loads a large file on a busy machine may be late to answer. Raises InferenceError otherwise.
        """
        try:
            status, _ = self._line.ask("GET", self._kind.health, b"", {}, timeout_s=_CONTROL_S)
        except InferenceError as error:
            if error.reason != "timeout":
                raise
            return None
        return "" if status == OK else None

    def metadata(self, model: str, *, timeout_s: float = _CONTROL_S) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """One text in, one text out. The server must list the model by its name."""
        status, body = self._line.ask("GET", self._codec.models, b"", {}, timeout_s=timeout_s)
        if status != OK:
            raise http_error(status, body)
        if model not in self._codec.listed(body):
            raise InferenceError("rejected", f"The server does not list the model {model}.")
        return [TensorSpec(PROMPT, "BYTES", (1,))], [TensorSpec(TEXT, "BYTES", (1,))]

    def infer(self, model: str, inputs: Tensors, *, timeout_s: float, outputs: Sequence[str] = ()) -> Inference:
        body, began = self._body(model, inputs), time.perf_counter()
        status, answer = self._line.ask("POST", self._codec.path, body, _JSON, timeout_s=timeout_s)
        latency_s = time.perf_counter() - began
        if status != OK:
            raise http_error(status, answer)
        try:
            text = self._codec.answer(answer)
        except ValueError as error:
            said = redacted(answer[:READ_BYTES].decode(errors="replace"))
            raise InferenceError("server_error", f"The answer is not one of {self._kind.name}: {said}") from error
        return Inference({TEXT: np.array([text.encode()], dtype=np.object_)}, latency_s)

    def prepared(
        self, model: str, batches: Sequence[Tensors], *, protocol: str = HTTP, streams: bool = False
    ) -> PreparedRequests:
        """Over HTTP whatever `protocol` is: the server has no other."""
        self._prepared.append(HttpRequests(self._parcel(model, [self._body(model, one) for one in batches])))
        return self._prepared[-1]

    def statistics(self, model: str) -> dict[str, Any]:
        raise InferenceError("not_offered", "The server keeps no statistics of one model.")

    def _parcel(self, model: str, bodies: Sequence[bytes]) -> Parcel:
        heads = (0,) * len(bodies)
        return Parcel(HTTP, self.host, self.http_port, model, tuple(bodies), heads, path=self._codec.path)

    def _body(self, model: str, inputs: Tensors) -> bytes:
        return body_of(self._codec, model, inputs)


class TextControl:
    """Implements the methods of `TritonControl` for a server that its owner runs and that loads nothing.

    Such a server states no name, so its name is that of `kind`.
    """

    def __init__(self, host: str, http_port: int, kind: ServerKind) -> None:
        self._kind, self._at = kind, (host, http_port, kind, next(iter(kind.interfaces.values())))

    def about(self) -> About:
        """Raises InferenceError: `timeout` while the server loads."""
        with closing(TextServer(*self._at)) as client:
            if client.why_not_loaded("", control_secret="") is None:
                raise InferenceError("timeout", "it is not ready yet")
        return About(self._kind.name, "", False)

    def serves(self, model: str, *, within_s: float = _CONTROL_S) -> bool:
        with closing(TextServer(*self._at)) as client:
            try:
                return bool(client.metadata(model, timeout_s=within_s))
            except InferenceError as error:
                if error.reason == "rejected":
                    return False
                raise

    def stamp_of(self, model: str, *, within_s: float = _CONTROL_S) -> str | None:
        return None

    def load(self, model: str, config: str, files: Mapping[str, bytes], *, stamp: str, timeout_s: float) -> None:
        raise InferenceError("not_offered", f"{self._kind.name} loads its model when its owner starts it.")

    def unload(self, model: str, *, timeout_s: float) -> None:
        """The server keeps its model."""


def body_of(codec: Codec, model: str, inputs: Tensors) -> bytes:
    """The body of one request. Raises InferenceError: `rejected` for other inputs than one text."""
    if set(inputs) == {BODY}:
        return bytes(inputs[BODY].item())
    values = inputs[PROMPT].ravel().tolist() if set(inputs) == {PROMPT} else []
    if len(values) != 1 or not isinstance(values[0], str | bytes):
        raise InferenceError("rejected", f"A request has one text, named {PROMPT}.")
    text = values[0]
    try:
        return codec.request(model, text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise InferenceError("rejected", f"The text is not UTF-8: {error.reason}.") from error
