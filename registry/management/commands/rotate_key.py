"""`manage.py rotate_key releases`: a new signing key; what the one before signed stays valid."""

from __future__ import annotations

import argparse
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from accounts.core.access import Actor
from ledger.core.errors import DomainError
from registry import actions
from registry.signing import installation_keys


class Command(BaseCommand):
    help = (
        "Makes a new signing key and lists the public half of the one before among the former keys. It holds at once in "
        "every process that reads the same files. Releases that are there can be signed again: "
        "sluicegate api POST /models/MODEL/releases/rN/signature."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("use", choices=[use.value for use in installation_keys.Use], help="what the key signs")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            before, after = actions.rotate_key(
                actor=Actor.system("rotate_key"), use=installation_keys.Use(options["use"])
            )
        except DomainError as error:
            raise CommandError(error.message) from error
        if before is not None:
            self.stdout.write(
                f"{before.key_id} signs no more; {settings.FORMER_KEYS_FILE} lists it, so what it signed is valid."
            )
        self.stdout.write(f"{after.key_id} signs from now on.")
        self.stdout.write(after.pem)
