"""A new model: by fields, or from the text of a model.yaml. A refused form keeps the person's input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from accounts.api.requests import actor_of
from accounts.core.access import EVERY_TEAM, Verb, may
from accounts.queries import teams
from ledger.core.errors import DomainError, Invalid
from registry.actions import create_model
from registry.adapters.json_yaml import read_text
from registry.core.located import Located, TextPlace, in_document
from registry.core.schema import Problem
from registry.core.serving import DATA_TYPES
from registry.queries.model_changes import new_model as new_model_of
from serving.traffic.core.buckets import EDGES_US
from web.pages.forms import refused

FILE: Final = "model.yaml"
#: Empty rows that a new form has, for each side of the contract; a blank row is no tensor.
ROWS, MOST_ROWS = 2, 50
_LONGEST: Final = 256 << 10
_TEXTS: Final = ("slug", "team", "title", "description")
_KNOWN: Final = (*_TEXTS, "contract", "objectives", "gate_policy", "rollout_policy", "traffic_policy", "ownership")
_NUMBERS: Final = ("errors_max_frac", "slow_threshold_ms", "slow_max_frac", "timeout_s")


@dataclass(frozen=True)
class _Read:
    """A model as typed; `places` are positions in its text, if it came as text."""

    document: Mapping[str, Any]
    problems: Sequence[Located] = ()
    places: Mapping[str, TextPlace] | None = None


@login_required
def new_model(request: HttpRequest) -> HttpResponse:
    return _page(request, [])


@login_required
def create(request: HttpRequest) -> HttpResponse:
    """The new model's page; or the form as it was filled in, and every mistake of it."""
    if request.POST.get("more"):
        return _page(request, [])
    read = _from_text(request) if request.POST.get("from") == "text" else _from_fields(request)
    if read.problems:
        every = [*read.problems, *_further(read)]
        error = Invalid("invalid_model", f"The model has {_count(every)}; nothing was created.")
        return refused(request, error, lambda: _page(request, every))
    try:
        model, is_new = create_model(actor=actor_of(request), **_arguments(read.document))
    except DomainError as error:
        told = [Problem(**one) for one in error.facts.get("errors", [])]
        located = in_document(told, FILE if read.places else "", read.places or {})
        return refused(request, error, lambda: _page(request, located))
    messages.success(
        request, f"{model.slug} is created." if is_new else f"{model.slug} exists already, with the same content."
    )
    return redirect("model", model.slug)


def _page(request: HttpRequest, problems: Sequence[Located]) -> HttpResponse:
    actor = actor_of(request)
    typed = request.POST
    facts = {
        "teams": [team for team in teams() if may(actor, Verb.CREATE_MODEL, team.slug)],
        "data_types": list(DATA_TYPES),
        "sides": [(side, label, _rows(typed, side)) for side, label in (("inputs", "Input"), ("outputs", "Output"))],
        "problems": problems,
        "wrong": {_input_of(one.problem.field) for one in problems},
        "typed": typed,
        "edges_ms": [edge / 1000 for edge in EDGES_US],
        "is_admin": may(actor, Verb.ADMINISTER, EVERY_TEAM),
    }
    return render(request, "registry/new_model.html", facts)


def _further(read: _Read) -> list[Located]:
    """The mistakes of what could be read, beside those of `read`: who mends all of these sees no others after that."""
    if not read.document:
        return []
    found = _arguments(read.document)
    _, _, problems = new_model_of(found.pop("slug"), found.pop("team"), found)
    told = {one.problem.field for one in read.problems}
    return in_document(
        [one for one in problems if one.field not in told], FILE if read.places else "", read.places or {}
    )


def _input_of(field: str) -> str:
    """The name of the form's input for a field of a model: `slow_threshold_ms` for `objectives.slow.threshold_ms`."""
    return field.removeprefix("objectives.").replace("slow.", "slow_")


def _rows(typed: Mapping[str, str], side: str) -> list[dict[str, str]]:
    """The rows of a side of the contract, and an empty row if the person asked for it."""
    asked = typed.get(f"rows_{side}", "")
    count = int(asked) if re.fullmatch("[0-9]{1,3}", asked) else ROWS
    count = min(MOST_ROWS, count + (typed.get("more") == side))
    return [{name: typed.get(f"{side}_{name}_{i}", "") for name in ("name", "data_type", "dims")} for i in range(count)]


def _from_text(request: HttpRequest) -> _Read:
    text = request.POST.get("text", "")
    if len(text) > _LONGEST:
        return _Read({}, [Located(FILE, Problem("", f"it has more than {_LONGEST} characters.", "Write less."))])
    read = read_text(text)
    problems = [Located(FILE, Problem(one.field, f"{one.message}.", ""), one.place) for one in read.mistakes]
    if not problems and not isinstance(read.document, dict):
        fix = "Write `slug: NAME`, `team: NAME` and the model's contract."
        problems = [Located(FILE, Problem("", "it holds no fields.", fix))]
    document = dict(read.document) if isinstance(read.document, dict) else {}
    if request.POST.get("text_team") and not document.get("team"):
        document["team"] = request.POST["text_team"]
    for name in (name for name in _TEXTS if not isinstance(document.get(name) or "", str)):
        document.pop(name)
        wrong = [Problem(name, "it is not text.", "Write it in quotes.")]
        problems += in_document(wrong, FILE, read.places)
    unknown = [Problem(str(name), "there is no such field.", f"The fields are {', '.join(_KNOWN)}.") for name in document
               if name not in _KNOWN]  # fmt: skip
    return _Read(document, [*problems, *in_document(unknown, FILE, read.places)], read.places)


def _from_fields(request: HttpRequest) -> _Read:
    typed, problems = request.POST, list[Located]()
    document: dict[str, Any] = {name: typed.get(name, "").strip() for name in _TEXTS}
    contract = {
        side: [_tensor(row) for row in _rows(typed, side) if row["name"].strip()] for side in ("inputs", "outputs")
    }
    document["contract"] = {side: tensors for side, tensors in contract.items() if tensors}
    numbers = {name: _number(typed.get(name, ""), name, problems) for name in _NUMBERS}
    objectives: dict[str, Any] = {
        name: numbers[name] for name in ("errors_max_frac", "timeout_s") if numbers[name] is not None
    }
    slow = {"threshold_ms": numbers["slow_threshold_ms"], "max_frac": numbers["slow_max_frac"]}
    if any(value is not None for value in slow.values()):
        objectives["slow"] = {name: value for name, value in slow.items() if value is not None}
    document["objectives"] = objectives
    for name in ("gate_policy", "rollout_policy"):
        read = read_text(typed.get(name, "")[:_LONGEST])
        problems += [Located(name, Problem(one.field, f"{one.message}.", ""), one.place) for one in read.mistakes]
        document[name] = read.document if read.document is not None else {}
    return _Read(document, problems)


def _tensor(row: Mapping[str, str]) -> dict[str, Any]:
    """The row as the contract has it; sizes that are no numbers stay as they were typed, for the contract to refuse.

    An empty field is refused: one number for each item is `[]`, and that is typed.
    """
    if not row["dims"].strip():
        return {"name": row["name"].strip(), "data_type": row["data_type"], "dims": None}
    sizes = [size for size in re.split(r"[\s,x\[\]]+", row["dims"].strip()) if size]
    dims = [int(size) if re.fullmatch(r"-?[0-9]{1,15}", size) else size for size in sizes]
    return {"name": row["name"].strip(), "data_type": row["data_type"], "dims": dims}


def _number(text: str, name: str, problems: list[Located]) -> float | int | None:
    """The number typed, or None for an empty field."""
    text = text.strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text):
        problems.append(
            Located("", Problem(f"objectives.{name}", f"{text[:40]!r} is not a number.", "Write 0.01 or 250."))
        )
        return None
    return float(text) if "." in text else int(text)


def _arguments(document: Mapping[str, Any]) -> dict[str, Any]:
    """For `create_model`, which reads the rest by its schema."""
    texts = {name: document.get(name) or "" for name in ("slug", "team")}
    settings = {name: document.get(name, "") for name in ("title", "description")}
    return texts | settings | {name: document.get(name, {}) for name in _KNOWN[4:]}


def _count(problems: Sequence[Located]) -> str:
    return f"{len(problems)} mistake{'s' * (len(problems) != 1)}"
