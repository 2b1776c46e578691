"""The Grafana dashboards, the alert rules and their pages fit together; no Grafana has loaded them."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.support.house.dashboards import GRAFANA, ROOT, RULES, dashboards, expressions, files, panels
from tests.support.house.figures import exported

#: Units of Grafana that the dashboards use.
UNITS = {"none", "s", "bytes", "reqps", "ops", "percentunit", "celsius", "watt"}
#: Figures of each process, of its client library and of Triton (docs/metrics.md).
OF_A_PROCESS = {
    f"sluicegate_{name}_seconds" for name in ("engine_tick_lag", "engine_turn", "job_duration", "http_request_duration")
}
NAME = re.compile(r"\bsluicegate_\w+")
RUNBOOKS = ROOT / "docs" / "runbooks"


def figures_of(expression: str) -> set[str]:
    """Figures that an expression reads: without the suffixes of histograms."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in NAME.findall(expression)}


def known() -> set[str]:
    return {one.exposed_name for one in exported()} | OF_A_PROCESS


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.fixture(params=dashboards(), ids=lambda one: one["uid"])
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_the_files_are_what_the_script_writes() -> None:
    written = {path.name: path.read_text() for path in (GRAFANA / "dashboards").iterdir()}
    assert written == files(), "run `python deploy/grafana/make_dashboards.py`"


def test_a_dashboard_has_what_grafana_needs(dashboard: dict[str, Any]) -> None:
    assert dashboard["id"] is None and dashboard["schemaVersion"] >= 36 and "__inputs" not in dashboard
    assert re.fullmatch(r"[a-z-]{1,40}", dashboard["uid"])
    source, *variables = dashboard["templating"]["list"]
    assert (source["type"], source["name"], source["query"]) == ("datasource", "datasource", "prometheus")
    everything = [*panels(dashboard), *variables, *(one for panel in panels(dashboard) for one in panel["targets"])]
    assert {one["datasource"]["uid"] for one in everything} == {"${datasource}"}
    named = {
        name
        for panel in panels(dashboard)
        for one in panel["targets"]
        for name in re.findall(r"\$([a-z]\w*)", one["expr"])
    }
    assert named <= {one["name"] for one in variables}
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in panels(dashboard)} <= UNITS
    assert [panel["id"] for panel in dashboard["panels"]] == list(range(1, len(dashboard["panels"]) + 1))
    for panel in panels(dashboard):
        assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"]) > 0
        assert not re.search(r"\[\d", " ".join(one["expr"] for one in panel["targets"])), "$__rate_interval"


def test_no_panel_lies_on_another(dashboard: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= 24 for one in places)
    for one, other in combinations(places, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_dashboards_and_rules_read_figures_that_exist() -> None:
    assert len({one["uid"] for one in dashboards()}) == len(dashboards())
    asked = set().union(*map(figures_of, expressions("1m").values()))
    asked |= set().union(*(figures_of(rule["expr"]) for rule in rules()))
    recorded = {name for rule in rules() if "record" in rule for name in figures_of(rule["record"])}
    assert asked - recorded <= known()


def test_each_alert_has_its_texts_and_a_page() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    pages = set()
    for rule in alerts:
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket", "{{ $labels.tier }}")
        page = rule["annotations"]["runbook_url"].removeprefix("https://sluicegate.example/docs/runbooks/")
        name = re.sub(r"(?<!^)([A-Z])", r"-\1", rule["alert"].removeprefix("Sluicegate")).lower()
        assert page == f"{name}.md"
        assert (RUNBOOKS / page).read_text().startswith(f"# {rule['alert']}\n")
        pages.add(page)
    assert {path.name for path in RUNBOOKS.iterdir()} == pages | {"README.md"}
    listed = (RUNBOOKS / "README.md").read_text()
    assert [page for page in pages if f"({page})" not in listed] == []
