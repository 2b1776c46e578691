"""A model whose replicas real agents bring about, as the database, the gateways and the hosts' processes show it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import connection
from django.utils import timezone

from accounts.core.access import Actor
from benchmarks.losses.doubled import doubled, slots_given_twice
from benchmarks.losses.net import Net
from benchmarks.losses.users import Users
from benchmarks.losses.world import GATEWAYS, NODES, Machines, until
from ledger.core.canonical import canonical_bytes, sha256_of
from ledger.models import Event
from registry.models import Release
from registry.storage import store
from rollouts import actions
from rollouts.models import Rollout
from serving.actions.deployments import ensure_deployment
from serving.actions.replicas import scale_release
from serving.actions.routes import set_route
from serving.adapters.envoy_hosts import EnvoyHosts
from serving.models import Node, Route, Server
from serving.queries.deployments import answering_servers, live_deployments
from serving.queries.routes import acknowledged
from tests.contracts import serving_models
from tests.factories import make_admin, make_environment, make_model

ADMIN = Actor.system("setup")
MODEL = "double"
#: Of stable, before each row and after it.
REPLICAS = 2
#: So long a real server may take from being asked for to being ready, beside everything else on two cores.
LOADS_S = 45.0
_FOR_EVER = {"min_s": 3600, "min_samples": 10**6, "deadline_s": 7200}


def policy(*steps: dict[str, Any]) -> dict[str, Any]:
    """As a model's own, but that it stays at its last step."""
    return {"preset": "demo", "second_look": {"looks": 1}, "steps": [*steps], "bake": _FOR_EVER, "no_data_s": 3600}


STAYS = policy({"weight_pct": 25, **_FOR_EVER})


class Fleet:
    """One model, of whose stable release there are to be two replicas. Nobody but agents starts or ends a server."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.person = make_admin("operator")
        self.environment = make_environment("production", needs_passed_report=False)
        tensors = {name: serving_models.serving()[name] for name in ("inputs", "outputs")}
        self.model = make_model(
            MODEL, contract=tensors, objectives={"errors_max_frac": 0.05}, rollout_policy=STAYS, last_number=0
        )
        machines.make_gateways(self.environment)
        self.watch = Watch()

    def begin(self) -> float:
        """Seconds until every gateway follows its routes, once all hosts were started and stable's replicas answer."""
        until(lambda: Node.objects.count() == len(NODES), "an agent of each node is heard of", 180)
        self.stable = self.release()
        ensure_deployment(actor=ADMIN, release=self.stable, environment=self.environment, reason="It serves.")
        self.scale(REPLICAS)
        until(lambda: len(self.answering(self.stable)) == REPLICAS, "stable's replicas answer", 3 * LOADS_S)
        route = set_route(
            actor=ADMIN, environment=self.environment, model=self.model, stable=self.stable, reason="It serves."
        )
        self.watch.start()
        return self._arrives(route)

    def release(self) -> Release:
        """One more, sealed; its files are in the blob store."""
        self.model.last_number += 1
        self.model.save(update_fields=["last_number"])
        blobs = serving_models.MemoryBlobs()
        told = serving_models.doubling(blobs, MODEL) | {"provenance": {"notes": f"r{self.model.last_number}"}}
        for sha256 in blobs.data:
            store().put_stream(blobs.open(sha256), sha256)
        data = canonical_bytes(told)
        return Release.objects.create(
            model=self.model, number=self.model.last_number, state="sealed", manifest=data.decode(),
            digest=sha256_of(data), sealed_at=timezone.now(),
        )  # fmt: skip

    def scale(self, replicas: int, release: Release | None = None) -> None:
        where = {"release": release or self.stable, "environment": self.environment}
        scale_release(actor=self.person, replicas=replicas, reason="For the row.", **where)

    # -- what the database says -----------------------------------------------------------------------------------------

    def answering(self, release: Release, *, but: str = "") -> list[Server]:
        """The release's servers that answer, on other nodes than this."""
        return list(answering_servers().filter(deployment__release=release).exclude(deployment__node=but))

    def nodes_of(self, release: Release) -> list[str]:
        """Those on which it answers, by slot."""
        return [one.deployment.node_id for one in sorted(self.answering(release), key=lambda one: one.deployment.slot)]

    def alive(self) -> dict[int, str]:
        """The live deployments and their nodes."""
        return dict(live_deployments().values_list("pk", "node_id"))

    def heard_at(self, node: str) -> Any:
        return Node.objects.get(name=node).seen_at

    def said(self, verb: str) -> int:
        """How often this has happened."""
        return Event.objects.filter(verb=verb).count()

    # -- what the gateways and the hosts say ----------------------------------------------------------------------------

    def hosts_asked(self, release: Release, gateway: str) -> Counter[str]:
        """How often the gateway has asked the servers of each node that it has for the release."""
        found = EnvoyHosts().read_hosts(
            gateway=gateway, admin_url=self.machines.admin_url(gateway), timeout_s=5, model=MODEL,
            digest=str(release.digest),
        )  # fmt: skip
        names = {host.address: name for name, host in self.machines.net.hosts.items()}
        asked = Counter[str]()
        for (host, _), counts in found.items():
            asked[names[host]] += counts.attempts
        return asked

    def running(self) -> Counter[str]:
        """Processes of inference servers by host, as the kernel has them."""
        return Counter(
            name
            for name, host in self.machines.net.hosts.items()
            for pid in host.pids()
            if _command(pid) == "tritonserver"
        )

    def unsettled(self, release: Release | None = None) -> str:
        """What is not as it is to be: so many replicas of stable (or of that release) answer, nothing else is there or runs
        anywhere, and every gateway asks these and no others. Empty, where all is."""
        release = release or self.stable
        rows = list(live_deployments())
        wanted = Counter(one.node_id for one in rows)
        there = self.nodes_of(release)
        if len(rows) != REPLICAS or sorted(wanted.elements()) != sorted(there):
            return f"live: {sorted(wanted.elements())}; answering: {sorted(there)}"
        if (runs := self.running()) != wanted:
            return f"live: {dict(wanted)}; running: {dict(runs)}"
        asked = {name: set(self.hosts_asked(release, name)) for name in GATEWAYS}
        return "" if all(one == set(there) for one in asked.values()) else f"{sorted(there)} answer; asked: {asked}"

    def settles(self, within_s: float) -> float:
        """Seconds until nothing is `unsettled`."""
        why = ""

        def is_settled() -> bool:
            nonlocal why
            why = self.unsettled()
            return not why

        try:
            return until(is_settled, "all is settled", within_s, look_s=0.3)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {why}") from error

    # -- rollouts -------------------------------------------------------------------------------------------------------

    def start_rollout(self, policy: dict[str, Any] | None = None) -> Rollout:
        """One whose candidate has its first weight."""
        made = actions.start_rollout(
            actor=self.person, candidate=self.release(), environment=self.environment, policy=policy
        )

        def shifts() -> bool:
            now = self.now(made)
            return now.state == "shifting" and now.step_started_at is not None

        until(shifts, "it shifts", 2 * LOADS_S)
        return self.now(made)

    def abort(self, rollout: Rollout) -> None:
        now = self.now(rollout)
        actions.abort(actor=self.person, rollout=now, expected_version=now.version, reason="To see it taken back.")
        until(lambda: self.now(rollout).state == "rolled_back", "it is rolled back", 60)

    def now(self, rollout: Rollout) -> Rollout:
        return Rollout.objects.get(pk=rollout.pk)

    def _arrives(self, route: Route) -> float:
        return until(lambda: len(acknowledged(route).taken_by) == len(GATEWAYS), "every gateway follows it", 120)

    # -- afterwards -----------------------------------------------------------------------------------------------------

    def twice(self) -> list[str]:
        return doubled() + self.watch.forget()

    def end(self) -> None:
        self.watch.stop()


class Watch:
    """Looks all the time whether a slot is given away twice at any moment."""

    def __init__(self) -> None:
        self._stop, self._seen = threading.Event(), set[str]()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(30)

    def forget(self) -> list[str]:
        """What was seen since this was asked last."""
        found, self._seen = self._seen, set()
        return sorted(found)

    def _look(self) -> None:
        try:
            while not self._stop.wait(0.2):
                self._seen |= {f"for a moment: {one}" for one in slots_given_twice()}
        except Exception as error:
            self._seen.add(f"nobody looked any more: {error}")
        connection.close()


@dataclass
class FleetScene:
    net: Net
    machines: Machines
    story: Fleet
    users: Users


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
