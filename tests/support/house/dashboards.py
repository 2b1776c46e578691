"""The Grafana dashboards and alert rules of deploy/, as tests read them."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]
GRAFANA: Final = ROOT / "deploy" / "grafana"
RULES: Final = ROOT / "deploy" / "prometheus" / "rules.yaml"
#: What needs a GPU, and so has no data on a machine without one.
NEEDS_GPU: Final = "sluicegate_gpu_"


def files() -> dict[str, str]:
    """What the script of the dashboards writes now, by the file's name."""
    spec = importlib.util.spec_from_file_location("make_dashboards", GRAFANA / "make_dashboards.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written: dict[str, str] = module.files()
    return written


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))]


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(interval: str) -> dict[str, str]:
    """Each query with its variables replaced, by dashboard, panel and legend. `interval` stands for `$__rate_interval`."""
    return {
        f"{one['uid']}: {panel['title']}: {target['legendFormat']}": filled(target["expr"], interval)
        for one in dashboards()
        for panel in panels(one)
        for target in panel["targets"]
    }


def filled(expression: str, interval: str) -> str:
    return re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", interval))
