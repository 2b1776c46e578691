"""Who is called when a model breaks: on-call, runbook, escalation. Part of no digest, for it changes nothing that runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.core.schema import Record, Text, may

_RUNBOOK: Final = Text(
    500,
    pattern=r"https://[!-~]+",
    like='"https://wiki.example.com/ranker"',
    says="an https address",
    rule="https:// and ASCII characters without spaces",
)
OWNERSHIP: Final = Record({"on_call": may(Text(200)), "runbook_url": may(_RUNBOOK), "escalation": may(Text(200))})
#: What a browser may follow from such a text: anything else stays text.
_LINK: Final = re.compile(r"(?:https://|mailto:|tel:)[!-~]+")
LABELS: Final = {"on_call": "On call", "runbook_url": "Runbook", "escalation": "Escalation"}


@dataclass(frozen=True)
class Contact:
    """One line of it. `href` is empty where the text is no link that is safe to follow."""

    label: str
    text: str
    href: str = ""


def contacts_of(ownership: Mapping[str, Any]) -> list[Contact]:
    """What is known, in the order in which one needs it. Looks again at what is stored: a link is one of three kinds only."""
    known = [(label, str(ownership.get(name) or "")) for name, label in LABELS.items()]
    return [Contact(label, text, text if _LINK.fullmatch(text) else "") for label, text in known if text]


def ownership_facts(ownership: Mapping[str, Any]) -> dict[str, str]:
    """The facts that an event of something broken tells, so that mails and webhooks say whom to call."""
    return {name: str(ownership[name]) for name in LABELS if ownership.get(name)}
