"""The web process killed inside what somebody asks of the fleet, while agents live: asked again it is done once, and all settles."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from django.urls import get_resolver
from rest_framework.test import APIClient

from accounts.actions import issue_token
from accounts.models import User
from ledger.models import Event
from serving.models import Gateway, Replica, ReplicaTarget
from tests.kills import databases, fleet_checks
from tests.kills.agent_runs import Tended
from tests.kills.campaign import Played
from tests.kills.fleet_checks import Seen
from tests.kills.fleet_requests import REQUESTS, Request, RequestStory
from tests.kills.fleet_stories import FleetStory
from tests.kills.points import Point, Points, sites_in
from tests.kills.process import Child, fork
from tests.kills.stories import ADMIN, person
from tests.support.worlds.factories import make_admin

#: A frozen one's transaction is ended by then: sooner than who is asked next gives up waiting for its locks.
LET_GO_S = 1.5
#: The clear text of each victim's token, which the database does not have; runs inherit it when they are forked.
_TOKENS: dict[str, str] = {}
#: What people do: each is told of as often as it was done. How often agents act rests on who dies.
PEOPLES = (
    "deployment.scaled", "deployment.set_aside", "gateway.registered", "gateway.drained", "gateway.resumed", "gateway.removed",
)  # fmt: skip


def web(
    points: Points, let_go_s: float | None, path: str, body: dict[str, Any], version: str, token: str, answer: Path
) -> None:
    """One request, answered by the whole web application in this process."""
    points.watch()
    if let_go_s is not None:
        databases.let_go_after(let_go_s)
    client = APIClient(raise_request_exception=False)
    matches = {"HTTP_IF_MATCH": version} if version else {}
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}", **matches)
    found = client.post(f"/api/v1/{path}", body, format="json")
    answer.write_text(json.dumps([found.status_code, (getattr(found, "data", None) or {}).get("code", "")]))


@dataclass(frozen=True)
class Asker:
    """The web process in one request. Killed, it is asked again at once, and all are asked once more when everything has settled.

    Frozen, it goes on when what was asked of another has settled.
    """

    told: RequestStory
    is_torn: bool = False
    kind: str = "fleet"
    can_freeze: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.told.name}"

    @property
    def story(self) -> FleetStory:
        return self.told.before

    @property
    def template(self) -> str:
        return f"kills_{self.name.replace(', ', '_').replace(' ', '_')}"

    def make_template(self) -> None:
        get_resolver().url_patterns  # noqa: B018 - imports every door once, for all runs
        databases.copy(databases.BASE, self.template)
        databases.use(self.template)
        make_admin(ADMIN)
        _TOKENS[self.name] = issue_token(user=User.objects.get(username=ADMIN), name="kills", actor=person(ADMIN))
        self.told.seed()
        databases.use("postgres")

    def play(self, folder: Path, at: Point | None) -> Played:
        return Asked(self, folder, at).play()


@dataclass
class Asked(Tended):
    victim: Asker  # type: ignore[assignment]

    def tell(self) -> None:
        told = self.victim.told
        self._set_up()
        self._go_through(self.victim.story.chapters)
        self.least = told.least
        told.unwatched(self)
        request = told.request
        self.asked = (request.path, request.whole_body(), request.version())
        self.stood_before, self.told_before = _said(), _times(request.told)
        self._ask_until_settled(request)
        settled = self._found()
        self._heard(self._ask("late", None), "late", request, may_be_done=True)
        self._until(self._is_settled)
        if (late := self._found()) != settled:
            self.played.problems.append(f"asked once more it made of {settled} {late}")
        self._go_through(told.afterwards)
        self.played.trace = sites_in(self.place / "trace first")
        self.played.problems += fleet_checks.broken_lives(self.stood)
        self.played.history = self._found()

    def _ask_until_settled(self, request: Request) -> None:
        first = self._ask("first", self.at)
        self.played.was_reached = self.at is None or first.was_killed or first.is_frozen
        if self._has_answer(first):
            self._heard(first, "first", request, may_be_done=False)
        else:
            self._check_whole(request)
            self._heard(self._ask("second", None), "second", request, may_be_done=True)
        self._until(self._is_settled)
        if first.is_frozen:
            first.thaw()
            self._until(lambda _: "" if first.is_over else "what was frozen does not end")
            self._until(self._is_settled)
        if (times := _times(request.told) - self.told_before) != 1:
            self.played.problems.append(f"{request.told} is told {times} times")

    @property
    def _is_settled(self) -> Callable[[Sequence[Seen]], str]:
        return partial(self._why_not, self.victim.told.wanted)

    def _ask(self, name: str, at: Point | None) -> Child:
        """The process that was asked, once it is over or frozen."""
        torn_after = "UPDATE serving_" if self.victim.is_torn and at else None
        points = Points(str(self.place / f"trace {name}"), at, torn_after=torn_after)
        let_go_s = LET_GO_S if at is not None and at.is_freeze else None
        work = partial(web, points, let_go_s, *self.asked, _TOKENS[self.victim.name], self.place / f"answer {name}")
        child = self.begin(fork(name, work, self.log))
        self._until(lambda _: "" if child.is_over or child.is_frozen else f"no answer to the {name} request")
        return child

    def _has_answer(self, first: Child) -> bool:
        """Or the database ended its transaction before it was frozen, on a machine that let it wait for so long."""
        if not first.is_over or first.was_killed:
            return False
        was_let_go = self.at is not None and self.at.is_freeze and self._answer("first")[0] >= 500
        return not was_let_go

    def _answer(self, name: str) -> tuple[int, str]:
        status, code = json.loads((self.place / f"answer {name}").read_text())
        return int(status), str(code)

    def _heard(self, child: Child, name: str, request: Request, *, may_be_done: bool) -> None:
        assert child.exit_code == 0, "the web process broke"
        status, code = self._answer(name)
        if status >= 300 and not (may_be_done and status in request.done):
            self.played.problems.append(f"the {name} request was answered {status} {code}")

    def _check_whole(self, request: Request) -> None:
        """Of a request that was cut off all was done, and told once, or nothing."""
        times, is_done = _times(request.told) - self.told_before, _said() != self.stood_before
        if times not in (0, 1) or is_done != (times == 1):
            self.played.problems.append(f"cut off, {request.told} is told {times} times, and rows changed: {is_done}")

    def _found(self) -> dict[str, Any]:
        """How people's words stand, who is placed where, and how often what is done once was told."""
        names = ("verb", "subject_type", "actor", "reason")
        events = Event.objects.filter(verb__in=PEOPLES).order_by("seq")
        return {
            "placed": fleet_checks.placed(fleet_checks.look()),
            "told": fleet_checks.told_of(),
            "by people": [list(one) for one in events.values_list(*names)],
            **_standing(),
        }


def _times(verb: str) -> int:
    return Event.objects.filter(verb=verb).count()


def _standing() -> dict[str, list[list[Any]]]:
    """What people said, as rows have it."""
    drained = ("drained_by", "drain_reason", "version")
    return {
        "scales": [
            list(one) for one in ReplicaTarget.objects.values_list("replicas", "reason", "changed_by", "version")
        ],
        "gateways": [
            [one.name, one.drained_at is not None, *(getattr(one, name) for name in drained)]
            for one in Gateway.objects.order_by("name")
        ],
    }


def _said() -> dict[str, Any]:
    """The same, and what it says of each replica: agents change nothing of it before somebody asks for something."""
    columns = ("pk", "ordinal", "drain_asked_at", "is_set_aside")
    return {**_standing(), "deployments": list(Replica.objects.order_by("pk").values_list(*columns))}


ASKERS = [Asker(story) for story in REQUESTS]
