"""Address of the API, for links, routes and sentences."""

from __future__ import annotations

from typing import Final

API: Final = "/api/v1"
