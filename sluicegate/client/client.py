"""Requests of a program to Sluicegate, as methods: gates, rollouts and their ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluicegate.client.connection import Connection
from sluicegate.client.errors import ClientError, LostSight, Problem, StillRunning, Unreachable, is_passing
from sluicegate.client.names import model_path, release_of, release_path
from sluicegate.client.progress import Progress, Silent

if TYPE_CHECKING:
    from sluicegate.client.folder import ReleaseFolder

#: Ends of a rollout; `stuck` is one for who waits, as only a person helps on.
ROLLOUT_ENDS: Final = frozenset({"promoted", "reverted", "rolled_back", "rejected", "cancelled", "superseded", "stuck"})
GATE_RUN_ENDS: Final = frozenset({"finished", "cancelled"})
#: Verbs that only take traffic away are meant whatever the rollout has become meanwhile: shutting must not fail on a race.
SHUTTING: Final = frozenset({"pause", "abort", "cancel", "roll-back"})
#: The server keeps a caller for so long; then it is asked again, for the numbers that change without a new version.
LOOK_S: Final = 2.0
#: The least time between two looks, also where nobody keeps the caller, in seconds.
PAUSE_S = 0.25
#: So long a wait goes on without any answer, as while the server is started again, in seconds.
PATIENCE_S = 300.0
#: Statuses of a caller that may look no longer: its token ended, or its role was taken away.
LOST: Final = frozenset({401, 403, 404})

#: Is told how a run stands, at each look.
OnLook = Callable[[dict[str, Any]], None]


class Client(Connection):
    """A signed-in caller of one server. Every method raises Problem, Unreachable or Untrusted, and gives the API's JSON."""

    def push(
        self,
        folder: Path | str | ReleaseFolder,
        *,
        model: str | None = None,
        connections: int = 0,
        has_gates: bool = False,
        timeout_s: float | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """The sealed release of a release folder, with its `model` and `name` ("r2"); with `has_gates` also `gate_run`, at its end.

        Hashes the files, sends what the server lacks in parts, `connections` at once (4), and seals when every one was
        verified. A refusal leaves nothing; what was sent before the connection or the process was lost is not sent again by the next
        push of the folder. `model` goes before the one that release.yaml names; `timeout_s` bounds the wait for the gates.
        Raises Mistake for a folder that is not good, and StillRunning.
        """
        from sluicegate.client.push import push  # a caller that only watches does not need its imports

        place = Path(folder) if isinstance(folder, str) else folder
        release = push(self, place, model=model, connections=connections, progress=progress or Silent())
        if has_gates:
            started = self.start_gates(f"{release['model']}/{release['name']}", unless_passed=True)
            release["gate_run"] = self.wait_for_gates(started, timeout_s=timeout_s)
        return release

    def start_gates(
        self,
        release: str,
        *,
        environment: str | None = None,
        only_expired: bool = False,
        unless_passed: bool = False,
    ) -> dict[str, Any]:
        """The gate run of `model/rN` that was started, or its gate run under way.

        With `unless_passed` also its gate run that passed, if the whole report still holds.
        """
        body: dict[str, Any] = {"environment": environment} if environment else {}
        if only_expired:
            body["only_expired"] = True
        if unless_passed:
            body["unless_passed"] = True
        started: dict[str, Any] = self.post_again(f"{release_path(release)}/gate-runs", body)
        return started

    def wait_for_gates(
        self, gate_run: dict[str, Any], *, timeout_s: float | None = None, on_look: OnLook | None = None
    ) -> dict[str, Any]:
        """The gate run at its end. Raises StillRunning after `timeout_s`, LostSight, and the errors of `on_look`."""
        run = _Run(f"gate run {gate_run['id']}", gate_run["url"], f"look at {gate_run['url']}", GATE_RUN_ENDS)
        return self._wait(run, timeout_s, on_look)

    def rollout_body(self, release: str, environment: str, policy: dict[str, Any] | None) -> dict[str, Any]:
        """The body of a start or of its preview. Raises BadName."""
        model, number = release_of(release)
        body: dict[str, Any] = {"model": model, "candidate": number, "environment": environment}
        return body if policy is None else {**body, "policy": policy}

    def start_rollout(
        self,
        release: str,
        *,
        environment: str = "production",
        policy: dict[str, Any] | None = None,
        reason: str = "",
        again: bool = False,
    ) -> dict[str, Any]:
        """The rollout of `model/rN` that was started, or the active one; without a policy, under the model's own.

        If the release is stable there already: the rollout that promoted it. One that was taken back there is refused
        (`tried_before`), but with `again`.
        """
        body = self.rollout_body(release, environment, policy) | ({"reason": reason} if reason else {})
        try:
            started: dict[str, Any] = self.post_again("/rollouts", body | ({"again": True} if again else {}))
        except Problem as problem:
            if problem.code != "already_stable" or not problem.facts.get("rollout"):
                raise
            started = self.get(f"/rollouts/{problem.facts['rollout']}")
        return started

    def wait_for_rollout(
        self, rollout_id: int, *, timeout_s: float | None = None, on_look: OnLook | None = None
    ) -> dict[str, Any]:
        """The rollout at its end, `stuck` included. It waits on while one is paused or needs an approval: see `on_look`.

        Raises StillRunning after `timeout_s`, LostSight, and the errors of `on_look`.
        """
        look = f"run `sluicegate rollout watch {rollout_id}`"
        return self._wait(
            _Run(f"rollout {rollout_id}", f"/rollouts/{rollout_id}", look, ROLLOUT_ENDS), timeout_s, on_look
        )

    def act(self, rollout_id: int, verb: str, reason: str, **more: Any) -> dict[str, Any]:
        """The rollout after the verb, which is written as in its address: `pause`, `promote-now`, …

        One that shuts is sent for any version, every other for the one that is there now.
        """
        path, body = f"/rollouts/{rollout_id}/{verb}", {"reason": reason, **more}
        if verb in SHUTTING:
            done: dict[str, Any] = self.post(path, body, is_any_version=True)
        else:
            done = self.post(path, body, version=self.get(f"/rollouts/{rollout_id}")["version"])
        return done

    def roll_back(self, model: str, *, environment: str = "production", reason: str) -> dict[str, Any]:
        """Takes the model's traffic back now: its rollout's, or after a promotion that of the release before."""
        body = {"environment": environment, "reason": reason}
        done: dict[str, Any] = self.post(f"{model_path(model)}/rollback", body)
        return done

    def _wait(self, run: _Run, timeout_s: float | None, on_look: OnLook | None) -> dict[str, Any]:
        began = answered_at = time.monotonic()
        seen: dict[str, Any] | None = None
        while True:
            asked_at = time.monotonic()
            left_s = LOOK_S if timeout_s is None else max(0.0, began + timeout_s - asked_at)
            query = {"timeout_s": "0"}
            if seen is not None:
                query = {"timeout_s": f"{min(left_s, LOOK_S):.3f}", "version": str(seen["version"])}
            try:
                found: dict[str, Any] = self.get(f"{run.path}/wait", **query)
            except (Problem, Unreachable) as error:
                if seen is None:
                    raise  # nothing is known of the run, not even that it is there
                is_late = timeout_s is not None and time.monotonic() - began >= timeout_s
                if is_late or not is_passing(error) or time.monotonic() - answered_at >= PATIENCE_S:
                    raise run.unseen(error, seen) from error
                time.sleep(LOOK_S)
                continue
            answered_at = asked_at
            if on_look:
                on_look(found)
            if found["state"] in run.ends:
                return found
            if timeout_s is not None and time.monotonic() - began >= timeout_s:
                raise StillRunning(f"It did not end within {timeout_s:g} s; it goes on by itself.", run=found)
            seen = found
            time.sleep(max(0.0, asked_at + PAUSE_S - time.monotonic()))


@dataclass(frozen=True)
class _Run:
    """A gate run or rollout to wait for: its name in a sentence, its address, how to look at it, and the states that end it."""

    name: str
    path: str
    look: str
    ends: frozenset[str]

    def unseen(self, error: Problem | Unreachable, seen: dict[str, Any]) -> ClientError:
        """The error for a wait that cannot see the end: passing errors stay, and name the run as well."""
        told = f"It is not known how {self.name} ends; it goes on by itself. {error.message}"
        if isinstance(error, Problem) and error.status in LOST:
            facts = {"status": error.status, "code": error.code}
            return LostSight(told, next_step=f"Sign in again, then {self.look}.", run=seen, **facts)
        error.message, error.next_step = told, f"Do the same again later, or {self.look}."
        return error
