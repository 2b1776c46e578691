"""The web process killed inside a person's verb: said again as it was, it is done once, or refused as done already."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.urls import get_resolver
from rest_framework.test import APIClient

from accounts.actions import issue_token
from accounts.models import User
from registry.models import ServedModel
from rollouts import actions
from rollouts.models import Rollout
from tests.kills import checks, databases
from tests.kills.campaign import Played
from tests.kills.engine_runs import Telling
from tests.kills.points import Point, Points, sites_in
from tests.kills.process import Child, fork
from tests.kills.stage import Stage
from tests.kills.stories import BUSY, MANAGER, QUIET, Story, person, policy
from tests.support.worlds.factories import make_release

LONGEST_S = 60.0
#: What a verb that was done already is answered: the version moved on, or the state did.
DONE_ALREADY = {409, 412}
#: Verbs that need no version find nothing to do any more.
GONE = 404


@dataclass(frozen=True)
class Call:
    """A request as a program makes it. `If-Match` is the rollout's version before it."""

    path: str  # {id} is the rollout's number
    body: dict[str, Any] = field(default_factory=lambda: {"reason": "Because."})


def web(trace: Path, at: Point | None, call: Call, token: str, answer: Path) -> None:
    """One request, answered by the whole web application in this process."""
    Points(str(trace), at).watch()
    rollout_id, version = (trace.parent / "seen").read_text().split()
    client = APIClient(raise_request_exception=False)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}", HTTP_IF_MATCH=f'"{version}"')
    path = call.path.format(id=rollout_id)
    found = client.post(f"/api/v1/{path}", call.body, format="json")
    answer.write_text(json.dumps([found.status_code, getattr(found, "data", {}).get("code", "")]))


#: The clear text of each victim's token, which the database does not have; runs inherit it when they are forked.
_TOKENS: dict[str, str] = {}


@dataclass(frozen=True)
class WebVictim:
    """The web process in one verb. The engine brings the rollout to where the verb is said."""

    verb: str
    call: Call
    begins: str = ""  # the state in which the verb is said; empty: there is no rollout yet
    needs_approval: bool = False
    approves: str = ""  # a stage of the policy that people must approve
    beforehand: Callable[[Rollout], object] = lambda rollout: None
    kind: str = "web"
    can_freeze: bool = False

    @property
    def name(self) -> str:
        return f"web, {self.verb}"

    @property
    def template(self) -> str:
        return f"kills_web_{self.verb.replace(' ', '_')}"

    def make_template(self) -> None:
        get_resolver().url_patterns  # noqa: B018 - imports every door once, for all runs
        before = f"{self.template}_before"
        databases.copy(databases.BASE, before)
        databases.use(before)
        rate = BUSY if self.begins == "promoted" else QUIET
        over = {"approvals": {self.approves: 1}} if self.approves else {}
        starts, needs_approval = bool(self.begins), self.needs_approval
        story = Story(self.verb, self.begins, policy(**over), rate=rate, starts=starts, needs_approval=needs_approval)
        story.seed()
        make_release(ServedModel.objects.get())
        _TOKENS[self.name] = issue_token(user=User.objects.get(username=MANAGER), name="kills", actor=person(MANAGER))
        if self.begins in ("shifting", "promoted"):
            folder = settings.STATE_DIR
            brought = Telling(story, before, folder, None, self.template, is_there=self._is_there).play()
            assert not brought.problems, f"{brought.problems}\n{brought.log}"
        else:
            databases.copy(before, self.template)
        databases.use(self.template)
        for rollout in Rollout.objects.all():
            self.beforehand(rollout)
        databases.use("postgres")

    def _is_there(self, rollout: Rollout) -> bool:
        return rollout.state == self.begins and (self.begins != "shifting" or rollout.step_started_at is not None)

    def play(self, folder: Path, at: Point | None) -> Played:
        return Calling(self, folder, at).play()


@dataclass
class Calling(Stage):
    victim: WebVictim
    folder: Path
    at: Point | None

    @property
    def template(self) -> str:
        return self.victim.template

    def tell(self) -> None:
        rollout = Rollout.objects.order_by("-pk").first()
        (self.place / "seen").write_text(f"{rollout.pk} {rollout.version}" if rollout else "0 0")
        first = self._call("first", self.at)
        self.played.was_reached = self.at is None or first.was_killed
        if first.was_killed:
            status, code = self._answer(self._call("second", None), "second")
            is_done_already = status in DONE_ALREADY or (status == GONE and self.victim.call is ROLL_BACK)
            if status >= 300 and not is_done_already:
                self.played.problems.append(f"said again, it was answered {status} {code}")
        else:
            status, code = self._answer(first, "first")
            if status >= 300:
                self.played.problems.append(f"it was answered {status} {code}")
        self.played.trace = sites_in(self.place / "first")
        self.played.history = checks.history()
        self.played.problems += checks.broken_rules(may_reopen=self.victim.begins == "promoted")

    def _call(self, name: str, at: Point | None) -> Child:
        call, token, answer = self.victim.call, _TOKENS[self.victim.name], self.place / f"{name} answer"
        child = self.begin(fork(name, lambda: web(self.place / name, at, call, token, answer), self.log))
        until = time.monotonic() + LONGEST_S
        while not child.is_over:
            assert time.monotonic() < until, f"no answer in {LONGEST_S:g} s"
            time.sleep(0.005)
        return child

    def _answer(self, child: Child, name: str) -> tuple[int, str]:
        assert child.exit_code == 0, "the web process broke"
        status, code = json.loads((self.place / f"{name} answer").read_text())
        return int(status), str(code)


def _paused(rollout: Rollout) -> None:
    actions.pause(actor=person(MANAGER), rollout=rollout, expected_version=rollout.version, reason="Lunch.")


START = Call("rollouts", {"model": "double", "candidate": "r2", "environment": "production", "reason": "New."})
ROLL_BACK = Call("models/double/rollback", {"environment": "production", "reason": "It is wrong."})


def _verb(name: str, **said: str) -> Call:
    return Call(f"rollouts/{{id}}/{name}", {"reason": "Because.", **said})


VERBS = [
    WebVictim("start", START),
    WebVictim("start awaiting approval", START, needs_approval=True),
    WebVictim("approve", _verb("approve"), "awaiting_approval", needs_approval=True),
    WebVictim("reject", _verb("reject"), "awaiting_approval", needs_approval=True),
    WebVictim("cancel", _verb("cancel"), "preparing"),
    WebVictim("pause", _verb("pause"), "shifting"),
    WebVictim("resume", _verb("resume"), "shifting", beforehand=_paused),
    WebVictim("advance", _verb("advance"), "shifting"),
    WebVictim("abort", _verb("abort"), "shifting"),
    WebVictim("promote now", _verb("promote-now"), "shifting"),
    WebVictim("approve the bake", _verb("approve", stage="bake"), "shifting", approves="bake"),
    WebVictim("supersede", _verb("supersede", candidate="r3"), "preparing"),
    WebVictim("roll back", _verb("roll-back"), "shifting"),
    WebVictim("roll back the model", ROLL_BACK, "shifting"),
    WebVictim("roll back after promotion", ROLL_BACK, "promoted"),
]
