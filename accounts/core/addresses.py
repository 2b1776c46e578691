"""Where the API stands: the one place that says so, for links, routes and sentences."""

from __future__ import annotations

from typing import Final

API: Final = "/api/v1"
