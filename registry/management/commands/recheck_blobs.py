"""`manage.py recheck_blobs`: every stored blob read again, damaged ones quarantined and named."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.core.access import Actor
from registry import actions
from registry.models import Blob


class Command(BaseCommand):
    help = "Reads every blob in the store again; those that are not their sha256 any more are quarantined and named"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("sha256", nargs="*", help="only these")

    def handle(self, *args: Any, **options: Any) -> None:
        blobs = Blob.objects.filter(collected_at=None).order_by("pk")
        if options["sha256"]:
            blobs = blobs.filter(pk__in=options["sha256"])
        checked, damaged = 0, 0
        for blob in blobs.iterator(500):
            problem = actions.recheck_blob(actor=Actor.system("recheck"), blob=blob)
            checked += 1
            if problem:
                damaged += 1
                self.stdout.write(f"{blob.sha256}: {problem}")
        self.stdout.write(f"{checked} blobs checked, {damaged} damaged")
        if damaged:
            raise CommandError("Damaged blobs are quarantined; each line above says what to do.", returncode=1)
