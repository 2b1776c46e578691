"""One gateway's delta-ADS stream: what it asked for, has and refused, and what to send next.

Nothing here waits. Every event (a request, an acknowledgement, a new snapshot, a tick) ends in `due()`, which compares
what the gateway has with what it should have and returns the responses that may be sent now. Only models that an event is about are
looked at again: fifty gateways with a thousand models each are fifty thousand to compare, for each word of each of them.

    clusters + endpoints → acknowledged → virtual hosts → acknowledged → a while later, removal of unused clusters

so that one model whose clusters are stuck never holds up another model's rollback.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from envoy.service.discovery.v3 import discovery_pb2

from serving.traffic.control_plane.flights import MOST_FLYING, Flights, Sent
from serving.traffic.control_plane.following import Following
from serving.traffic.control_plane.protos import CLUSTER, ENDPOINTS, LISTENER, OLDER_ROUTES, SCOPE, Resource
from serving.traffic.control_plane.received import Received, Refusal, StreamAck, blamed
from serving.traffic.control_plane.snapshot import CompiledModel, Snapshot

#: A gateway that neither accepts nor refuses a response within this time is reported as a problem.
ACK_TIMEOUT_S = 5.0
#: A new cluster without an answer for this long is stuck while warming and is taken away, to be tried again later.
STUCK_S, RETRY_S = 15.0, 30.0
#: Requests in flight may need a cluster for a while after the routes have left it.
GRACE_S = 10.0
#: Said of every route of a gateway that was started before its models had routes of their own, until those connections have ended.
OLDER_CONNECTIONS = (
    "connections from before the control plane was upgraded still go by their old weights; start this gateway's Envoy anew, or wait "
    "for its drain time (10 minutes)"
)
#: At the start the listener waits for clusters, but one broken model must not keep the port shut.
START_S = 3.0


class GatewayStream:
    """Pure but for its own memory: time is an argument, in monotonic seconds."""

    def __init__(self, listeners: Mapping[str, Resource], *, now: float, grace_s: float = GRACE_S) -> None:
        self.listeners = listeners
        self._kinds = {url: Received() for url in (CLUSTER, ENDPOINTS, LISTENER, SCOPE)}
        self._flights = Flights()
        self._following = Following()
        self._unused_since: dict[str, float] = {}
        self._acked: dict[int, tuple[int, str, bool]] = {}
        self._followed: dict[int, int] = {}  # route → the generation of the last virtual host that was accepted
        self._began = now
        self._grace_s = grace_s
        self._last: Snapshot | None = None
        self._has_begun = False  # to send routes
        self._was_shut = False  # a listener was refused last
        self._older: set[str] = set()  # routes that connections of an older version's listener still go by
        # Models, by the names of their virtual hosts:
        self._looks_at_all = True  # or at those
        self._touched: set[str] = set()  # of which something was said since they were looked at
        self._untold: set[str] = set()  # that were looked at since the gateway's word on them was told
        self._waiting: set[str] = set()  # whose virtual host is to be sent when others have been answered
        self._alone: set[str] = set()  # whose virtual host was refused, or came together with one that was
        self._behind: dict[str, set[str]] = {CLUSTER: set(), ENDPOINTS: set()}  # whose clusters, whose endpoints
        self._unsettled: set[str] = set()  # whose virtual host was not taken yet
        self._unready: set[str] = set()  # whose virtual host is not to be sent yet
        self._unused: set[str] = set()  # clusters that no model has any more

    # -- what the gateway says --------------------------------------------------------------------------------------

    def receive(self, request: discovery_pb2.DeltaDiscoveryRequest) -> None:
        """Takes a subscription, an acknowledgement or a refusal, or several at once."""
        kind = self._kinds.get(request.type_url)
        if kind is None:
            if request.type_url == OLDER_ROUTES:
                self._older |= set(request.resource_names_subscribe)
                self._older -= set(request.resource_names_unsubscribe)
                self._looks_at_all = True
            return
        if request.response_nonce:
            self._answered(
                request.response_nonce, request.error_detail.message if request.HasField("error_detail") else ""
            )
        if not kind.is_asked:
            kind.is_asked = True
            # A reconnecting gateway lists what it still has: that is not sent again, and counts as accepted. But a route counts as
            # acknowledged only by an answer to what this stream was sent, so virtual hosts are all sent again.
            kind.sent = dict(request.initial_resource_versions)
            kind.accepted = {} if request.type_url == SCOPE else dict(kind.sent)
            if request.type_url == SCOPE:
                kind.sent = dict.fromkeys(kind.sent, "")
            kind.is_wildcard = request.type_url in (CLUSTER, LISTENER, SCOPE) and not request.resource_names_subscribe
            self._looks_at_all = True
        elif (
            "*" in request.resource_names_subscribe
        ):  # asked for all again, by a listener that comes after one that went
            kind.sent, kind.is_answered, self._looks_at_all = {}, False, True
        else:
            for name in request.resource_names_subscribe:
                kind.sent.pop(name, None)  # asking again means: send again
            self._touch(request.type_url, request.resource_names_subscribe)
        kind.names |= set(request.resource_names_subscribe)
        kind.names -= set(request.resource_names_unsubscribe)
        if "*" in kind.names or request.type_url == SCOPE:
            kind.is_wildcard = True

    def _answered(self, nonce: str, error: str) -> None:
        flight = self._flights.end(nonce)
        if flight is None:
            return
        kind, bad = self._kinds[flight.type_url], blamed(flight.type_url, flight.versions.keys(), error)
        if bad or flight.type_url in (CLUSTER, LISTENER):
            self._touch(flight.type_url, flight.versions)
        else:  # what it was sent is what it has: something may follow only where that was in doubt, or where routes waited for endpoints
            doubted = kind.refused.keys() & flight.versions.keys()
            news = flight.versions.keys() - kind.accepted.keys() if flight.type_url == ENDPOINTS else set()
            self._touch(flight.type_url, doubted | news)
            self._untold |= flight.versions.keys() if flight.type_url == SCOPE else set()
        kind.has_answered = True
        if bad:
            self._following.spoil()
        if flight.type_url == SCOPE:
            self._alone |= bad
            self._alone -= flight.versions.keys() - bad
        for name, version in flight.versions.items():
            if name not in bad:
                kind.accepted[name] = version
                kind.refused.pop(name, None)
            elif flight.type_url == SCOPE and len(flight.versions) > 1:
                kind.forget(name)  # so offer each alone
            else:
                kind.refused[name] = Refusal(version, error)
        if flight.type_url == LISTENER:
            if not bad and self._was_shut:
                # Envoy gives a listener that follows a refused one no routes from before, and does not ask for them again.
                routes = self._kinds[SCOPE]
                routes.sent, routes.accepted, routes.is_answered, self._looks_at_all = {}, {}, False, True
            self._was_shut = bool(bad)

    def _touch(self, type_url: str, names: Iterable[str]) -> None:
        """These resources are to be looked at again, with all that belongs to their models."""
        if type_url == SCOPE:
            self._touched.update(names)
            return
        owners = self._last.owners if self._last is not None and type_url in (CLUSTER, ENDPOINTS) else {}
        for name in names:
            if name in owners:
                self._touched.add(owners[name])
            else:  # a listener, or a cluster that several models share: it is about all of them
                self._looks_at_all = True

    # -- what to tell it --------------------------------------------------------------------------------------------

    def due(self, snapshot: Snapshot, now: float) -> list[discovery_pb2.DeltaDiscoveryResponse]:
        """The responses to send now, in this order."""
        out = self._give_up(now)
        is_new = self._follow(snapshot)
        self._recall_waiting(snapshot)
        models = {name: snapshot.models[name] for name in self._touched if name in snapshot.models}
        self._untold |= self._touched
        self._touched = set()
        changed = self._changed_in_turn(CLUSTER, models)
        for name in changed:
            self._kinds[ENDPOINTS].sent.pop(name, None)  # a changed cluster warms until its endpoints come again
            self._kinds[ENDPOINTS].accepted.pop(name, None)
        out += self._offer(CLUSTER, changed, now)
        out += self._offer(ENDPOINTS, self._changed_in_turn(ENDPOINTS, models), now)
        ready = {name: model for name, model in models.items() if self._is_ready(model)}
        self._unready = (self._unready & snapshot.models.keys() | models.keys()) - ready.keys()
        self._has_begun |= len(ready) == len(snapshot.models) or now - self._began > START_S
        if self._has_begun or self._kinds[SCOPE].sent:
            out += self._offer(LISTENER, self._changed(LISTENER, self.listeners), now)
            out += self._offer_vhosts(ready, snapshot, now, is_new=is_new)
        else:
            self._looks_at_all = True
        out += self._remove_unused(models, snapshot, now, is_new=is_new)
        return out

    def _follow(self, snapshot: Snapshot) -> bool:
        """Touches the models that a new snapshot changed, or all of them; whether there may be something that has no model now."""
        last, self._last = self._last, snapshot
        step = snapshot.since(last) if last is not None and last.models and not self._looks_at_all else None
        if step is None:
            self._looks_at_all = False
            self._touched = set(snapshot.models)
            self._unsettled = set(snapshot.models)
            return True
        self._touched |= step.models
        if last is not snapshot and (self._unused or step.lost_clusters):
            self._unused = {name for name in self._unused | step.lost_clusters if name not in snapshot.clusters}
        return bool(step.lost_models)

    def _recall_waiting(self, snapshot: Snapshot) -> None:
        """Touches what there is room for now; of virtual hosts those that changed last before others."""
        for type_url, behind in self._behind.items():
            if behind and self._flights.room(type_url):
                self._touched |= behind
                behind.clear()
        self._waiting &= snapshot.models.keys() if self._waiting else set()
        if self._waiting and (room := self._flights.room(SCOPE)) >= MOST_FLYING[SCOPE] // 2:
            first = heapq.nlargest(room, self._waiting, key=lambda name: snapshot.models[name].route.generation)
            self._waiting.difference_update(first)
            self._touched.update(first)

    def _changed_in_turn(self, type_url: str, models: Mapping[str, CompiledModel]) -> dict[str, Resource]:
        """Of these models' resources what is to be sent now. Nothing while there is no room: they are looked at again once there is."""
        sent, changed = self._kinds[type_url].sent.items(), dict[str, Resource]()
        owners = set()
        for name, model in models.items():
            if not model.versions[type_url].items() <= sent:
                some = self._changed(type_url, model.of(type_url))
                owners |= {name} if some else set()
                changed |= some
        if not changed or self._flights.room(type_url):
            return changed
        self._behind[type_url] |= owners
        return {}

    def acks(self, snapshot: Snapshot) -> list[StreamAck]:
        """What changed in the gateway's word on each route since the last call."""
        out = []
        self._untold |= self._touched
        models = [snapshot.models[name] for name in self._untold if name in snapshot.models]
        hosts, is_open = self._kinds[SCOPE], self._is_open()
        has_refused = any(kind.refused for kind in self._kinds.values())
        for model in models:
            route, errors = model.route, self._errors(model) if has_refused else []
            is_taken = hosts.accepted.get(model.scope.name) == model.scope.version
            if is_taken:
                self._followed[route.route_id] = route.generation
            if self._older:  # which weights those connections go by, nobody changes any more
                word = (route.generation, OLDER_CONNECTIONS, False)
            elif errors:
                word = (route.generation, errors[0], self._followed.get(route.route_id) == route.generation)
            elif is_taken and hosts.is_asked and is_open:
                word = (route.generation, "", False)
            else:
                continue
            if self._acked.get(route.route_id) != word:
                self._acked[route.route_id] = word
                out.append(StreamAck(route.route_id, *word))
        self._untold.clear()
        return out

    def follows_at(self, snapshot: Snapshot, read_at: datetime) -> datetime | None:
        """Up to when the gateway has what the database said, but for models that `acks` tells an error of. `snapshot`, which was read at
        this instant, was looked at just now."""
        is_asked = all(one.is_asked for url, one in self._kinds.items() if url != ENDPOINTS or snapshot.endpoints)
        is_refused = any(name in snapshot.endpoints for name in self._kinds[ENDPOINTS].refused)
        is_told = is_asked and not (is_refused or self._looks_at_all)
        unsent = {name for name in self._unready if not self._errors(snapshot.models[name])}
        unsent = unsent.union(self._touched, self._waiting, *self._behind.values())
        return self._following.look(read_at, self._flights, unsent, is_told=is_told)

    def _errors(self, model: CompiledModel) -> list[str]:
        """What the gateway said of what is wanted of this model: of its virtual host, of the listeners, of its clusters."""
        wanted = [(SCOPE, model.scope), *((LISTENER, one) for one in self.listeners.values())]
        wanted += [(CLUSTER, one) for one in model.clusters.values()]
        refusals = [(self._kinds[type_url].refused.get(one.name), one.version) for type_url, one in wanted]
        return [refusal.words for refusal, version in refusals if refusal is not None and refusal.version == version]

    def _is_open(self) -> bool:
        """Whether the gateway took every listener. One that is offered anew after a refusal is no word on any route."""
        taken = self._kinds[LISTENER].accepted
        return all(taken.get(name) == one.version for name, one in self.listeners.items())

    def _is_ready(self, model: CompiledModel) -> bool:
        """Whether the gateway has every cluster of a model and, where they have their own, the endpoints too."""
        taken, homes = self._kinds[CLUSTER].accepted, self._kinds[ENDPOINTS].accepted
        own, has = model.versions[CLUSTER], model.versions[ENDPOINTS]
        return own.items() <= taken.items() and has.keys() <= homes.keys()

    def _changed(self, type_url: str, wanted: Mapping[str, Resource]) -> dict[str, Resource]:
        kind = self._kinds[type_url]
        if not kind.is_asked:
            return {}
        return {
            name: one
            for name, one in wanted.items()
            if (kind.is_wildcard or name in kind.names)
            and kind.sent.get(name) != one.version
            and (name not in kind.refused or kind.refused[name].version != one.version)
        }

    def _offer(
        self, type_url: str, resources: Mapping[str, Resource], now: float, removed: Iterable[str] = ()
    ) -> list[discovery_pb2.DeltaDiscoveryResponse]:
        """At most one response. The first on a type is sent even when empty: the gateway waits for it at its start."""
        kind, gone = self._kinds[type_url], list(removed)
        first = kind.is_asked and kind.is_wildcard and not kind.is_answered
        if not resources and not gone and not first:
            return []
        versions = {name: one.version for name, one in resources.items()}
        nonce = self._flights.begin(Sent(type_url, versions, now))
        kind.is_answered = True
        kind.sent.update(versions)
        for name in gone:
            kind.sent.pop(name, None)
            kind.accepted.pop(name, None)
        response = discovery_pb2.DeltaDiscoveryResponse(type_url=type_url, nonce=nonce, removed_resources=gone)
        response.resources.extend(one.message for one in resources.values())
        return [response]

    def _offer_vhosts(
        self, ready: Mapping[str, CompiledModel], snapshot: Snapshot, now: float, *, is_new: bool
    ) -> list[discovery_pb2.DeltaDiscoveryResponse]:
        """All at once to a gateway that has none, so that its port opens with all of them; then what changed last first, new weights one by
        one: Envoy refuses all of a response for one bad one.
        """
        kind = self._kinds[SCOPE]
        if not kind.is_asked:
            return []
        # An empty table takes nothing away: it may be a database that is not the one traffic was routed by.
        unknown = {snapshot.unknown.name: snapshot.unknown}
        gone = []
        if is_new and snapshot.models:
            gone = sorted(kind.sent.keys() - (snapshot.models.keys() | snapshot.kept | unknown.keys()))
        changed = self._changed(SCOPE, {name: model.scope for name, model in ready.items()})
        of_none = self._changed(SCOPE, unknown)
        if gone:
            self._touched.update(changed)
            return self._offer(SCOPE, {}, now, gone)
        if not kind.is_answered:
            return self._offer(SCOPE, of_none | changed, now)
        alone, together = self._in_turn(changed, snapshot)
        is_one = len(alone) == 1 and not self._waiting  # as a rollback is, mostly
        room = max(self._flights.room(SCOPE), int(is_one))
        rest = max(room - len(alone), 0)
        self._waiting.update(alone[room:], together[rest:])
        each = [of_none, *({name: changed[name]} for name in alone[:room])]
        each.append({name: changed[name] for name in together[:rest]})
        return [response for one in each for response in self._offer(SCOPE, one, now)]

    def _in_turn(self, names: Iterable[str], snapshot: Snapshot) -> tuple[list[str], list[str]]:
        """Those with new weights, which go alone, and those that change otherwise, as where replicas come and go; the last change first."""
        routes = {name: snapshot.models[name].route for name in names}
        by_age = sorted(routes, key=lambda name: routes[name].generation, reverse=True)
        kept = {name for name, one in routes.items() if self._followed.get(one.route_id) == one.generation}
        kept -= self._alone
        return [name for name in by_age if name not in kept], [name for name in by_age if name in kept]

    def _remove_unused(
        self, looked_at: Iterable[str], snapshot: Snapshot, now: float, *, is_new: bool
    ) -> list[discovery_pb2.DeltaDiscoveryResponse]:
        """Clusters that no accepted route can name, once they have been so for the grace period."""
        kind, taken = self._kinds[CLUSTER], self._kinds[SCOPE].accepted
        self._unsettled.update(looked_at)
        if is_new:
            self._unsettled &= snapshot.models.keys()
            unused = kind.sent.keys() - snapshot.clusters.keys() if snapshot.models else set()
            self._unused = {name for name in unused if not snapshot.keeps(name)}
        self._unused &= kind.sent.keys()  # without those that are gone: streams live for weeks
        if self._unused:
            models = {name: snapshot.models[name] for name in self._unsettled if name in snapshot.models}
            self._unsettled = {name for name, one in models.items() if taken.get(name) != one.scope.version}
        unused = set() if self._unsettled else self._unused
        self._unused_since = {name: self._unused_since.get(name, now) for name in unused}
        gone = [name for name, since in self._unused_since.items() if now - since >= self._grace_s]
        # A cluster needs what it falls back to: aggregates go first.
        return self._offer(CLUSTER, {}, now, sorted(gone, key=lambda name: "_or_" not in name)) if gone else []

    def _give_up(self, now: float) -> list[discovery_pb2.DeltaDiscoveryResponse]:
        """Blames responses that were not answered in time, and tries again later; not while a gateway is slow and goes
        on answering what it was sent before: whatever is offered again makes it slower still.

        A new cluster that is stuck while warming holds back the acknowledgement of every other cluster, so it is taken
        away; one that carries traffic is left alone.
        """
        shut = self._kinds[LISTENER].refused
        for name, refusal in shut.items():
            if refusal.until == math.inf:  # another program has the port, as a rule, and may leave it
                shut[name] = replace(refusal, until=now + RETRY_S)
        for type_url, kind in self._kinds.items():
            again = [name for name, refusal in kind.refused.items() if refusal.until <= now]
            for name in again:
                del kind.refused[name]
                kind.forget(name)
            self._touch(type_url, again)
            if kind.has_answered:
                kind.has_answered, kind.answered_at = False, now
        out = []
        for nonce, flight in self._flights:
            kind = self._kinds[flight.type_url]
            silent_since = max(flight.at, kind.answered_at)  # answers to one kind come in its order
            waited = now - silent_since
            if waited > ACK_TIMEOUT_S and not flight.is_late:
                flight.is_late = True
                self._touch(flight.type_url, flight.versions)
                words = f"no answer from the gateway for {ACK_TIMEOUT_S:.0f} s"
                until = silent_since + RETRY_S
                kind.refused.update({name: Refusal(version, words, until) for name, version in flight.versions.items()})
            stuck = [name for name in flight.versions if name not in kind.accepted]
            if waited > STUCK_S and flight.type_url == CLUSTER:
                self._flights.end(nonce)  # a late word on what was taken away means nothing
                self._following.spoil()
                self._touch(CLUSTER, flight.versions)
                out += self._offer(CLUSTER, {}, now, stuck) if stuck else []
        return out
