"""Mirrored requests, asked again of stable, of the candidate, and of stable once more; what differs is counted."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from rollouts.core.shadow import Allowance, Arrays, judged
from rollouts.prober.requests import GRPC_PATH, HTTP_PATH, Question, Unusable, read_request
from rollouts.prober.servers import Servers
from rollouts.prober.tallies import Example, Tallies
from rollouts.prober.targets import Target
from serving.ports import InferenceError
from serving.traffic.core.routes import ServerAddress

log = structlog.get_logger(__name__)
#: Comparisons at once: in all; and of one rollout, those that wait and those that run, so that one hung candidate cannot starve the others.
WORKERS, MOST_OPEN = 16, 4
_LONGEST_FAILURE = 200


@dataclass
class _Watched:
    """A rollout, and how much of it is on its way. `taken` counts the requests that were let in."""

    target: Target
    allowance: Allowance
    open: int = 0
    taken: int = 0


@dataclass(frozen=True)
class _Job:
    epoch: str
    watched: _Watched
    target: Target
    number: int
    path: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class Shadowing:
    """Compares what `take` lets in, on threads of its own, at most `per_s` requests of one rollout a second."""

    def __init__(self, book: Tallies, servers: Servers, *, per_s: float) -> None:
        self._book, self._servers, self._per_s = book, servers, per_s
        self._lock = threading.Lock()
        self._by_route: dict[int, _Watched] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"shadow-{n}", daemon=True) for n in range(WORKERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits for running comparisons to end, for a bounded time."""
        self.watch([])
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + 3.0
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def watch(self, targets: Sequence[Target]) -> None:
        """From now on these rollouts and no others."""
        with self._lock:
            before = {one.target.rollout_id: one for one in self._by_route.values()}
            self._by_route = {}
            for target in targets:
                if target.route_id is not None and target.profile.stable is not None:
                    one = before.get(target.rollout_id) or _Watched(target, Allowance(self._per_s))
                    one.target = target
                    self._by_route[target.route_id] = one

    def take(self, route_id: int, path: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether this mirrored request will be compared. Never waits."""
        refusal = "" if path == GRPC_PATH or HTTP_PATH.match(path) else "no_inference"
        with self._lock:
            watched = self._by_route.get(route_id)
            refusal = refusal or self._refusal(watched)
            if not refusal and watched is not None:
                watched.open += 1
                watched.taken += 1
                self._jobs.put(_Job(self._book.epoch, watched, watched.target, watched.taken, path, headers, body))
        self._book.note(refusal or "taken")
        return not refusal

    def _refusal(self, watched: _Watched | None) -> str:
        if watched is None:
            return "not_watched"  # no live rollout with a stable release, or another prober leads
        if not watched.target.stable or not watched.target.candidate:
            return "no_server"
        if watched.open >= MOST_OPEN:
            return "busy"
        return "" if watched.allowance.take(time.monotonic()) else "over_rate"

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._compare(job)
            except Unusable as unusable:
                self._book.note(unusable.reason)
            except Exception:  # one odd request must not end the thread; it is not counted
                self._book.note("broke")
                # plain text: a traceback with its locals would contain users' data
                log.error("comparison_broke", rollout=job.target.rollout_id, traceback=traceback.format_exc())
            finally:
                with self._lock:
                    job.watched.open -= 1

    def _compare(self, job: _Job) -> None:
        target, question = job.target, read_request(job.path, job.headers, job.body)
        stable, candidates = target.stable, target.candidate
        # The candidate is asked between the two, so that they do not meet in one batch.
        primary = self._ask(target, stable[job.number % len(stable)], question)
        if isinstance(primary, str):
            self._book.note("stable_failed")
            return
        candidate = self._ask(target, candidates[job.number % len(candidates)], question)
        secondary = self._ask(target, stable[(job.number + 1) % len(stable)], question)
        if isinstance(secondary, str):
            self._book.note("stable_failed")
            return
        outcome = judged(primary, candidate, secondary, target.profile.rule)
        found = outcome.found
        facts = {"input_digest": question.digest, "kind": found.kind, "output": found.output} if found else {}
        summary = f"{target.profile.candidate.name}: {found.words}" if found else ""
        self._book.record(job.epoch, Example(target.rollout_id, "shadow", summary, facts), outcome)

    def _ask(self, target: Target, endpoint: ServerAddress, question: Question) -> Arrays | str:
        """The outputs, or why there are none."""
        profile = target.profile
        try:
            server = self._servers.at(endpoint)
            return server.infer(
                profile.model, question.inputs, timeout_s=profile.timeout_s, outputs=question.outputs
            ).outputs
        except InferenceError as error:
            return f"{error.message[:_LONGEST_FAILURE]} [{error.reason}]"
