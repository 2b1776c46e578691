"""`sluicegate model tenants`: a table of the classes, and one of the tenants, where the policy names them; one document with --json."""

# ruff: noqa: F811 - fixtures are named as they are used

from __future__ import annotations

from typing import Any

import pytest

from registry.models import ServedModel
from sluicegate.cli import exits
from sluicegate.cli.main import main
from tests.api.cli_world import Run, model, run, tokens  # noqa: F401  # fixtures
from tests.factories import make_environment

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
QUOTA = {"requests_per_s": 5}
TENANTS = {"header": "x-tenant", "named": {"acme": QUOTA}, "others": QUOTA}
NAMED = {"interactive": {"share_pct": 90}, "batch": {"share_pct": 25, "tenants": ["acme"]}}
CLASSES = {"default": "interactive", "named": NAMED}


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        ({}, ["The traffic policy of sentiment names no tenants."]),
        ({"tenants": TENANTS}, ["tenant\tquota", "acme\t5/s", "others\t5/s"]),
        (
            {"tenants": TENANTS, "classes": CLASSES},
            [
                "classes_exceed_bound: The shares of the classes add up to 115 %",
                "class\tshare",
                "interactive\t90 %",
                "batch\t25 %",
                "tenant\tquota",
                "acme\t5/s",
                "others\t5/s",
            ],
        ),
    ],
    ids=["nobody", "tenants", "classes"],
)
def test_classes_and_tenants_are_told(
    run: Run, model: None, capsys: pytest.CaptureFixture[str], policy: dict[str, Any], lines: list[str]
) -> None:
    make_environment("production")
    ServedModel.objects.update(traffic_policy=policy)
    code, told = run("ada", "model", "tenants", "sentiment")
    assert code == exits.OK and [one["name"] for one in told["classes"]] == list(
        policy.get("classes", {}).get("named", {})
    )
    assert main(["model", "tenants", "sentiment"]) == exits.OK
    found = capsys.readouterr().out.splitlines()
    assert [one[: len(line)] for one, line in zip(found, lines, strict=True)] == lines
