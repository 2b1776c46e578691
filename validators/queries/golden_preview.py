"""A golden set that nobody added yet, beside the one that it would replace."""

from __future__ import annotations

from typing import Any

from ledger.adapters.apart import run_sized
from ledger.core.errors import Invalid, NotFound
from registry.models import ServedModel
from validators.core.contract import tensors_of
from validators.core.golden_fit import fitted
from validators.core.golden_preview import Preview, preview_lines
from validators.core.policy import parse_policy
from validators.core.ruler import Kind
from validators.queries.gate_runs import golden_lines, golden_sets_of
from validators.queries.model_policy import policy_of

#: Of one file.
MAX_GOLDEN_SET_BYTES = 64 * 2**20


def preview_golden_set(model: ServedModel, data: bytes) -> Preview:
    """What these JSON lines hold, and how they differ from the set before. Nothing is stored.

    Raises Invalid: `golden_set_invalid`, with the lines in facts["errors"]; `golden_set_too_large`.
    """
    require_size(data)
    before = _before(model)
    inputs, outputs = tensors_of(model.contract, "inputs"), tensors_of(model.contract, "outputs")
    golden = {kind: golden_for(model, kind) for kind in Kind}
    size = len(data) + len(before or b"")
    found: Preview = run_sized(size, preview_lines, data, inputs, outputs, golden, before)
    return found


def require_size(data: bytes) -> None:
    """Raises Invalid for a file that is too large."""
    if len(data) > MAX_GOLDEN_SET_BYTES:
        said = f"A golden set may have {MAX_GOLDEN_SET_BYTES // 2**20} MiB. Send fewer items."
        raise Invalid("golden_set_too_large", said)


def set_in_policy(model: ServedModel) -> str:
    """The digest of the set that the model's gate policy names; empty where it names none."""
    golden = model.gate_policy.get("golden")
    named = golden.get("set") if isinstance(golden, dict) else None
    return named if isinstance(named, str) else ""


def _before(model: ServedModel) -> bytes | None:
    """The lines of the set that the policy names, else of the newest; None if none can be read."""
    newest = golden_sets_of(model).first()
    digest = set_in_policy(model) or (newest.digest if newest else "")
    try:
        return golden_lines(model, digest) if digest else None
    except NotFound:
        return None


def golden_for(model: ServedModel, kind: Kind | None = None) -> dict[str, Any]:
    """The model's golden section as it would judge a set of this kind, or of its own; the default one where it cannot be read."""
    stated = model.gate_policy.get("golden")
    section = stated if isinstance(stated, dict) else {}
    try:
        section = section if kind is None else fitted(section, kind)
        return policy_of(model, {**model.gate_policy, "golden": section}).of("golden")
    except Invalid:
        return parse_policy({"golden": {} if kind is None else fitted({}, kind)}).of("golden")
