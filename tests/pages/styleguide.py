"""A page with every part that pages are put together from, in every state. Only tests show it."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.utils import timezone

from sluicegate import urls
from web.gauge import EvidenceCard
from web.listing import Filter
from web.plots.curves import PlannedStep, staircase
from web.plots.plot import empty
from web.plots.sparkline import sparkline
from web.words import WORDS

_DIGEST = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_HOSTILE = "<b>“a & b”</b> \u202egnp.exe " + "w" * 120


_CARDS = [
    EvidenceCard("errors", "bad", "worse than stable", "15.8 %", "limit 1 %", 1.0, 0.02, "15 of 95 requests failed."),
    EvidenceCard("slow requests (over 250 ms)", "ok", "fine", "0.4 %", "limit 1 %", 0.0, 1.0),
    EvidenceCard("wrong answers", "idle", "not decided", "1.2 %", "", 0.31, 0.44, "Between 24 and 80 more requests."),
    EvidenceCard("errors", "waiting", "over the limit, as stable is", "3 %", "", 1.0, 1.0),
    EvidenceCard(_HOSTILE, "idle", "not measured"),
]
_SHEETS: list[dict[str, Any]] = [
    {
        "id": "example-open",
        "label": "Promote",
        "says": "r14 takes all traffic of production from r13, which stays warm for one hour.",
        "is_required": True,
    },
    {
        "id": "example-shut",
        "label": "Roll back",
        "says": "All traffic goes back to r13 at once; requests under way finish.",
        "reason": "Rolled back by ada",
        "is_danger": True,
        "button_class": "danger",
    },
    {"id": "example-not", "label": "Approve", "why_not": "You requested this rollout; somebody else must approve it."},
]


def styleguide(request: HttpRequest) -> HttpResponse:
    return render(request, "styleguide/page.html", {**_tokens(), **_states(), **_plots(), **_lists()})


def _tokens() -> dict[str, Any]:
    folder = Path(settings.BASE_DIR) / "web" / "static" / "web"
    return {
        "icons": re.findall(r'<symbol id="([\w-]+)"', (folder / "icons.svg").read_text()),
        "colours": re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", (folder / "tokens.css").read_text()),
    }


def _states() -> dict[str, Any]:
    now = timezone.now()
    step = SimpleNamespace
    return {
        "words": sorted(WORDS),
        "instants": [now - timedelta(seconds=12), now - timedelta(hours=3), now + timedelta(days=2), None],
        "since": now - timedelta(minutes=6),
        "digest": _DIGEST,
        "hostile": _HOSTILE,
        "weights": [0, 500, 5000, 10000],
        "cards": _CARDS,
        "sheets": _SHEETS,
        "example_why": "A release is sealed from a folder.",
        "example_command": "sluicegate push my-release/ --wait",
        "ladders": [
            [
                step(label="shadow", weight_bp=None, is_done=True, is_current=False, ended_here=False, at=now),
                step(label="start", weight_bp=500, is_done=False, is_current=True, ended_here=False, at=now),
                step(label="step 2", weight_bp=5000, is_done=False, is_current=False, ended_here=False, at=None),
            ],
            [
                step(label="start", weight_bp=2500, is_done=True, is_current=False, ended_here=False, at=now),
                step(label="step 2", weight_bp=5000, is_done=False, is_current=False, ended_here=True, at=now),
            ],
        ],
        "entries": [
            step(
                at=now,
                kind="rolled_back",
                title="Rolled back",
                text="15 of 95 requests failed (15.8 %).",
                who="engine",
                url="#timeline",
            ),
            step(at=now - timedelta(minutes=2), kind="ok", title="Approved", text="", who="ada", url=""),
            step(
                at=now - timedelta(minutes=3),
                kind="waiting",
                title="Asked for an approval",
                text=_HOSTILE,
                who="ci",
                url="",
            ),
        ],
    }


def _plots() -> dict[str, Any]:
    steps = [
        PlannedStep("start", 0.05, 60),
        PlannedStep("half", 0.5, 120, approvals=1),
        PlannedStep("bake", 1.0, None, 60),
    ]
    return {
        "plots": [
            staircase("Steps", "The candidate's share over time.", steps, name="example"),
            empty("Latency", "Nothing was measured.", name="nothing"),
        ],
        "sparkline": sparkline([4, 8, None, 6, 12, 9], label="9 requests/s now, 12 at most in the last hour"),
    }


def _lists() -> dict[str, Any]:
    page = Paginator(range(95), 10).page(3)
    return {
        "tabs": [("Releases", "#tabs", True, 14), ("Serving", "#tabs", False, None), ("Aliases", "#tabs", False, 0)],
        "spans": {"1h": ("1 hour",), "7d": ("7 days",)},
        "span": "7d",
        "environments": [{"slug": "production", "title": "Production"}],
        "filters": [
            Filter("text", "Model or team", hint="sentiment", value=_HOSTILE[:40]),
            Filter(
                "outcome",
                "Last outcome",
                options=[("promoted", "promoted"), ("rolled_back", "rolled back")],
                value="promoted",
            ),
        ],
        "is_filtered": True,
        "sort": "-name",
        "page": page,
    }


#: Root of the addresses while a test shows the page.
urlpatterns = [path("styleguide/", styleguide), *urls.urlpatterns]
handler500 = urls.handler500
