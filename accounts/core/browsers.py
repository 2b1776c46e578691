"""Name of a browser from its user agent: `Firefox on Linux`. Everything here is the browser's own claim."""

from __future__ import annotations

from typing import Final

#: In this order, for most of them claim to be Chrome or Safari as well.
_BROWSERS: Final = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser", "Samsung Internet"),
    ("Firefox", "Firefox"),
    ("FxiOS", "Firefox"),
    ("Chromium", "Chromium"),
    ("HeadlessChrome", "Chromium"),
    ("CriOS", "Chrome"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
    ("curl/", "curl"),
)
#: Likewise: Android claims Linux, an iPhone claims Mac OS X.
_SYSTEMS: Final = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)
UNKNOWN_BROWSER: Final = "another browser"


def browser_text(user_agent: str) -> str:
    """`Firefox on Linux`, from known names alone, without any part of the header."""
    told = user_agent[:500]
    browser = next((name for mark, name in _BROWSERS if mark in told), UNKNOWN_BROWSER)
    system = next((name for mark, name in _SYSTEMS if mark in told), "")
    return f"{browser} on {system}" if system else browser
