"""What the installation exports to Prometheus, read from a database with something in it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from insights.collector import InstallationCollector
from insights.core.figures import Buckets
from insights.queries.database_figures import Decisions, figures
from ledger.actions.processes import FORGOTTEN_AFTER, note_process
from ledger.models import ProcessAddress
from ledger.queries.processes import SEEN_WITHIN, processes
from rollouts.core.latency import NOTHING
from rollouts.core.recent_traffic import RecentTraffic
from rollouts.models import DecisionRecord, Observation, TrafficRecord
from serving.models import Gateway, Node
from serving.ports import ArmCounters, GatewayCounters, GatewayError
from tests.support.worlds.alarm_setup import burning, counted
from tests.support.worlds.factories import make_node
from tests.support.worlds.rollout_setup import OBJECTIVES, put, started, with_stable

pytestmark = pytest.mark.django_db
NOW = timezone.now


class Counted:
    """Counters of one model; `gone` cannot be read."""

    def __init__(self, digest: str, slug: str) -> None:
        arm = ArmCounters(routed=9, decided=8, failed=2, shed=1, timed=8, latency_us={5_000: 4})
        self.page = {
            slug: GatewayCounters("g", "e", NOW(), {digest: arm}, user_requests=10, user_errors=3, user_shed=1)
        }

    def read(self, *, gateway: str, admin_url: str, timeout_s: float, models: Any = None) -> dict[str, GatewayCounters]:
        if gateway == "gone":
            raise GatewayError("unreachable", "it is away")
        return self.page


def exported(collector: InstallationCollector) -> Mapping[str, dict[tuple[tuple[str, str], ...], float]]:
    registry = CollectorRegistry()
    registry.register(collector)
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for one in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in one.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_rollout_and_its_traffic_are_exported() -> None:
    rollout, stable = with_stable()
    put(rollout, "shifting", weight_bp=500, observed_bp=480, step_started_at=NOW())
    Observation.objects.create(
        rollout=rollout, first_tick=1, tick=1, from_at=NOW(), at=NOW(), state="shifting", weight_bp=500, candidate={}, stable={},
        evidence={"errors": {"log_e_worse": -0.5, "log_e_fine": 1.5}},
    )  # fmt: skip
    environment, model = rollout.environment.slug, rollout.model.slug
    for name in ("there", "gone"):
        Gateway.objects.create(environment=rollout.environment, name=name, admin_url="http://127.0.0.1:1")
    counted(rollout.model, bad=48, attempts=1200)
    burning(rollout.model)
    found = exported(InstallationCollector(Counted(stable.digest or "", model), leads=lambda: True))
    place = (("environment", environment), ("model", model))

    def of(name: str, **labels: str) -> float:
        return found[name][tuple(sorted((*place, *labels.items())))]

    assert of("sluicegate_rollout_state", state="shifting") == 1
    assert of("sluicegate_rollout_weight_ratio", kind="desired") == 0.05
    assert of("sluicegate_rollout_weight_ratio", kind="observed") == 0.048
    assert of("sluicegate_rollout_evidence_log", guard="errors", side="fine") == 1.5
    assert of("sluicegate_alarms", objective="errors", tier="page", state="open") == 1
    burn = [of("sluicegate_objective_burn_ratio", objective="errors", window=window) for window in ("5m", "1h")]
    assert burn == [pytest.approx(0.04 / OBJECTIVES["errors_max_frac"])] * 2
    there = {"gateway": "there"}
    assert of("sluicegate_requests_total", outcome="answered", **there) == 7
    assert (
        of("sluicegate_requests_total", outcome="failed", **there),
        of("sluicegate_requests_total", outcome="shed", **there),
    ) == (2, 1)
    assert of("sluicegate_first_attempts_total", outcome="answered", release=stable.name, **there) == 6
    assert of("sluicegate_first_attempt_duration_seconds_bucket", le="0.005", release=stable.name, **there) == 4
    up = {dict(labels)["gateway"]: value for labels, value in found["sluicegate_gateway_up"].items()}
    assert up == {"there": 1, "gone": 0}
    assert "sluicegate_figures_failed" not in found


def test_only_the_leader_exports_and_a_figure_that_fails_hides_no_other() -> None:
    assert exported(InstallationCollector(Counted("", "m"), leads=lambda: False)) == {}
    collector = InstallationCollector(Counted("", "m"), leads=lambda: True)
    figure = collector._figures[0][0]

    def broken() -> dict[tuple[str, ...], float | Buckets]:
        raise ValueError("broken")

    collector._figures[0] = (figure, broken)
    found = exported(collector)
    assert found["sluicegate_figures_failed"] == {(("figure", figure.name),): 1}
    assert found["sluicegate_database_size_bytes"][()] > 0


def test_each_decision_is_counted_once_when_it_has_settled() -> None:
    rollout, decisions = started(), Decisions()
    before = sum(float(value) for value in decisions().values() if isinstance(value, float))
    for action, seconds in (("hold", 60), ("hold", 30), ("advance", 30), ("hold", 0)):
        DecisionRecord.objects.create(
            rollout=rollout, at=NOW() - timedelta(seconds=seconds), action=action, reason="r", actor="engine"
        )
    place = rollout.environment.slug
    for _ in range(2):
        counts = decisions()
        assert (counts[place, "hold", ""], counts[place, "advance", ""]) == (2, 1)
    assert before == 0


def test_every_figure_can_be_read_from_an_empty_database() -> None:
    for figure, read in figures():
        for labels in read():
            assert len(labels) == len(figure.labels), figure.name


def test_processes_are_known_while_they_say_so() -> None:
    note_process("127.0.0.1:1", "engine")
    note_process("127.0.0.1:1", "web")
    note_process("127.0.0.1:2", "worker")
    assert [(one.name, one.address) for one in processes()] == [("web", "127.0.0.1:1"), ("worker", "127.0.0.1:2")]
    ProcessAddress.objects.filter(name="web").update(seen_at=NOW() - SEEN_WITHIN - timedelta(seconds=1))
    assert [one.name for one in processes()] == ["worker"]
    ProcessAddress.objects.filter(name="web").update(seen_at=NOW() - FORGOTTEN_AFTER - timedelta(seconds=1))
    note_process("127.0.0.1:2", "worker")
    assert ProcessAddress.objects.count() == 1


def values_of(name: str) -> Any:
    return {figure.name: read for figure, read in figures()}[name]()


@pytest.mark.parametrize(("minutes_ago", "is_there"), [(1, True), (59, True), (61, False)])
def test_burn_is_of_the_last_hour_alone(minutes_ago: int, is_there: bool) -> None:
    rollout, stable = with_stable()
    assert stable.model.objectives["errors_max_frac"] == 0.01
    at_s = NOW().timestamp() - 60 * minutes_ago
    counted = RecentTraffic().after(at_s, 1000, 20, NOTHING).to_json()
    TrafficRecord.objects.create(
        environment=rollout.environment, model=stable.model, traffic=counted, at=NOW(), state={}
    )
    found = values_of("sluicegate_error_burn_ratio")
    assert found == ({(rollout.environment.slug, stable.model.slug): pytest.approx(2.0)} if is_there else {})


@pytest.mark.parametrize(("age_s", "is_there"), [(0, True), (60, False)])
def test_a_gpu_that_was_read_long_ago_is_left_out(age_s: float, is_there: bool) -> None:
    reading = {"at_s": NOW().timestamp() - age_s, "gpus": [{"uuid": "GPU-1", "temperature_c": 41.0}]}
    Node.objects.filter(pk=make_node("one").pk).update(gpus=reading)
    assert values_of("sluicegate_gpu_temperature_celsius") == ({("one", "GPU-1"): 41.0} if is_there else {})


def test_rollouts_are_counted_by_their_state_now() -> None:
    rollout = started()
    put(rollout, "rolled_back")
    assert values_of("sluicegate_rollouts") == {(rollout.environment.slug, "rolled_back"): 1.0}
