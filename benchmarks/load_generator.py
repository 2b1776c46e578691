"""A load generator: users of a model on the real stack, at a steady rate. Some may send what no release can answer or read."""

from __future__ import annotations

import json
import random
import ssl
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event, Lock, Thread, local

import httpx

#: What only users send: probes and gates have other values. Before these stands the number that is asked about.
MARK = (1.0, 2.0, 3.0)
#: The number that makes every release fail whose code is written so.
POISON = -1.0
#: From this number on releases do wrong whose code is written so; users ask about smaller ones until they are told to ask about these.
BREAKS_FROM = 1000.0
#: What is asked later than this after its time, in seconds, comes in another pattern than was asked for.
BEHIND_S = 0.25


class Kind(StrEnum):
    """What a request is; the answer that it should get follows from it."""

    GOOD = "good"
    POISONED = "poisoned"  # fails wherever it goes
    MALFORMED = "malformed"  # its JSON does not end


@dataclass(frozen=True)
class Mix:
    """The shares of the requests that are not good, in [0, 1]."""

    poisoned_frac: float = 0.0
    malformed_frac: float = 0.0

    def draw(self, chance: random.Random) -> Kind:
        drawn = chance.random()
        if drawn < self.poisoned_frac:
            return Kind.POISONED
        return Kind.MALFORMED if drawn < self.poisoned_frac + self.malformed_frac else Kind.GOOD


def body_of(kind: Kind, number: float) -> bytes:
    """What is sent; `number` is asked about in a good request."""
    x = [POISON if kind is Kind.POISONED else number, *MARK]
    whole = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": x}]}).encode()
    return whole[:-2] if kind is Kind.MALFORMED else whole


@dataclass
class LoadGenerator:
    """Users who do not wait for each other: each asks on its own thread, so `most_waiting` at a time.

    While `breaks` is set they ask about numbers from BREAKS_FROM on; `broke_at` is when the first of those was asked.
    `late`: when requests were asked that had to wait for another user's answer first, or for the machine: they come all at once, which is
    another load than was asked for. `failed`, `wrong` and `good`: (when asked, what came) of good requests. `poisoned`: the statuses that
    poisoned ones got, and `malformed`: those that malformed ones got.
    """

    url: str
    rate_per_s: float
    most_waiting: int = 1024
    mix: Mix = Mix()
    seed: int = 0
    breaks: bool = False
    broke_at: float | None = None
    asked: int = 0
    late: list[float] = field(default_factory=list)
    failed: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[float] = field(default_factory=list)
    good: list[tuple[float, str]] = field(default_factory=list)
    poisoned: list[int] = field(default_factory=list)
    malformed: list[int] = field(default_factory=list)

    def __enter__(self) -> LoadGenerator:
        self._stop, self._pool, self._chance = Event(), ThreadPoolExecutor(self.most_waiting), random.Random(self.seed)
        # A connection for each thread: a pool looks through all that it has for every request, so that a spell of slow answers, for
        # which it opens a hundred, would leave a generator that takes a whole core from the servers.
        self._own, self._clients, self._context = local(), list[httpx.Client](), ssl.create_default_context()
        self._lock, self._waiting = Lock(), 0
        self._thread = Thread(target=self._ask_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)
        self._pool.shutdown(wait=True)
        for client in self._clients:
            client.close()

    def _ask_on(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            is_behind = time.monotonic() - due > BEHIND_S
            due += 1 / self.rate_per_s
            self.asked += 1
            number = float(self.asked % 20)
            if self.breaks:
                number += BREAKS_FROM
                self.broke_at = self.broke_at or time.time()
            with self._lock:
                self._waiting += 1
            if is_behind or self._waiting > self.most_waiting:
                self.late.append(time.time())
            self._pool.submit(self._ask, self.mix.draw(self._chance), number).add_done_callback(self._answered)

    def _answered(self, _: Future[None]) -> None:
        with self._lock:
            self._waiting -= 1

    def _client(self) -> httpx.Client:
        """This thread's own."""
        if not hasattr(self._own, "client"):
            self._own.client = httpx.Client(timeout=20, trust_env=False, verify=self._context)
            self._clients.append(self._own.client)
        found: httpx.Client = self._own.client
        return found

    def _ask(self, kind: Kind, number: float) -> None:
        at = time.time()
        try:
            answer = self._client().post(
                self.url, content=body_of(kind, number), headers={"content-type": "application/json"}
            )
            if kind is not Kind.GOOD:
                (self.poisoned if kind is Kind.POISONED else self.malformed).append(answer.status_code)
            elif answer.status_code != 200:
                self.failed.append((at, f"{answer.status_code} {answer.text[:120]}"))
            elif answer.json()["outputs"][0]["data"] != [2 * value for value in (number, *MARK)]:
                self.wrong.append(at)
            else:
                self.good.append((at, answer.headers.get("x-sluicegate-release", "")))
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self.failed.append((at, f"{kind}: {error!r}"))
