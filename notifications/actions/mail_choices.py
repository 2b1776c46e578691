"""A person's choice of mails, and the address for them."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from accounts.actions.people import keep_email
from accounts.core.access import Actor, require_own
from accounts.models import User
from ledger.actions.events import append_event
from ledger.core.errors import field_error
from notifications.models import MailChoice

LONGEST_ADDRESS = 254


@transaction.atomic
def choose_mails(*, actor: Actor, user: User, address: str, wants_approvals: bool, wants_rollbacks: bool) -> MailChoice:
    """The choice, from now on: for mails that are still on their way as well. Raises Refused, Invalid."""
    require_own(actor, user.pk)
    address = address.strip()
    try:
        if address:
            validate_email(address)
    except ValidationError:
        raise field_error(
            "address", f"{address[:100]!r} is no e-mail address.", "Write one, such as ana@example.com."
        ) from None
    if len(address) > LONGEST_ADDRESS:
        raise field_error("address", f"An address has {LONGEST_ADDRESS} characters at the most.", "Shorten it.")
    keep_email(user, address)
    choice, _ = MailChoice.objects.update_or_create(
        user=user, defaults={"wants_approvals": wants_approvals, "wants_rollbacks": wants_rollbacks}
    )
    facts = {"has_address": bool(address), "approvals": wants_approvals, "rollbacks": wants_rollbacks}
    append_event(verb="user.mails_chosen", subject_type="user", subject_id=user.username, actor=actor, facts=facts)
    return choice
