"""A model's objectives and policies as fields in words, and as one text: both ways to the same settings. Asks nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.core.errors import Invalid
from registry.adapters.json_yaml import read_text
from registry.core.diff import Change, fields
from registry.core.schema import Problem
from registry.queries.model_changes import POLICIES
from validators.core.gates import GATES
from validators.core.policy import ON_DEMAND
from web.pages.policy_form import FIELDS, NAMES, Field, fields_of, from_fields

LABELS: Final = {
    "objectives": "Objectives",
    "gate_policy": "Gate policy",
    "rollout_policy": "Rollout policy",
    "traffic_policy": "Traffic policy",
}
#: Characters of a sent text.
_LONGEST: Final = 256 << 10
_NUMBER, _TEXT, _FLAG, _LIST = "number", "text", "flag", "list"
_GATE_NAMES: Final = f"{', '.join(gate for gate in GATES if gate not in ON_DEMAND)}; also {', '.join(ON_DEMAND)}"
#: (path, label, unit, what it is) of each setting that has a field here; the text has all of them.
_WORDS: Final = {
    "objectives": (
        ("timeout_s", "A user waits at most", "seconds", _NUMBER),
        ("attempt_timeout_s", "An attempt may take", "seconds", _NUMBER),
        ("errors_max_frac", "Errors at most", "share from 0 to 1", _NUMBER),
        ("slow.threshold_ms", "Slow is longer than", "milliseconds", _NUMBER),
        ("slow.max_frac", "Slow at most", "share from 0 to 1", _NUMBER),
        ("first_token.threshold_ms", "A first token is late after", "milliseconds, of streams", _NUMBER),
        ("first_token.max_frac", "Late first tokens at most", "share from 0 to 1", _NUMBER),
        ("stalled.threshold_ms", "A stream stalls after", "milliseconds without text", _NUMBER),
        ("stalled.max_frac", "Stalled streams at most", "share from 0 to 1", _NUMBER),
        ("wrong.max_frac", "Wrong answers at most", "share from 0 to 1", _NUMBER),
    ),
    "gate_policy": (
        ("gates", "Gates, in their order", _GATE_NAMES, _LIST),
        ("stop_at_first_failure", "Stop at the first failure", "yes or no", _FLAG),
        *((f"{gate.name}.{row.path}", *row[1:]) for gate in GATES.values() for row in gate.form),
        ("envelope.on_breach", "A value beyond the envelope", "fail or warn", _TEXT),
        ("envelope.tolerance_frac", "Times and rates may be off by", "share of the declared value", _NUMBER),
        ("evidence.max_age_days", "Evidence holds for", "days, or none", _NUMBER),
    ),
    "rollout_policy": (
        ("holdback_pct", "Held back while it bakes", "percent", _NUMBER),
        ("alpha_roll_back", "A needless rollback at most", "share of rollouts", _NUMBER),
        ("budget_bad", "Bad attempts at most", "attempts, or none", _NUMBER),
        ("deadline_s", "The whole rollout at most", "seconds", _NUMBER),
    ),
    "traffic_policy": (
        ("idempotent", "A request may be asked twice", "yes or no; default yes", _FLAG),
        ("retry_on_reset", "Asked again when its server died", "yes or no; default no", _FLAG),
        ("classes.header", "Header that names the class", "from a trusted proxy", _TEXT),
        ("classes.default", "Class of everything else", "interactive, batch, …", _TEXT),
        ("tenants.header", "Header that names the tenant", "from a trusted proxy", _TEXT),
        ("tenants.others.requests_per_s", "Everybody who is not named", "requests a second, together", _NUMBER),
    ),
}


@dataclass(frozen=True)
class Asked:
    """The wanted settings; `problems`: unreadable parts."""

    settings: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class FieldGroup:
    """The fields of one setting, as a form shows them."""

    name: str
    label: str
    fields: list[Field]


def groups_of(settings: Mapping[str, Any], typed: Mapping[str, str]) -> list[FieldGroup]:
    """The fields with the person's input, else with the settings' values; empty for an absent setting."""
    groups = []
    for part, words in _WORDS.items():
        shown = [
            Field(name := f"{part}.{path}", label, typed.get(name, _shown(_at(settings[part], path))), unit)
            for path, label, unit, _ in words
        ]
        if part == "rollout_policy":
            shown = [*_steps(settings[part], typed), *shown]
        groups.append(FieldGroup(part, LABELS[part], shown))
    return groups


def base_of(policy: Mapping[str, Any], typed: Mapping[str, str]) -> str:
    """The preset that is chosen."""
    return typed.get("base") or str(policy.get("preset") or "standard")


def _steps(policy: Mapping[str, Any], typed: Mapping[str, str]) -> list[Field]:
    """The steps and approvals. A policy of before that has no readable ones shows none."""
    form = {**typed, "policy": FIELDS if "weights" in typed else ""}
    try:
        return fields_of(form, policy)
    except (KeyError, TypeError, AttributeError, ValueError):
        return fields_of(form, None)


def from_words(typed: Mapping[str, str], settings: Mapping[str, Any]) -> Asked:
    """The settings with the person's input. An unchanged field changes nothing, an empty field removes its setting."""
    asked, problems = deepcopy({name: settings[name] for name in POLICIES}), list[Problem]()
    for part, words in _WORDS.items():
        for path, label, _, kind in words:
            text = typed.get(f"{part}.{path}", "").strip()
            if f"{part}.{path}" in typed and text != _shown(_at(settings[part], path)):
                try:
                    _put(asked[part], path, _value(text, label, kind))
                except Invalid as error:
                    problems.append(Problem(f"{part}.{path}", error.message, ""))
    try:
        asked["rollout_policy"] = _with_steps(asked["rollout_policy"], typed, settings["rollout_policy"])
    except Invalid as error:
        problems.append(Problem("rollout_policy", error.message, ""))
    return Asked(asked, problems)


def _with_steps(policy: dict[str, Any], typed: Mapping[str, str], was: Mapping[str, Any]) -> dict[str, Any]:
    shown = {one.name: one.value for one in _steps(was, {})} | {"base": base_of(was, {})}
    if all(typed.get(name, shown[name]).strip() == shown[name] for name in NAMES):
        return policy
    steps = was.get("steps") or ()
    whole = {name: typed.get(name, shown[name]) for name in NAMES}
    try:
        written = from_fields(whole, steps)
    except (KeyError, TypeError, AttributeError):  # unreadable steps of an earlier version
        written = from_fields(whole)
    if written["preset"] == "standard" and "preset" not in was:
        del written["preset"]
    kept = {name: value for name, value in policy.items() if name not in ("preset", "steps", "approvals")}
    hidden = {
        stage: count
        for stage, count in (was.get("approvals") or {}).items()
        if f"approvals_{stage}" not in NAMES
    }  # fmt: skip
    approvals = {**hidden, **written.pop("approvals", {})}
    return {**kept, **written, **({"approvals": approvals} if approvals else {})}


def from_text(text: str, settings: Mapping[str, Any]) -> Asked:
    """The settings in a JSON or YAML text; an absent setting stays unchanged."""
    kept = {name: settings[name] for name in POLICIES}
    if len(text) > _LONGEST:
        return Asked(kept, [Problem("", f"The text has more than {_LONGEST} characters.", "Write less.")])
    read = read_text(text)
    problems = [Problem(one.field, f"{one.message}.", "") for one in read.mistakes]
    if not problems and not isinstance(read.document, dict):
        problems = [Problem("", "The text is not an object.", f"Write {', '.join(POLICIES)} and what each holds.")]
    document = read.document if isinstance(read.document, dict) else {}
    problems += [
        Problem(str(name), "there is no such field here.", f"The fields are {', '.join(POLICIES)}.")
        for name in document if name not in POLICIES
    ]  # fmt: skip
    return Asked({**kept, **{name: value for name, value in document.items() if name in POLICIES}}, problems)


def text_of(settings: Mapping[str, Any]) -> str:
    return json.dumps({name: settings[name] for name in POLICIES}, indent=2, ensure_ascii=False, default=str)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Differences by field, old and new as JSON; a setting of which only a null differs is shown whole."""
    found: list[Change] = []
    for part in POLICIES:
        if part in after and before.get(part) != after[part]:
            told = list(fields(part, before.get(part), after[part])) or [
                Change(part, "", "changed", before.get(part), after[part])
            ]
            found += [
                Change(part, f"{part}.{one.field}" if one.field else part, one.kind, _json(one.old), _json(one.new))
                for one in told
            ]
    return found


def _json(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False, default=str)


# --- one field ---------------------------------------------------------------------------------------------------------

_ABSENT: Final = object()


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name, _ABSENT) if isinstance(document, Mapping) else _ABSENT
    return document


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return ""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _value(text: str, label: str, kind: str) -> Any:
    """The value typed, `_ABSENT` for an empty field. Raises Invalid."""
    if not text:
        return _ABSENT
    if kind == _LIST:
        return [one for one in re.split(r"[\s,;→]+", text) if one]
    if kind == _TEXT:
        return text
    if text.lower() == "none":
        return None
    if kind == _FLAG:
        if text.lower() not in ("yes", "no"):
            raise Invalid("policy_field", f"{label}: write yes or no in place of “{text[:40]}”.")
        return text.lower() == "yes"
    return _number(text, label)


def _number(text: str, label: str) -> float:
    """Raises Invalid."""
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text):
        raise Invalid("policy_field", f"{label}: “{text[:40]}” is not a number; write it in digits, such as 5 or 0.25.")
    return float(text) if "." in text else int(text)


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    """Sets or removes what stands at the path. A part that holds nothing any more is taken out."""
    first, _, rest = path.partition(".")
    if rest:
        inner = document.get(first)
        inner = dict(inner) if isinstance(inner, Mapping) else {}
        _put(inner, rest, value)
        value = inner or _ABSENT
    if value is _ABSENT:
        document.pop(first, None)
    else:
        document[first] = value
