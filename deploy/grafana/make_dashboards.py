"""Writes the dashboards beside this file: `python deploy/grafana/make_dashboards.py`. It needs the standard library alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "dashboards"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PLACE = 'environment=~"$environment",model=~"$model"'
_WIDTH, _HEIGHT = 8, 7

#: A panel: title, unit, and the legend and expression of each query.
Panel = tuple[str, str, list[tuple[str, str]]]


def _rate(metric: str, labels: str = _PLACE) -> str:
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def _sum(by: str, metric: str, labels: str = _PLACE) -> str:
    return f"sum by ({by}) ({_rate(metric, labels)})"


def _max(by: str, metric: str, labels: str = _PLACE) -> str:
    return f"max by ({by}) ({metric}{{{labels}}})"


def _quantile(share: float, by: str, metric: str, labels: str = _PLACE) -> str:
    return f"histogram_quantile({share}, {_sum(f'{by}, le' if by else 'le', f'{metric}_bucket', labels)})"


def _stage(name: str) -> str:
    """Seconds of each request in a stage of Triton, by release."""
    spent, served = (_sum("release", f"nv_inference_{one}") for one in (f"{name}_duration_us", "request_success"))
    return f"{spent} / {served} / 1e6"


_ATTEMPTS = "sluicegate_first_attempts_total"
_GPU = 'node=~"$node"'
LAYERS: list[tuple[str, list[Panel]]] = [
    ("Objectives", [
        ("Live alarms", "none", [("alarms", f"count(sluicegate_alarms{{{_PLACE}}}) or vector(0)")]),
        ("Burn: share of bad requests / objective, 5 min", "none", [
            ("{{model}} {{objective}}", _max("model, objective", "sluicegate_objective_burn_ratio", f'{_PLACE},window="5m"')),
        ]),
        ("Requests by outcome", "reqps", [("{{outcome}}", _sum("outcome", "sluicegate_requests_total"))]),
    ]),
    ("Versions", [
        ("First attempts by release", "reqps", [("{{model}} {{release}}", _sum("model, release", _ATTEMPTS))]),
        ("Failed share by release", "percentunit", [("{{model}} {{release}}", (
            f"""{_sum("model, release", _ATTEMPTS, f'{_PLACE},outcome="failed"')} / {_sum("model, release", _ATTEMPTS)}"""
        ))]),
        ("P95 by release", "s", [
            ("{{model}} {{release}}", _quantile(0.95, "model, release", "sluicegate_first_attempt_duration_seconds")),
        ]),
    ]),
    ("Queue and batch (Triton)", [
        ("Mean time by stage", "s", [
            (f"{{{{release}}}} {name}", _stage(name)) for name in ("queue", "compute_input", "compute_infer", "compute_output")
        ]),
        ("Mean batch", "none", [
            ("{{release}}", f"{_sum('release', 'nv_inference_count')} / {_sum('release', 'nv_inference_exec_count')}"),
        ]),
        ("Requests that wait", "none", [
            ("{{release}}", f"sum by (release) (nv_inference_pending_request_count{{{_PLACE}}})"),
        ]),
    ]),
    ("GPU", [
        ("Busy", "percentunit", [("{{node}} {{gpu}}", f"sluicegate_gpu_busy_ratio{{{_GPU}}}")]),
        ("Memory in use", "percentunit", [("{{node}} {{gpu}}", (
            f"sluicegate_gpu_memory_used_bytes{{{_GPU}}} / sluicegate_gpu_memory_total_bytes{{{_GPU}}}"
        ))]),
        ("Temperature", "celsius", [("{{node}} {{gpu}}", f"sluicegate_gpu_temperature_celsius{{{_GPU}}}")]),
        ("Power", "watt", [("{{node}} {{gpu}}", f"sluicegate_gpu_power_watts{{{_GPU}}}")]),
        ("Share of time slowed by heat", "percentunit", [
            ("{{node}} {{gpu}}", _rate("sluicegate_gpu_throttled_seconds_total", _GPU)),
        ]),
        ("Uncorrected memory errors", "none", [
            ("{{node}} {{gpu}}", f"sluicegate_gpu_ecc_uncorrected_errors_total{{{_GPU}}}"),
        ]),
    ]),
    ("Nodes and replicas", [
        ("Time since a node reported", "s", [("{{node}}", _max("node", "sluicegate_node_last_seen_seconds", _GPU))]),
        ("Replicas by state", "none", [
            ("{{model}} {{release}} {{state}}", _max("model, release, state", "sluicegate_replicas")),
        ]),
        ("Endpoints that answer", "none", [("{{model}} {{release}}", _max("model, release", "sluicegate_endpoints"))]),
    ]),
    ("Rollouts", [
        ("Candidate's share", "percentunit", [("{{model}} {{kind}}", _max("model, kind", "sluicegate_rollout_weight_ratio"))]),
        ("Evidence (natural logarithm)", "none", [
            ("{{model}} {{guard}} {{side}}", _max("model, guard, side", "sluicegate_rollout_evidence_log")),
        ]),
        ("Time in the present stage", "s", [
            ("{{model}}", f"time() - {_max('model', 'sluicegate_rollout_stage_start_timestamp_seconds')}"),
        ]),
        ("Active rollouts by state", "none", [("{{state}}", f"count by (state) (sluicegate_rollout_state{{{_PLACE}}})")]),
        ("Decisions", "ops", [
            ("{{action}} {{code}}", _sum("action, code", "sluicegate_rollout_decisions_total", 'environment=~"$environment"')),
        ]),
        ("Fault to weight 0, P95 of all rollbacks", "s", [("P95", (
            'histogram_quantile(0.95, sum by (le) (sluicegate_rollback_fault_to_zero_seconds_bucket{environment=~"$environment"}))'
        ))]),
    ]),
    ("Artifacts and runtimes", [
        ("Gates by verdict", "none", [("{{gate}} {{verdict}}", "max by (gate, verdict) (sluicegate_gate_results_total)")]),
        ("Gate duration, P95 of all runs", "s", [
            ("{{gate}}", "histogram_quantile(0.95, sum by (gate, le) (sluicegate_gate_duration_seconds_bucket))"),
        ]),
        ("Cold start", "s", [("{{model}} {{release}}", _max("model, release", "sluicegate_cold_start_seconds"))]),
    ]),
]  # fmt: skip
PROCESSES: list[tuple[str, list[Panel]]] = [
    ("Engine and jobs", [
        ("How late ticks begin, P99", "s", [("P99", _quantile(0.99, "", "sluicegate_engine_tick_lag_seconds", ""))]),
        ("Time of a turn, P99", "s", [("P99", _quantile(0.99, "", "sluicegate_engine_turn_seconds", ""))]),
        ("Lateness of the oldest job", "s", [("{{queue}}", "max by (queue) (sluicegate_job_lag_seconds) or vector(0)")]),
        ("Jobs", "ops", [("{{kind}} {{result}}", _sum("kind, result", "sluicegate_job_duration_seconds_count", ""))]),
        ("Pages and API, P95", "s", [("{{part}}", _quantile(0.95, "part", "sluicegate_http_request_duration_seconds", ""))]),
        ("Answers by status", "reqps", [("{{status}}", _sum("status", "sluicegate_http_request_duration_seconds_count", ""))]),
    ]),
    ("Processes", [
        ("Reached by Prometheus", "none", [("{{job}} {{process}}", 'up{job=~"sluicegate|inference"}')]),
        ("Processor", "none", [("{{process}}", _sum("process", "process_cpu_seconds_total", 'job="sluicegate"'))]),
        ("Memory", "bytes", [("{{process}}", 'process_resident_memory_bytes{job="sluicegate"}')]),
        ("Time since a gateway spoke", "s", [("{{gateway}}", "max by (gateway) (sluicegate_gateway_last_seen_seconds)")]),
        ("Gateways whose counts can be read", "none", [("{{gateway}}", "max by (gateway) (sluicegate_gateway_up)")]),
        ("Database", "bytes", [("size", "max(sluicegate_database_size_bytes)")]),
    ]),
]  # fmt: skip
VARIABLES = {
    "environment": "label_values(sluicegate_replicas, environment)",
    "model": 'label_values(sluicegate_replicas{environment=~"$environment"}, model)',
    "node": "label_values(sluicegate_node_last_seen_seconds, node)",
}


def dashboard(uid: str, title: str, rows: list[tuple[str, list[Panel]]], variables: dict[str, str]) -> dict[str, Any]:
    """Grafana's classic model of a dashboard: a row of panels for each layer."""
    panels: list[dict[str, Any]] = []
    y = 0
    for name, members in rows:
        panels.append({"type": "row", "title": name, "collapsed": False, "gridPos": _grid(0, y, 24, 1), "panels": []})
        y += 1
        for i, (heading, unit, queries) in enumerate(members):
            grid = _grid(i % 3 * _WIDTH, y + i // 3 * _HEIGHT, _WIDTH, _HEIGHT)
            panels.append(_panel(heading, unit, queries, grid))
        y += (len(members) + 2) // 3 * _HEIGHT
    for i, panel in enumerate(panels, 1):
        panel["id"] = i
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "tags": ["sluicegate"],
        "schemaVersion": 36,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [
            {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
            *(_variable(name, query) for name, query in variables.items()),
        ]},
        "panels": panels,
    }  # fmt: skip


def _grid(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(title: str, unit: str, queries: list[tuple[str, str]], grid: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": title,
        "gridPos": grid,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": None if "logarithm" in title else 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": _DATASOURCE,
                "expr": expr.replace("{}", ""),
                "legendFormat": legend,
            }
            for i, (legend, expr) in enumerate(queries)
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def files() -> dict[str, str]:
    """The text of each file in `dashboards/`, by its name."""
    made = (
        dashboard("sluicegate-layers", "Sluicegate: models in seven layers", LAYERS, VARIABLES),
        dashboard("sluicegate-processes", "Sluicegate: its own processes", PROCESSES, {}),
    )
    return {f"{one['uid']}.json": json.dumps(one, indent=1) + "\n" for one in made}


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text)
