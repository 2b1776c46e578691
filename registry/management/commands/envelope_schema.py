"""Writes the envelope's JSON Schema, which is generated from the table that reads envelopes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from registry.core.json_schema import envelope_schema


class Command(BaseCommand):
    help = "Write the JSON Schema of the resource envelope"
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="such as docs/envelope.schema.json")

    def handle(self, *args: Any, **options: Any) -> None:
        options["file"].write_text(json.dumps(envelope_schema(), indent=2) + "\n", encoding="utf-8")
