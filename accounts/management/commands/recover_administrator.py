"""`manage.py recover_administrator admin`: for an owner whom no administrator can let in any more."""

from __future__ import annotations

import argparse
import secrets
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts.actions import FIRST_ADMINISTRATOR, issue_token, recover_administrator
from accounts.core.access import Actor
from ledger.core.errors import DomainError


class Command(BaseCommand):
    help = (
        "Makes a user an active administrator with a new password, whatever the user was before; old sessions and tokens end. "
        "The password is made up and printed once, or read from standard input. It takes the database's own credentials."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("username", nargs="?", default=FIRST_ADMINISTRATOR)
        parser.add_argument(
            "--token", action="store_true", help="print a token too: it lets in at once while others guess passwords"
        )
        parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")

    def handle(self, *args: Any, **options: Any) -> None:
        is_given = options["password_stdin"]
        password = sys.stdin.readline().rstrip("\n") if is_given else secrets.token_urlsafe(15)
        actor = Actor.system("recover_administrator")
        try:
            user = recover_administrator(actor=actor, username=options["username"], password=password)
            token = issue_token(user=user, name="recovered", actor=actor) if options["token"] else ""
        except DomainError as error:
            raise CommandError(error.message) from error
        end = "the password that you gave" if is_given else f"the password {password}"
        self.stdout.write(f"{options['username']} administers again, and signs in with {end}.")
        if token:
            self.stdout.write(f"SLUICEGATE_TOKEN={token}")
