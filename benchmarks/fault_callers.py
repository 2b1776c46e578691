"""Callers of the stack that `benchmarks.fault_matrix` breaks: users of models, a reader of a page, uploads."""

from __future__ import annotations

import hashlib
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self
from urllib.parse import quote

import grpc
import httpx
import onnx
from tritonclient.grpc import service_pb2

from benchmarks.load_generator import MARK, Kind, LoadGenerator, body_of
from sluicegate.client import Client
from sluicegate.client.errors import ClientError, is_passing
from sluicegate.client.names import release_path
from sluicegate.client.progress import Silent
from sluicegate.stack import Stack
from tests.contracts.serving_models import doubling_graph
from tests.flows.tiny import Shop, password_of, write_release

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
#: By default a channel waits a second before it connects again, which makes a short outage longer.
_RECONNECTS = [(f"grpc.{name}_reconnect_backoff_ms", 100) for name in ("initial", "min", "max")]


@dataclass(frozen=True)
class Call:
    """One request. Times are monotonic seconds. `error`: the kind of failure, or empty; `told`: the answer or the error."""

    asked: float
    ended: float
    error: str = ""
    told: str = ""


def failures(calls: Iterable[Call], killed_at: float | None) -> tuple[Counter[str], int]:
    """Failed calls by kind, without those in flight at the kill; and the number of those."""
    failed = [call for call in calls if call.error]
    flying = [call for call in failed if killed_at is not None and call.asked <= killed_at <= call.ended]
    return Counter(call.error for call in failed if call not in flying), len(flying)


class Users(LoadGenerator):
    """Users of one model, over HTTP and gRPC in turn."""

    def __init__(self, stack: Stack, model: str, rate_per_s: float) -> None:
        super().__init__(f"{stack.gateway_http}/v2/models/{model}/infer", rate_per_s)
        self.model, self.calls = model, list[Call]()
        self._channel = grpc.insecure_channel(stack.gateway_grpc, options=_RECONNECTS)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._channel.close()

    def since(self, at: float) -> list[Call]:
        """Calls that were sent since then, ordered by their end."""
        return [call for call in list(self.calls) if call.asked >= at]

    def _ask(self, kind: Kind, number: float) -> None:
        asked = time.monotonic()
        error, told = self._over_grpc(number) if int(number) % 2 else self._over_http(number)
        self.calls.append(Call(asked, time.monotonic(), error, told))

    def _over_http(self, number: float) -> tuple[str, str]:
        # half of the calls close their connection, so that the gateway needs files for new ones
        head = {"content-type": "application/json", "connection": "keep-alive" if int(number) % 4 else "close"}
        try:
            answer = self._client().post(self.url, content=body_of(Kind.GOOD, number), headers=head)
            if answer.status_code != 200:
                return str(answer.status_code), answer.text[:200]
            is_right = answer.json()["outputs"][0]["data"] == [2 * value for value in (number, *MARK)]
            return ("", "") if is_right else ("wrong", answer.text[:200])
        except httpx.ConnectError as error:
            return "refused", repr(error)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            return type(error).__name__, repr(error)

    def _over_grpc(self, number: float) -> tuple[str, str]:
        question = service_pb2.ModelInferRequest(model_name=self.model)
        question.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        question.raw_input_contents.append(struct.pack("<4f", number, *MARK))
        ask = self._channel.unary_unary(
            _METHOD,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        try:
            answer = ask(question, timeout=20)
        except grpc.RpcError as error:
            told, code = str(error.details()), error.code().name
            return "refused" if "failed to connect" in told.lower() else f"gRPC {code}", told[:200]
        is_right = answer.raw_output_contents[0] == struct.pack("<4f", *(2 * one for one in (number, *MARK)))
        return ("", "") if is_right else ("wrong", str(answer)[:200])


class _Every:
    """Does something each so many seconds, on a thread of its own, for the length of a `with` block."""

    def __init__(self, every_s: float, does: Callable[[], object]) -> None:
        self._stop, self._every_s, self._does = Event(), every_s, does
        self._thread = Thread(target=self._go_on, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(60)

    def _go_on(self) -> None:
        while not self._stop.wait(self._every_s):
            self._does()


class Pages:
    """A signed-in person who asks for a model's page, each time on a new connection."""

    def __init__(self, stack: Stack, model: str) -> None:
        self._url, self._path = stack.base_url, f"/models/{model}/"
        self.calls: list[Call] = []
        self._every = _Every(0.25, self._look)

    def __enter__(self) -> Self:
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as client:
            found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get("/sign-in/").text)
            assert found
            form = {
                "username": "mara",
                "password": password_of("mara"),
                "csrfmiddlewaretoken": found[1],
            }
            answer = client.post("/sign-in/", data=form, headers={"referer": f"{self._url}/sign-in/"})
            assert answer.status_code == 302, answer.text[:500]
            self._cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        self._every.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._every.end()

    def since(self, at: float) -> list[Call]:
        return [call for call in list(self.calls) if call.asked >= at]

    def _look(self) -> None:
        asked, error, told = time.monotonic(), "", ""
        try:
            answer = httpx.get(
                f"{self._url}{self._path}",
                headers={"cookie": self._cookie, "connection": "close"},
                timeout=5,
                trust_env=False,
                verify=False,
            )
            if answer.status_code != 200:
                error, told = str(answer.status_code), answer.text[:200]
        except httpx.ConnectError as problem:
            error, told = "refused", repr(problem)
        except httpx.HTTPError as problem:
            error, told = type(problem).__name__, repr(problem)
        self.calls.append(Call(asked, time.monotonic(), error, told))


class Uploads:
    """Pushes a small release each 5 s, again for up to a minute while the server is away."""

    def __init__(self, shop: Shop, folder: Path, model: str) -> None:
        self._shop, self._folder, self._model = shop, folder, model
        self._client: Any = shop.author
        self._pool, self._pushes = ThreadPoolExecutor(4), list[Future[str]]()
        self._begun = self._retries = 0
        self._sent: dict[str, Path] = {}
        self._every = _Every(5.0, lambda: self._pushes.append(self._pool.submit(self.push)))

    def __enter__(self) -> Self:
        folder = self._folder
        token = self._shop.author.http.headers["Authorization"].removeprefix("Bearer ")
        folder.mkdir()
        self._client = Client(self._shop.author.url, token)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._client.close()

    def begin(self) -> None:
        self._every.begin()

    def end(self) -> None:
        """Begins no more and waits for those under way."""
        self._every.end()
        self._pool.shutdown(wait=True)

    def push(self) -> str:
        """Pushes one release. Returns its name (`pushed/r3`). Raises ClientError when it gives up."""
        self._begun += 1
        graph = onnx.load_from_string(doubling_graph())
        graph.doc_string = note = f"{self._folder.name}-{self._begun}"
        folder = self._folder / note
        write_release(folder, self._shop.image, note=note, graph=graph.SerializeToString(), model=self._model)
        deadline = time.monotonic() + 60
        while True:
            try:
                name = f"{self._model}/{self._client.push(folder, progress=Silent())['name']}"
            except ClientError as error:
                if not is_passing(error) or time.monotonic() > deadline:
                    raise
                self._retries += 1
                time.sleep(1)
            else:
                self._sent[name] = folder
                return name

    def words(self) -> str:
        retries = f", {self._retries} retries" if self._retries else ""
        return f"{len(self._sent)} / {self._begun}{retries}"

    def problems(self) -> list[str]:
        """A sentence for each push that gave up, and for each release whose stored file differs from the sent file."""
        gave_up = [f"upload gave up: {error}" for one in self._pushes if (error := one.exception())]
        return gave_up + [
            f"{name} is not whole" for name, folder in self._sent.items() if not self._is_whole(name, folder)
        ]

    def _is_whole(self, name: str, folder: Path) -> bool:
        found = hashlib.sha256()
        for chunk in self._client.stream(f"{release_path(name)}/files/{quote('artifact/model.onnx')}"):
            found.update(chunk)
        return found.digest() == hashlib.sha256((folder / "artifact" / "model.onnx").read_bytes()).digest()
