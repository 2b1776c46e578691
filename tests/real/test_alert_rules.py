"""The alert rules in Prometheus' own tools: each alert fires for its fault alone, and none for a healthy installation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.house.dashboards import RULES
from tests.support.rigs.gateway_rig import wait_until
from tests.support.rigs.parts import prometheus
from tests.support.rigs.prometheus_rig import PrometheusProcess, prometheus_process

pytestmark = [pytest.mark.real("prometheus")]
PLACE = 'environment="production",model="sentiment"'
GATEWAY = 'environment="production",gateway="g1"'
GPU = 'node="n1",gpu="GPU-1"'
#: Samples of a series, one a minute: those of four days. A case takes as many as it needs.
MINUTES = 4 * 24 * 60
#: Cases of more minutes evaluate the rules every quarter of an hour; the others every minute.
LONG = 350


def steady(value: float, per_minute: float = 0) -> str:
    """As Prometheus writes a series in tests: its first value, and what each minute adds."""
    return f"{value:.0f}+{per_minute:g}x{MINUTES}"


HEALTHY = {
    "sluicegate_database_size_bytes": steady(2e9),
    "sluicegate_engine_turn_seconds_count": steady(0, 60),
    **{f'sluicegate_engine_tick_lag_seconds_bucket{{le="{le}"}}': steady(0, 60) for le in ("0.1", "2", "30", "+Inf")},
    f'sluicegate_requests_total{{{PLACE},outcome="failed"}}': steady(0, 1),
    f'sluicegate_requests_total{{{PLACE},outcome="answered"}}': steady(0, 599),
    f'sluicegate_requests_total{{{PLACE},outcome="shed"}}': steady(0, 300),
    f'sluicegate_objective_ratio{{{PLACE},indicator="errors"}}': f"0.01+0x{MINUTES}",
    f'sluicegate_rollout_state{{{PLACE},state="shifting"}}': steady(1),
    f"sluicegate_rollout_stage_start_timestamp_seconds{{{PLACE}}}": steady(0, 60),
    f'sluicegate_rollout_weight_ratio{{{PLACE},kind="desired"}}': f"0.05+0x{MINUTES}",
    f'sluicegate_rollout_weight_ratio{{{PLACE},kind="acknowledged"}}': f"0.05+0x{MINUTES}",
    'sluicegate_rollouts{environment="production",state="rolled_back"}': steady(3),
    f"sluicegate_gateway_up{{{GATEWAY}}}": steady(1),
    f"sluicegate_gateway_last_seen_seconds{{{GATEWAY}}}": steady(2),
    'sluicegate_job_lag_seconds{queue="work"}': steady(5),
    'sluicegate_node_last_seen_seconds{node="n1"}': steady(2),
    f"sluicegate_gpu_ecc_uncorrected_errors_total{{{GPU}}}": steady(1),
    f"sluicegate_gpu_throttled_seconds_total{{{GPU}}}": steady(0, 1),
}


def failing(percent: int) -> dict[str, str]:
    return {
        f'sluicegate_requests_total{{{PLACE},outcome="failed"}}': steady(0, percent),
        f'sluicegate_requests_total{{{PLACE},outcome="answered"}}': steady(0, 100 - percent),
    }


STAGE, STATE = (
    f"sluicegate_rollout_stage_start_timestamp_seconds{{{PLACE}}}",
    f'sluicegate_rollout_state{{{PLACE},state="shifting"}}',
)
PAUSED = {STATE: "_", f'sluicegate_rollout_state{{{PLACE},state="paused"}}': steady(1), STAGE: steady(0)}
PAGE, TICKET = "page", "ticket"
#: (what is shown, minutes until it is asked, (alert, severity) that fire, series that differ from healthy ones; `_` is none).
CASES: list[tuple[str, int, list[tuple[str, str]], dict[str, str]]] = [
    ("a healthy installation", 4 * 24 * 60, [], {}),
    ("a fifth fails", 70, [("ErrorBudgetBurns", PAGE), ("ErrorBudgetBurns", TICKET)], failing(20)),
    *(
        (
            words,
            345,
            [("ErrorBudgetBurns", one) for one in severities],
            {
                f'sluicegate_requests_total{{{PLACE},outcome="failed"}}': f"0+0x{healthy} 0+20x50 1000+0x600",
                f'sluicegate_requests_total{{{PLACE},outcome="answered"}}': f"0+100x{healthy} {healthy}00+80x600",
            },
        )
        for words, healthy, severities in (
            ("a fifth fails for 50 minutes", 294, (PAGE, TICKET)),
            ("a fifth failed until ten minutes ago", 284, (TICKET,)),
        )
    ),
    ("7 % fail for hours", 405, [("ErrorBudgetBurns", PAGE), ("ErrorBudgetBurns", TICKET)], failing(7)),
    ("4 % fail for a day", 1500, [("ErrorBudgetBurns", TICKET)], failing(4)),
    ("2 % fail for three days", 3 * 24 * 60 + 15, [("ErrorBudgetBurns", TICKET)], failing(2)),
    *(
        (
            f"an alarm, {tier}",
            5,
            [("ObjectiveBurns", tier)],
            {f'sluicegate_alarms{{{PLACE},objective="slow",tier="{tier}",state="open"}}': steady(1)},
        )
        for tier in (PAGE, TICKET)
    ),
    (
        "a rollback that gateways do not take",
        5,
        [("RolloutStuck", PAGE)],
        {f'sluicegate_rollout_state{{{PLACE},state="stuck"}}': steady(1)},
    ),
    ("five hours in a stage", 300, [("RolloutHeld", TICKET)], {STAGE: steady(0)}),
    ("paused for five hours", 300, [], PAUSED),
    ("paused for 25 hours", 1500, [("RolloutHeld", TICKET)], PAUSED),
    *(
        (words, at, fires, {'sluicegate_rollouts{environment="production",state="rolled_back"}': values})
        for words, at, fires, values in (
            ("one more rollback", 65, [("RolledBack", TICKET)], "3+0x60 4+0x600"),
            ("the first rollback", 65, [("RolledBack", TICKET)], "_x60 1+0x600"),
            ("a rollback an hour ago", 120, [], "3+0x60 4+0x600"),
            ("an installation that was not scraped before", 5, [], "4+0x600"),
        )
    ),
    ("a gateway that cannot be read", 5, [("GatewayAway", PAGE)], {f"sluicegate_gateway_up{{{GATEWAY}}}": steady(0)}),
    (
        "a gateway that is silent",
        5,
        [("GatewayAway", PAGE)],
        {f"sluicegate_gateway_last_seen_seconds{{{GATEWAY}}}": steady(0, 60)},
    ),
    (
        "a weight that was not taken",
        5,
        [("GatewayBehind", PAGE)],
        {f'sluicegate_rollout_weight_ratio{{{PLACE},kind="acknowledged"}}': "_"},
    ),
    (
        "no engine",
        40,
        [("EngineGone", PAGE)],
        {name: "_" for name in HEALTHY if name.startswith("sluicegate_engine")},
    ),
    (
        "an engine that stands still",
        40,
        [("EngineGone", PAGE)],
        {"sluicegate_engine_turn_seconds_count": "0+60x30 1800+0x600"},
    ),
    (
        "ticks that begin late",
        20,
        [("EngineLate", PAGE)],
        {f'sluicegate_engine_tick_lag_seconds_bucket{{le="{le}"}}': steady(0) for le in ("0.1", "2")},
    ),
    ("no scheduler", 20, [("FiguresGone", PAGE)], {"sluicegate_database_size_bytes": "_"}),
    ("a figure that fails", 20, [("FiguresFailed", TICKET)], {'sluicegate_figures_failed{figure="x"}': steady(1)}),
    ("late jobs", 20, [("JobsLate", TICKET)], {'sluicegate_job_lag_seconds{queue="work"}': steady(301)}),
    ("a silent node", 20, [("NodeSilent", PAGE)], {'sluicegate_node_last_seen_seconds{node="n1"}': steady(61)}),
    (
        "a memory error",
        70,
        [("GpuMemoryErrors", PAGE)],
        {f"sluicegate_gpu_ecc_uncorrected_errors_total{{{GPU}}}": "1+0x50 2+0x600"},
    ),
    ("a hot GPU", 20, [("GpuThrottled", TICKET)], {f"sluicegate_gpu_throttled_seconds_total{{{GPU}}}": steady(0, 12)}),
    ("a large database", 90, [("DatabaseLarge", TICKET)], {"sluicegate_database_size_bytes": steady(51e9)}),
]


def case(words: str, minutes: int, fires: list[tuple[str, str]], changed: dict[str, str]) -> dict[str, Any]:
    """A case as `promtool test rules` takes it."""
    series = {**HEALTHY, **changed}
    samples = [
        {"labels": f'{{alertname="Sluicegate{name}",severity="{severity}"}}', "value": 1} for name, severity in fires
    ]
    return {
        "name": words,
        "interval": "1m",
        "input_series": [
            {"series": name, "values": values.replace(f"x{MINUTES}", f"x{minutes + 1}")}
            for name, values in series.items()
            if values != "_"
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname, severity) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minutes}m",
                "exp_samples": samples,
            }
        ],
    }


def promtool(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(prometheus("promtool")), *argv], input=stdin, capture_output=True, text=True, timeout=120
    )


def test_the_rules_are_valid() -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0 and "SUCCESS" in checked.stdout, checked.stderr


@pytest.mark.parametrize(("interval", "is_long"), [("1m", False), ("15m", True)])
def test_each_alert_fires_for_its_fault_alone(tmp_path: Path, interval: str, is_long: bool) -> None:
    file = tmp_path / "cases.json"
    cases = [case(*one) for one in CASES if (one[1] > LONG) == is_long]
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": cases}))
    checked = promtool("test", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_a_case() -> None:
    named = {f"Sluicegate{name}" for _, _, fires, _ in CASES for name, _ in fires}
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules if "alert" in rule} == named


def test_a_real_prometheus_loads_them_and_renders_their_texts(tmp_path: Path) -> None:
    """Those of a silent installation: it has an alarm, and neither figures nor an engine."""
    with prometheus_process(tmp_path) as process:
        process.exporter.values[
            "sluicegate_alarms", (("environment", "e"), ("model", "m"), ("objective", "errors"), ("tier", "page"))
        ] = 1
        port = process.exporter.port
        process.stop()
        again = PrometheusProcess(tmp_path, {"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}, rules=[RULES])
        again.start()
        try:
            wait_until(lambda: again.has('ALERTS{alertname="SluicegateObjectiveBurns"}'), "the alert fires")
            rules = [rule for group in again.read("rules")["groups"] for rule in group["rules"]]
            assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}
            [alert] = [
                one
                for one in again.read("alerts")["alerts"]
                if one["labels"]["alertname"] == "SluicegateObjectiveBurns"
            ]
            assert alert["labels"]["severity"] == "page"
            assert alert["annotations"]["summary"] == "m in e: the objective errors is missed."
        finally:
            again.stop()
