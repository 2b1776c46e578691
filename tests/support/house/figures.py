"""The table of exported figures: `python -m tests.support.house.figures` writes it to docs/metrics.md."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import django
from django.apps import apps

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
if not apps.ready:
    django.setup()

from insights.collector import FAILED
from insights.core.figures import Figure
from insights.queries.database_figures import figures
from insights.queries.traffic_figures import DURATION, FIRST_ATTEMPTS, REQUESTS, UP

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
BEGIN, END = "<!-- figures: written by `python -m tests.support.house.figures` -->", "<!-- end of figures -->"


def exported() -> list[Figure]:
    """Every figure of the installation, in the order of the page."""
    return [REQUESTS, FIRST_ATTEMPTS, DURATION, UP, *(figure for figure, _ in figures()), FAILED]


def table() -> str:
    head = "| figure | type | labels | meaning |\n|---|---|---|---|\n"
    return head + "".join(
        f"| `{one.exposed_name}` | {one.type} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |\n"
        for one in exported()
    )


def written(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
