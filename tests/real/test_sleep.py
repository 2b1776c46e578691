"""A model that sleeps, on real parts: what a gateway answers for it and counts, and how a Triton is unloaded and comes back on demand."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import grpc
import pytest
from django.utils import timezone
from tritonclient.grpc import service_pb2

from serving.environments.core.sleep_lifecycle import SleepRule
from serving.models import Replica, Server, Sleep
from serving.targets.actions.sleeping import rule_sleep
from serving.targets.agent.sleep_watch import SleepWatch
from serving.targets.core.sleep import LEAST_S
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.adapters.envoy_hosts import EnvoyHosts
from serving.traffic.core.asleep import Asleep
from serving.traffic.core.request_limits import Limits
from serving.traffic.core.routes import digest12
from tests.real.test_agent import SYSTEM, Machine, database, machine, processes_under  # noqa: F401
from tests.real.test_static_servers import BODY, Product, gateway  # noqa: F401
from tests.support.rigs.gateway_rig import FORCES, MODEL, Envoy, Rig, Traffic, rig, wait_until
from tests.support.worlds.sleep_setup import Clock, Leads

pytestmark = [pytest.mark.real("envoy"), pytest.mark.timeout(600)]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as built:
        yield built


def refused(envoy: Envoy, model: str = MODEL) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """How a gRPC call ends that is no answer: status, message, metadata."""
    sent = service_pb2.ModelInferRequest(model_name=model).SerializeToString()
    with envoy.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(sent, timeout=50)
    error = caught.value
    told = {**dict(error.initial_metadata() or ()), **dict(error.trailing_metadata() or ())}
    return error.code(), error.details(), told


def test_a_gateway_answers_for_a_model_that_sleeps_and_counts_that_as_no_error(parts: Rig) -> None:
    parts.apply(None)
    assert parts.envoy.http().status == 200
    parts.apply(None, asleep=Asleep(7), stable=parts.route(None).stable)
    for path in ("infer", "generate", "generate_stream", "ready"):
        answer = parts.envoy.http(f"/v2/models/{MODEL}/{path}")
        assert (answer.status, answer.headers["retry-after"], answer.headers["x-sluicegate-asleep"]) == (
            503,
            "7",
            "model_asleep",
        )
        assert json.loads(answer.body) == {
            "error": f"model_asleep: {MODEL} is asleep; it is being loaded; try again in 7 s"
        }
    code, message, told = refused(parts.envoy)
    assert (code, told["retry-after"], told["x-sluicegate-asleep"]) == (
        grpc.StatusCode.UNAVAILABLE,
        "7",
        "model_asleep",
    )
    assert message.startswith("model_asleep: ")
    assert parts.envoy.http(f"/v2/models/{MODEL}/trace/setting").status == 501
    counted = parts.counters()
    assert (counted.asleep, counted.user_requests, counted.user_errors) == (5, 1, 0)
    parts.apply(None, asleep=Asleep(None), stable=parts.route(None).stable)
    answer = parts.envoy.http()
    assert (
        answer.status == 503 and "retry-after" not in answer.headers and "somebody has to wake it" in str(answer.body)
    )
    parts.apply(None)
    assert parts.envoy.http().status == 200


def test_a_forced_request_finds_it_asleep_too_and_is_counted(parts: Rig) -> None:
    parts.apply(None, allows_forced=True)
    assert parts.envoy.http(headers={**FORCES, "x-sluicegate-release": "r1"}).status == 200
    parts.apply(None, allows_forced=True, asleep=Asleep(7))
    assert parts.envoy.http(headers={**FORCES, "x-sluicegate-release": "r1"}).status == 503
    counted = parts.counters()
    assert (counted.forced, counted.asleep, counted.user_requests) == (1, 1, 0)


def test_falling_asleep_under_way_loses_no_answer_that_had_begun(parts: Rig) -> None:
    """Whoever asks from then on is told so; what was being answered is answered, and seen as in flight until it is."""
    parts.apply(None)
    traffic = Traffic(parts.envoy)
    for asleep in (Asleep(1), None) * 4:
        parts.apply(None, asleep=asleep)
        traffic.go_on()
    assert set(found := traffic.stop()) <= {"", "HTTP 503", "UNAVAILABLE"}, found
    counted = parts.counters()
    assert counted.user_errors == 0 and counted.asleep == found["HTTP 503"] + found["UNAVAILABLE"]


def test_what_is_in_flight_is_told_of_all_releases_at_once(parts: Rig) -> None:
    """A class's places on the same servers are those of the release, too."""
    of_stable = (MODEL, digest12(Rig.STABLE))

    def told() -> dict[tuple[str, str], int]:
        return EnvoyHosts().read_in_flight(gateway="gateway-1", admin_url=parts.envoy.admin_url, timeout_s=20.0)

    parts.apply(5000, limits=Limits(timeout_s=50.0, attempt_timeout_s=50.0))
    parts.envoy.http()
    assert told() == {}
    parts.stable.mode = parts.candidate.mode = "hang"
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(parts.envoy.http) for _ in range(8)]
        wait_until(lambda: sum(told().values()) == len(asked), "all are in flight")
        assert set(told()) <= {of_stable, (MODEL, digest12(Rig.CANDIDATE))} and told().get(of_stable)
        parts.apply(None, asleep=Asleep(7), stable=parts.route(None).stable)
        assert parts.envoy.http().status == 503 and sum(told().values()) == len(asked)
        # Ten seconds later the gateway removes the clusters of releases without a route. Their requests are still counted.
        removed = wait_until(
            lambda: digest12(Rig.CANDIDATE) not in parts.envoy.admin("/clusters"), "a cluster is removed"
        )
        assert removed and sum(told().values()) == len(asked)
        parts.stable.stop()
        parts.candidate.stop()
    wait_until(lambda: told() == {}, "nothing is in flight")


@pytest.mark.real("triton", "envoy")
@pytest.mark.django_db(transaction=True)
def test_a_triton_that_nobody_asks_is_unloaded_and_answers_again_when_it_is_asked(
    machine: Machine, gateway: Envoy, tmp_path: Path
) -> None:
    ahead = timedelta()

    def clock() -> datetime:
        return timezone.now() + ahead

    product = Product(tmp_path)
    release = product.release(1)
    first = product.deploy(release)
    server = machine.ready(first)
    product.route(release)
    wait_until(gateway.is_open, "the gateway's port")
    path = f"/v2/models/{product.model.slug}/infer"

    def asked() -> int:
        answer = gateway.http(path, {"Content-Type": "application/json"}, BODY)
        if answer.status == 200:
            assert json.loads(answer.body)["outputs"][0]["data"] == [2, 4, 6, 8]
        return answer.status

    def sleep() -> Sleep:
        return Sleep.objects.get(model=product.model)

    watch = SleepWatch(EnvoyCounters(now=clock), EnvoyHosts(), Leads(), Clock(clock))

    def looked(is_true: Callable[[], bool]) -> Callable[[], bool]:
        def look() -> bool:
            watch.turn()
            return is_true()

        return look

    assert asked() == 200
    rule_sleep(actor=SYSTEM, model=product.model, environment=product.environment, rule=SleepRule(LEAST_S))
    counted = looked(lambda: [one.requests for quiet in watch._quiet.values() for one in quiet.counts.values()] == [1])
    wait_until(
        counted, "the gateway tells of the request"
    )  # a moment later: what is counted after the clock is put forward was asked then
    assert sleep().state == "awake"
    ahead = timedelta(seconds=LEAST_S + 60)
    wait_until(looked(lambda: sleep().state == "asleep"), "it sleeps")
    wait_until(looked(lambda: Replica.objects.get(pk=first.pk).state == "gone"), "its server is gone")
    wait_until(lambda: not processes_of(server), "its processes have ended")
    assert asked() == 503
    assert refused(gateway, product.model.slug)[0] is grpc.StatusCode.UNAVAILABLE
    wait_until(looked(lambda: sleep().state == "awake"), "it answers again")
    wait_until(lambda: asked() == 200, "the gateway has heard of it")
    again = Replica.objects.exclude(pk=first.pk).get(release=release)
    assert again.state == "ready" and sleep().wake_s == 3 + -(
        -(first.timings["load_s"] + first.timings["warmup_s"]) // 1
    )


def processes_of(server: Server) -> list[str]:
    return processes_under(Path(server.folder))
