"""Every colour that meets another one on a page can be told from it (WCAG 2.2, 1.4.3 and 1.4.11), in both schemes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SHEETS = Path(__file__).resolve().parents[2] / "web" / "static"
TOKENS = (SHEETS / "web" / "tokens.css").read_text()
COLOURS = {
    name: dict(zip(("light", "dark"), pair, strict=True))
    for name, *pair in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", TOKENS)
}
STATES = ("ok", "running", "waiting", "bad")
GROUNDS = ("page", "surface", *(f"{state}-ground" for state in STATES))
#: What is read: 4.5 to 1 on every ground that it stands on. A state's word stands on its own ground, not on another state's.
READ = [(text, ground) for text in ("text", "muted") for ground in GROUNDS]
READ += [(state, ground) for state in STATES for ground in ("page", "surface", f"{state}-ground")]
READ += [
    ("page", state) for state in (*STATES, "running")
]  # primary buttons and badges: the page's colour on the state's
READ += [(series, ground) for series in ("candidate", "stable") for ground in ("page", "surface")]
#: What is only seen: 3 to 1.
SEEN = [("edge", ground) for ground in ("page", "surface")]


def luminance(colour: str) -> float:
    """Relative luminance in [0, 1] of `#rrggbb`. Source: WCAG 2.2, definition of relative luminance."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """From 1 (the same) to 21 (black and white)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_wcag_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # the well known grey that just fails


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_read_has_contrast(scheme: str) -> None:
    poor = {
        (text, ground): round(ratio, 2)
        for text, ground in READ
        if (ratio := contrast(COLOURS[text][scheme], COLOURS[ground][scheme])) < 4.5
    }
    assert poor == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_seen_has_contrast(scheme: str) -> None:
    assert [pair for pair in SEEN if contrast(COLOURS[pair[0]][scheme], COLOURS[pair[1]][scheme]) < 3] == []


def test_every_token_is_tested() -> None:
    assert {name for pair in READ + SEEN for name in pair} | {"line"} == set(
        COLOURS
    )  # a line only divides; nothing rests on it


def test_colours_stand_in_the_tokens_alone() -> None:
    """No sheet and no drawing has a colour of its own; the favicon is no page."""
    found = {
        f"{path.name}: {colour}"
        for path in SHEETS.rglob("*.css")
        if path.name != "tokens.css"
        for colour in re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[^{]*;)|rgba?\([^)]*\)|hsla?\([^)]*\)", path.read_text())
    }
    assert found == set()


def test_every_variable_that_is_used_exists() -> None:
    defined = set(re.findall(r"^\s*--([\w-]+):", TOKENS, re.M))
    used = {name for path in SHEETS.rglob("*.css") for name in re.findall(r"var\(--([\w-]+)\)", path.read_text())}
    assert used - defined == set()
