"""The parts that pages are put together from, and how one likes the pages."""

from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.template import Context, Template
from django.test import Client

from web.words import KINDS, WORDS

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "web" / "static"
#: What all pages together may bring of our own, compressed; files of others (web/VENDOR.md) are not counted.
MOST_BYTES = 60 * 1024


def rendered(template: str, **context: Any) -> str:
    return Template("{% load ui shell %}" + template).render(Context(context))


def test_our_own_files_stay_small() -> None:
    others = set(re.findall(r"^\| `([\w.-]+)` \|", (ROOT / "web" / "VENDOR.md").read_text(), re.M))
    ours = [path for path in STATIC.rglob("*") if path.is_file() and path.name not in others]
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in ours) <= MOST_BYTES


def test_every_icon_that_is_used_is_in_the_sprite() -> None:
    sprite = set(re.findall(r'<symbol id="([\w-]+)"', (STATIC / "web" / "icons.svg").read_text()))
    assert 'xmlns="http://www.w3.org/2000/svg"' in (STATIC / "web" / "icons.svg").read_text()  # else nothing is drawn
    used = {icon for _, icon in WORDS.values()} | set(KINDS.values())
    for path in (ROOT / "templates").rglob("*.html"):
        used |= set(re.findall(r'{% icon "([\w-]+)"', path.read_text()))
    assert used - sprite == set()


def test_the_styleguide_shows_every_state_and_part(client: Client, django_user_model: Any, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.pages.styleguide"
    templates = ROOT / "tests" / "pages" / "templates"
    settings.TEMPLATES = [{**one, "DIRS": [*one["DIRS"], templates]} for one in settings.TEMPLATES]
    client.force_login(django_user_model.objects.create_user("ada"))
    answer = client.get("/styleguide/?sort=-name")
    page = answer.content.decode()
    assert answer.status_code == 200
    assert [name for name in WORDS if f"</svg> {name.replace('_', ' ')}</span>" not in page] == []
    parts = {path.stem for path in (ROOT / "templates" / "_parts").glob("*.html")}
    shown = set(re.findall(r"_parts/(\w+)\.html", "".join(p.read_text() for p in templates.rglob("*.html"))))
    shown |= {"messages", "navigation", "main_links", "palette"}  # by Django's messages; on every page
    assert parts - shown == set()
    assert "<b>“a" not in page and "&lt;b&gt;“a" in page
    assert " style=" not in page and "<script>" not in page and "onclick" not in page


def test_a_state_says_since_when() -> None:
    since = datetime.now(UTC) - timedelta(minutes=6)
    assert "since" not in rendered('{% word "shifting" %}')
    assert ">for 6 min<" in rendered('{% word "shifting" since=at %}', at=since)
    assert ">6 min ago<" in rendered("{% instant at %}", at=since)
    assert '<span class="word idle">' in rendered('{% word "never heard of" %}')


def test_an_instant_is_told_absolutely_without_a_pointer() -> None:
    page = rendered("{% instant at %}", at=datetime(2026, 11, 23, 2, 30, 5, tzinfo=UTC))
    assert 'tabindex="0"' in page and '<span class="at">2026-11-23 02:30:05 UTC</span>' in page
    other_zone = datetime.fromisoformat("2026-11-23T03:30:05+01:00")
    assert "2026-11-23 02:30:05 UTC" in rendered("{% instant at %}", at=other_zone)
    assert rendered("{% instant at %}", at=None) == "–"


def test_a_number_is_never_parted_from_its_unit() -> None:
    told = rendered("{{ reason|units }}", reason="Holding at 25 %: 17 s of 20 s, 3 msgs; 5 per cent of 2 d")
    assert told == "Holding at 25\u00a0%: 17\u00a0s of 20\u00a0s, 3 msgs; 5 per cent of 2\u00a0d"
    assert rendered("{{ 2500|percent }}") == "25\u00a0%" and rendered('{{ 21|figures:"ms" }}') == "21.0\u00a0ms"
    assert rendered("{{ name|guard_words }}", name="slow_250ms") == "slow (over 250\u00a0ms)"


def test_a_digest_can_be_selected_whole_and_copied() -> None:
    value = "sha256:" + "0123456789abcdef" * 4
    page = rendered("{% digest value %}", value=value)
    assert re.sub("<[^>]*>", "", page).strip() == value
    assert f'data-copy="{value}"' in page and 'aria-label="Copy the digest sha256:01234567…cdef"' in page
    assert "&quot;&gt;&lt;img" in rendered("{% digest value %}", value='"><img src=x onerror=alert(1)>')


def test_a_meter_says_in_words_what_it_draws() -> None:
    page = rendered('{% meter 61 50 "p99" "ms" %}')
    assert 'aria-label="p99: 61 ms of 50 ms, not within it"' in page and 'class="meter bad"' in page
    assert 'aria-label="p99: – of 50 ms, not judged"' in rendered('{% meter None 50 "p99" "ms" %}')


def test_an_entry_without_a_page_is_left_out() -> None:
    assert rendered("{% nav 'no_such_page' 'Nowhere' %}") == ""
    assert rendered("{% nav 'models' 'Models' 3 %}").endswith('Models <span class="badge">3</span></a>')


@pytest.mark.django_db
def test_looks_are_kept_and_lead_nowhere_else(client: Client) -> None:
    kept = client.post("/looks/", {"scheme": "dark", "times": "utc", "next": "/sign-in/?next=/models/"})
    assert kept.headers["Location"] == "/sign-in/?next=/models/"
    page = client.get("/sign-in/").content.decode()
    assert 'data-scheme="dark"' in page and 'data-times="utc"' in page
    away = client.post("/looks/", {"scheme": "<b>", "next": "https://elsewhere.example/"})
    assert away.headers["Location"] == "/"
    assert 'data-scheme="dark"' in client.get("/sign-in/").content.decode()
    client.cookies["looks"] = '"><script>.x.y'
    assert "data-scheme" not in client.get("/sign-in/").content.decode()
    assert client.get("/looks/").status_code == 302
