"""Releases on llama.cpp's real server: sealed, proven by gates, rolled out and rolled back through a real gateway."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Actor
from registry import actions as registry_actions
from registry.core.kinds import spoken_by
from registry.core.kinds.llamacpp import LLAMACPP
from registry.models import Release
from registry.storage import store as blob_store
from rollouts import actions
from rollouts.core.rules import all_failing, mostly_failing
from rollouts.engine.loop import Engine
from rollouts.engine.timings import EngineTimings
from rollouts.models import DecisionRecord, Rollout
from serving.models import Gateway, Route
from serving.ports import ArmCounters, LaunchSpec, RunningServer
from serving.servers.clients import Client
from serving.targets.agent.blob_cache import BlobCache
from serving.targets.agent.health_check import check_health
from serving.targets.agent.launcher import LocalLauncher
from serving.targets.agent.runtime_image import describe, venv_of
from serving.targets.agent.warmup import warm_up
from serving.targets.core.health import Probe
from serving.targets.local_trial import LocalServer
from serving.traffic.actions.routes import set_route
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.control_plane import store
from serving.traffic.core.routes import admit
from tests.contracts.serving_models import VENV
from tests.support.rigs.gateway_rig import Rig, rig, wait_until
from tests.support.rigs.triton_rig import local_launcher
from tests.support.worlds.factories import make_admin, make_environment, make_replica, make_server
from tests.support.worlds.registry_samples import developer, put, served_model
from tests.support.worlds.tiny_gguf import PLAIN_TEMPLATE, STRICT_TEMPLATE, tiny_gguf
from validators.core.policy import parse_policy
from validators.core.verdict import Verdict
from validators.execution.gates import GateContext, run_gate

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.real("envoy", "llamacpp"),
    pytest.mark.timeout(600),
]
MODEL = "chatter"
OBJECTIVES = {"errors_max_frac": 0.2, "slow": {"threshold_ms": 10_000, "max_frac": 0.5}}
POLICY = {
    "preset": "demo",
    "second_look": {"looks": 1},
    "cold_s": 0,
    "steps": [{"weight_pct": 50, "min_s": 0, "min_samples": 30, "deadline_s": 600}],
    "bake": {"min_s": 0, "min_samples": 30, "deadline_s": 600},
    "no_data_s": 600,
    "instant_window_s": 0,
}
GATES = parse_policy(
    {
        "gates": ["contract", "cold_start", "load"],
        "cold_start": {"inferences": 5, "max_s": 120},
        "load": {"rate_per_s": 2, "duration_s": 5, "slo_quantile": 0.5, "slo_ms": 15_000, "max_lag_ms": 60_000, "burst_s": 0},
    }
)  # fmt: skip
WORKERS = 4


def asks(*roles: str) -> bytes:
    """A chat with a message of each role."""
    messages = [{"role": role, "content": "hi"} for role in roles]
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 1, "temperature": 0}).encode()


#: A chat that every template takes, and one that a strict one refuses.
PLAIN, REPEATED = asks("user"), asks("user", "user")


class Shop:
    """One chat model, its releases on real servers, a real gateway, and an engine whose turns are taken one by one."""

    def __init__(self, parts: Rig, launcher: LocalLauncher) -> None:
        self.parts, self.launcher, self.last = parts, launcher, None
        self.admin, self.developer = make_admin(), developer()
        own = {"slug": MODEL, "contract": {}, "objectives": OBJECTIVES, "rollout_policy": POLICY}
        self.model = served_model(self.developer, **own)
        self.environment = make_environment("production", needs_passed_report=False)
        url = f"127.0.0.1:{parts.envoy.port}"
        Gateway.objects.create(
            environment=self.environment, name="gateway-1", admin_url=parts.envoy.admin_url, http_url=f"http://{url}",
            grpc_address=url,
        )  # fmt: skip
        self.engine = Engine(EnvoyCounters(), tick_s=0.05, lease_s=60, timings=EngineTimings(zero_poll_for_s=0.0))
        self.statuses: Counter[int] = Counter()
        self.rollout: Rollout | None = None

    def push(self, *, seed: int = 0, template: str = PLAIN_TEMPLATE) -> Release:
        document = {
            "model": MODEL,
            "runtime": {
                "image": describe(venv_of(VENV, LLAMACPP), LLAMACPP)["image"], "server": "llamacpp", "backend": "gguf",
            },
            "serving": {
                "interface": "chat", "options": {"n_ctx": 256, "n_predict": 4},
                "instance_group": [{"kind": "cpu", "count": 2}],
            },
        }  # fmt: skip
        release, _ = registry_actions.create_draft(actor=self.developer, model=self.model, spec=document)
        put(self.developer, release, "artifact/model.gguf", tiny_gguf(seed, template))
        return registry_actions.seal(actor=self.developer, release=release)

    def serve(self, release: Release) -> tuple[RunningServer, Client]:
        manifest = json.loads(release.manifest)
        folder = self.launcher.folder_for(1, MODEL, release.name)
        running = self.launcher.start(LaunchSpec(1, MODEL, release.name, str(release.digest), manifest, folder))
        self.launcher.await_loaded(running, MODEL, timeout_s=120)
        replica = make_replica(release, self.environment, state="ready")
        row = make_server(
            replica, http_port=running.http_port, grpc_port=running.grpc_port, metrics_port=running.metrics_port,
            pid=running.pid, probed_at=timezone.now(),
        )  # fmt: skip
        assert self.launcher.adopt(folder) == running
        return running, LocalServer(row).client()

    def route(self, stable: Release) -> None:
        set_route(
            actor=Actor.system("test"), environment=self.environment, model=self.model, stable=stable, reason="It serves."
        )  # fmt: skip
        self.obey()

    def begin(self, stable: Release, candidate: Release) -> None:
        self.route(stable)
        self.rollout = actions.start_rollout(actor=self.admin, candidate=candidate, environment=self.environment)

    def obey(self) -> None:
        """The gateway takes what was written, and its word is written down, as the control plane does."""
        loaded = store.load()
        table = admit(loaded.tables["production"], self.last, loaded.known["production"]).table
        if table == self.last:
            return
        self.last, gateway = table, Gateway.objects.get()
        self.parts.loop.loop.call_soon_threadsafe(self.parts.plane.publish, table)
        (route,) = table.models
        wait_until(lambda: self.parts.acked(route.generation), f"generation {route.generation}")
        wait_until(self.parts.envoy.is_open, "the gateway's port")
        store.write_acks([store.AckRow(gateway.pk, route.route_id, route.generation, "", timezone.now())])

    def counted(self, release: Release) -> ArmCounters:
        self.parts.envoy.flushed()
        url = self.parts.envoy.admin_url
        found = EnvoyCounters().read(gateway="gateway-1", admin_url=url, models=[MODEL], timeout_s=20.0)
        return found[MODEL].by_release.get(str(release.digest), ArmCounters())

    def ask(self, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, bytes]:
        line = HTTPConnection("127.0.0.1", self.parts.envoy.port, timeout=60)
        try:
            line.request("POST", path, body, headers)
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()

    def turn(self, bodies: list[bytes]) -> str:
        with ThreadPoolExecutor(WORKERS) as pool:
            self.statuses.update(status for status, _ in pool.map(self.ask, bodies))
        store.write_seen([Gateway.objects.get().pk], timezone.now())
        self.parts.envoy.flushed()
        self.engine.step()
        self.obey()
        assert self.rollout is not None
        self.rollout.refresh_from_db()
        return str(self.rollout.state)

    def until(self, state: str, bodies: list[bytes], turns: int = 30) -> None:
        for _ in range(turns):
            if self.turn(bodies) == state:
                return
        assert self.rollout is not None
        said = [(d.action, d.code, d.reason) for d in DecisionRecord.objects.order_by("pk")]
        raise AssertionError(f"still {self.rollout.state}, not {state}: {self.rollout.reason} {said} {self.statuses}")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for rule in (all_failing, mostly_failing):
        monkeypatch.setattr(rule, "FAILING_OVER_S", 0.0)
    with local_launcher(tmp_path, None) as launcher, rig(tmp_path) as parts:  # type: ignore[arg-type]
        launcher._blobs = BlobCache(tmp_path / "cache", blob_store())
        yield Shop(parts, launcher)


def judged(gate: str, release: Release, client: Client) -> Any:
    manifest = json.loads(release.manifest)
    context = GateContext(
        model=MODEL, release=release.name, serving=manifest["serving"], envelope=manifest["envelope"], contract={},
        policy=GATES, server=client, timings={"fetch_s": 0.1, "load_s": 1.0, "warmup_s": 0.1},
        progress=lambda done, total: None, items=(), speaks=spoken_by(manifest),
    )  # fmt: skip
    return run_gate(gate, context)


@pytest.mark.shows("server:llamacpp", "backend:llamacpp/gguf")
def test_a_release_is_sealed_proven_and_promoted(shop: Shop) -> None:
    stable, candidate = shop.push(), shop.push(seed=1)
    client, manifest = shop.serve(stable)[1], json.loads(stable.manifest)
    warm_up(client, MODEL, manifest["serving"], limits={}, timeout_s=60)
    assert check_health(client, MODEL, manifest, timeout_s=60)[0].probe is Probe.RIGHT
    for gate in GATES.gates:
        found = judged(gate, stable, client)
        assert found.verdict is Verdict.PASSED, (gate, found.reason, found.evidence)
    client.close()
    shop.serve(candidate)[1].close()
    shop.begin(stable, candidate)
    shop.until("promoted", [PLAIN] * 40)
    assert set(shop.statuses) == {200}
    assert Route.objects.get().stable_id == candidate.pk


def test_a_candidate_whose_chat_template_refuses_users_chats_is_rolled_back(shop: Shop) -> None:
    """The answer is 400, which stable gives to fewer callers. No other chat fails."""
    stable, candidate = shop.push(), shop.push(template=STRICT_TEMPLATE)
    for release in (stable, candidate):
        shop.serve(release)[1].close()
    shop.begin(stable, candidate)
    shop.until("rolled_back", [PLAIN, REPEATED] * 20)
    assert DecisionRecord.objects.get(action="roll_back").facts["guard"] == "refused"
    assert set(shop.statuses) == {200, 400} and shop.counted(candidate).failed == 0
    route = Route.objects.get()
    assert (route.stable_id, route.candidate_id) == (stable.pk, None)


def chat(content: Any = "hi", **members: Any) -> bytes:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    return json.dumps(asked | members).encode()


IMAGE = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]
SHAPE = {
    "type": "json_schema",
    "json_schema": {"schema": {"type": "object", "properties": {"shape": {"type": "string"}}}},
}
#: Callers' mistakes, with the status that they get.
MISTAKES = {
    "an unknown model": (chat(model="another"), 404),
    "no model": (chat(model=None), 404),
    "an image for a text model": (chat(IMAGE), 400),
    "tools of no kind": (chat(tools=[{"type": "x"}]), 400),
    "a schema of no kind": (
        chat(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}),
        400,
    ),
    "more than the context": (chat("a" * 2000), 400),
    "a number that is none": (chat(max_tokens="a"), 400),
    "roles that the template refuses": (REPEATED, 400),
    "65 levels": (chat(json.loads("[" * 65 + "]" * 65)), 400),
}


def test_the_body_names_the_model_and_callers_mistakes_are_no_releases(shop: Shop) -> None:
    stable = shop.push(template=STRICT_TEMPLATE)
    shop.serve(stable)[1].close()
    shop.route(stable)
    assert {name: shop.ask(body)[0] for name, (body, _) in MISTAKES.items()} == {
        name: status for name, (_, status) in MISTAKES.items()
    }
    assert shop.ask(b"{", **{"x-sluicegate-model": MODEL})[0] == 400
    before = shop.counted(stable)
    assert (before.routed, before.decided, before.failed, before.timed) == (0, 0, 0, 0) and before.refused == 7
    status, body = shop.ask(chat(response_format=SHAPE))
    assert status == 200 and json.loads(body)["model"] == MODEL
    status, body = shop.ask(chat(stream=True))
    assert status == 200 and body.startswith(b"data: ") and body.rstrip().endswith(b"data: [DONE]")
    assert shop.ask(b'{"model": "chatter", "prompt": "hi", "max_tokens": 1}', "/v1/completions")[0] == 200
    assert shop.parts.envoy.http(f"/v2/models/{MODEL}/ready", method="GET").status == 200
    for path, told in ((f"/v2/models/{MODEL}/infer", 404), ("/v1/embeddings", 501), ("/v1/models", 501)):
        status, body = shop.ask(b"{}", path)
        assert status == told and b"/v1/chat/completions" in body, path
    assert shop.ask(chat(), **{"content-type": "application/grpc-web"})[0] == 415
    counted = shop.counted(stable)
    assert (counted.failed, counted.decided) == (0, 3)


def test_members_of_a_body_are_read_as_the_server_reads_them(shop: Shop) -> None:
    stable = shop.push()
    shop.serve(stable)[1].close()
    shop.route(stable)
    plain, host = chat(stream=True), {"Host": MODEL}
    spellings = {b'"stream"': rb'"str\u0065am"', b'"model"': rb'"mod\u0065l"', b"chatter": rb"ch\u0061tter"}
    for wanted, spelt in spellings.items():
        status, body = shop.ask(plain.replace(wanted, spelt))
        assert status == 200 and body.startswith(b"data: "), spelt
    shop.parts.envoy.flushed()
    page = shop.parts.envoy.admin("/stats?usedonly&filter=^sli.request").splitlines()
    assert page and all(".entry.stream." in line for line in page)
    for unknown in ("x" * 600, "x" * 100_000, "chatter.2", "ch\u00e4tter"):
        assert shop.ask(chat(model=unknown), **host)[0] == 404
    assert shop.ask(chat(model=None), **host)[0] == 200


def test_a_stream_that_ends_with_its_server_is_charged_to_the_release(shop: Shop) -> None:
    stable = shop.push()
    running, client = shop.serve(stable)
    client.close()
    shop.route(stable)
    line = HTTPConnection("127.0.0.1", shop.parts.envoy.port, timeout=60)
    line.request("POST", "/v1/chat/completions", chat(stream=True, max_tokens=200))
    answer = line.getresponse()
    assert answer.status == 200 and answer.read1(10)
    os.kill(running.pid, signal.SIGKILL)
    with contextlib.suppress(HTTPException, OSError):
        assert b"[DONE]" not in answer.read()
    line.close()
    counted = shop.counted(stable)
    assert (counted.failed, counted.decided) == (1, 1)
