"""One e-mail, by the mail server that the settings name."""

from __future__ import annotations

import smtplib
import time

from django.conf import settings
from django.core.mail import EmailMessage

from notifications.core.delivery import SNIPPET_CHARACTERS, Outcome

_LONGEST_SUBJECT = 200


def is_configured() -> bool:
    return bool(settings.EMAIL_HOST)


def send(to: str, subject: str, text: str, *, message_id: str) -> Outcome:
    """How it went; well means that the mail server took it. `message_id` is the same at every attempt."""
    began = time.monotonic()
    error, code = "", None
    if not is_configured():
        error = "No mail server is configured any more. Set SLUICEGATE_EMAIL_URL, and restart the worker."
    else:
        domain = settings.DEFAULT_FROM_EMAIL.rpartition("@")[2].rstrip("> ") or "sluicegate"
        headers = {"Message-ID": f"<{message_id}@{domain}>", "Auto-Submitted": "auto-generated"}
        one_line = " ".join(subject.split())[:_LONGEST_SUBJECT]
        try:
            EmailMessage(one_line, text, to=[to], headers=headers).send()
        except (OSError, smtplib.SMTPException, ValueError) as refused:
            code = getattr(refused, "smtp_code", None)
            error = f"The mail server did not take it: {str(refused) or type(refused).__name__}."[:SNIPPET_CHARACTERS]
    return Outcome(error.replace("\x00", "\ufffd"), code, "", round(1000 * (time.monotonic() - began)))
