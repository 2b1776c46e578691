"""The watch on a real Envoy: stable's server turns slow or fails behind it, without any rollout."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from accounts.core.access import Actor
from ledger.models import Event
from rollouts.core.watch.sequential_test import PAGE
from rollouts.models import Alarm
from rollouts.watch.stable_watch import StableWatch
from serving.models import Gateway
from serving.traffic.actions.routes import set_route
from serving.traffic.adapters.envoy_counters import EnvoyCounters
from serving.traffic.core.routes import Arm
from tests.support.rigs.engine_rig import leading
from tests.support.rigs.gateway_rig import MODEL, UNBOUNDED, Rig, rig, wait_until
from tests.support.worlds.factories import make_environment, make_model, make_release

pytestmark = [pytest.mark.real("envoy"), pytest.mark.django_db(transaction=True)]
REQUESTS, CLIENTS = 48, 16
SLOW_S = 0.3  # over the threshold of the objective, 250 ms, under which a busy machine answers


class Scene:
    """One model behind a real gateway, and a clock of the watch that goes by bins."""

    def __init__(self, parts: Rig) -> None:
        self.parts, self.at = parts, datetime(2026, 1, 1, tzinfo=UTC)
        environment = make_environment("production")
        model = make_model(MODEL, objectives={"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.2}})
        Gateway.objects.create(environment=environment, name="gateway-1", admin_url=parts.envoy.admin_url)
        stable = make_release(model)
        actor = Actor.system("test")
        set_route(actor=actor, environment=environment, model=model, stable=stable, reason="It serves.")
        parts.apply(None, stable=Arm("r1", str(stable.digest), (parts.stable.endpoint,), UNBOUNDED))
        self.watch = StableWatch(EnvoyCounters(), leading(), lambda: self.at)

    def bins(self, count: int) -> None:
        for _ in range(count):
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(lambda _: self.parts.envoy.http(), range(REQUESTS)))
            self.parts.envoy.flushed()
            self.at += timedelta(seconds=PAGE.bin_s)
            self.watch.turn()


@pytest.mark.parametrize("fault", ["slow", "error"])
def test_a_stable_release_that_breaks_after_its_promotion_pages_within_150_s(tmp_path: Path, fault: str) -> None:
    with rig(tmp_path) as parts:
        scene = Scene(parts)
        scene.bins(3)
        broken_at = scene.at
        if fault == "slow":
            parts.stable.delay_s = SLOW_S
        else:
            parts.stable.mode = "error"
        scene.bins(14)
        alarm = Alarm.objects.get(tier="page", objective="slow_250ms" if fault == "slow" else "errors")
        assert alarm.opened_at - broken_at <= timedelta(seconds=150)
        assert alarm.facts["burn"] >= 2 and alarm.facts["attempts"] >= 400
        assert Event.objects.filter(verb="alarm.opened", subject_id=alarm.pk).exists()
        parts.stable.delay_s, parts.stable.mode = 0.0, "ok"
        scene.bins(31)
        alarm.refresh_from_db()
        assert alarm.state == "closed"


def test_neither_callers_mistakes_nor_a_restarted_gateway_raise_an_alarm(tmp_path: Path) -> None:
    with rig(tmp_path) as parts:
        scene = Scene(parts)
        scene.bins(3)
        parts.stable.mode = "bad_input"
        scene.bins(14)
        parts.stable.mode = "ok"
        parts.envoy.stop()
        parts.envoy.start()
        wait_until(parts.envoy.is_open, "the gateway is back")
        scene.bins(3)
        assert not Alarm.objects.exists()
