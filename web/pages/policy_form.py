"""A rollout's policy from a form: the model's own, a preset, a digest, fields in words, or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.core.errors import Invalid
from registry.models import ServedModel
from rollouts.core.presets import PRESETS
from rollouts.queries.rollouts import policy_by_digest

OWN, JSON, FIELDS, DIGEST = "own", "json", "fields", "digest"
#: The presets that people choose from; `demo` is for showing things fast on one machine.
CHOICES = tuple(name for name in PRESETS if name != "demo")
#: A policy in an address may be so long: browsers, proxies and chats cut longer ones.
LONGEST_IN_ADDRESS = 4000
#: The numbers of each step, and the stages whose approvals have a field of their own.
_NUMBERS = {"min_s": "minimum seconds", "min_samples": "samples", "deadline_s": "deadline in seconds"}
_APPROVED = ("start", "bake", "promote")
NAMES = ("base", "weights", *_NUMBERS, *(f"approvals_{stage}" for stage in _APPROVED))


@dataclass(frozen=True)
class Field:
    """One field in words. `unit` stands behind its label."""

    name: str
    label: str
    value: str
    unit: str = ""


def policy_in(form: Mapping[str, str], model: ServedModel) -> dict[str, Any] | None:
    """The policy that the form asks for; None: the model's own. `preset` may be named alone, as in a short address.

    Raises Invalid.
    """
    choice = form.get("policy") or form.get("preset") or OWN
    if choice == OWN:
        return None
    if choice == JSON:
        return _object(form.get("policy_json", ""))
    if choice == FIELDS:
        return from_fields(form)
    if choice == DIGEST:
        return _by_digest(form.get("digest", ""), model)
    return {"preset": choice}


def _object(text: str) -> dict[str, Any]:
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid("policy_not_json", f"The policy is not JSON: {error}. Correct it, or choose a preset.") from None
    if not isinstance(policy, dict):
        raise Invalid("policy_not_json", 'Write the policy as one JSON object, such as {"preset": "fast"}.')
    return policy


def _by_digest(digest: str, model: ServedModel) -> dict[str, Any]:
    is_one = re.fullmatch("sha256:[0-9a-f]{64}", digest) is not None
    policy = policy_by_digest(model, digest) if is_one else None
    if policy is None:
        raise Invalid(
            "no_such_policy",
            f"No rollout of {model.slug} followed a policy with the digest “{digest[:80]}”. Write the policy as JSON.",
        )
    return policy


def from_fields(form: Mapping[str, str], steps: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The policy as JSON from the fields in words; empty fields use the preset. Raises Invalid.

    `steps`: those of the policy that is changed. A number of which they have several has no field to show them, and stays.
    """
    preset = form.get("base") or "standard"
    several = [name for name in _NUMBERS if len({step[name] for step in steps}) > 1]
    if preset not in PRESETS:
        raise Invalid("policy_field", f"“{preset[:40]}” is not a preset. Choose {', '.join(CHOICES)}.")
    policy: dict[str, Any] = {"preset": preset}
    numbers = {name: value for name, words in _NUMBERS.items() if (value := _number(form, name, words)) is not None}
    weights = [part for part in re.split(r"[\s,;%→]+", form.get("weights", "")) if part]
    base = PRESETS[preset]["steps"]
    if weights or numbers:
        shares = [_decimal(one, "weights") for one in weights] or [step["weight_pct"] for step in base]
        policy["steps"] = [
            {**base[min(i, len(base) - 1)], **_some(steps, i, several), **numbers, "weight_pct": one}
            for i, one in enumerate(shares)
        ]
    approvals = {
        stage: int(count)
        for stage in _APPROVED
        if (count := _number(form, f"approvals_{stage}", f"approvals for {stage}"))
    }
    if approvals:
        policy["approvals"] = approvals
    return policy


def _some(steps: Sequence[Mapping[str, Any]], i: int, names: Sequence[str]) -> dict[str, Any]:
    """Those numbers of the step at this place, or of the last one."""
    return {name: steps[min(i, len(steps) - 1)][name] for name in names}


def _number(form: Mapping[str, str], name: str, words: str) -> float | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    value = _decimal(text, words)
    return int(value) if value.is_integer() else value


def _decimal(text: str, words: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,4})?", text):
        raise Invalid("policy_field", f"“{text[:40]}” is not a number; write the {words} in digits, such as 5 or 2.5.")
    return float(text)


def fields_of(form: Mapping[str, str], document: Mapping[str, Any] | None) -> list[Field]:
    """The fields with the person's input, else with the shown policy's values; empty if its steps differ."""
    shown = document or {}
    steps = shown.get("steps", [])
    known = {"weights": ", ".join(f"{step['weight_pct']:g}" for step in steps)}
    for name in _NUMBERS:
        values = {step[name] for step in steps}
        known[name] = f"{values.pop():g}" if len(values) == 1 else ""
    known |= {
        f"approvals_{stage}": str(count) for stage, count in shown.get("approvals", {}).items() if stage in _APPROVED
    }

    def field(name: str, label: str, unit: str = "") -> Field:
        return Field(name, label, form.get(name, "") if form.get("policy") == FIELDS else known.get(name, ""), unit)

    return [
        field("weights", "Weights of the steps", "percent, the smallest first"),
        field("min_samples", "Samples", "attempts on the candidate, each step"),
        field("min_s", "At least", "seconds, each step"),
        field("deadline_s", "Deadline", "seconds, each step"),
        *(field(f"approvals_{stage}", f"Approvals before {stage}", "people") for stage in _APPROVED),
    ]
