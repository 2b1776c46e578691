"""What may happen to the requests that a model's policy allows to keep: they are kept, drafted into a golden set, forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts.core.access import Actor, Verb, require
from ledger.actions import append_event
from ledger.core.canonical import sha256_of
from ledger.core.errors import Invalid, NotFound, Refused
from registry.models import ServedModel
from validators.core.contract import tensors_of
from validators.core.kept_requests import Draft, KeepRule, Sample, draft
from validators.models import KeptRequest
from validators.queries.golden_preview import golden_for
from validators.queries.kept_requests import keep_rules, samples_of


def keep_requests(*, actor: Actor, model_id: int, samples: Iterable[Sample]) -> int:
    """How many were taken, under what the model's policy allows now; of the same inputs the latest. Raises Refused.

    Should the policy change at this very moment, `forget_old_requests` deletes what is too much.
    """
    require(actor, Verb.ADMINISTER, "")
    rule = keep_rules([model_id]).get(model_id)
    if rule is None:
        return 0
    with transaction.atomic():
        now = timezone.now()
        rows = [
            KeptRequest(model_id=model_id, at=now, **asdict(one)) for one in samples if one.size_bytes <= rule.max_bytes
        ]
        KeptRequest.objects.bulk_create(
            sorted(rows, key=lambda row: row.digest),  # one lock order
            update_conflicts=True,
            unique_fields=["model", "digest"],
            update_fields=["release", "answers", "size_bytes", "at"],
        )
        _trim(model_id, rule)
    return len(rows)


def draft_golden_set(*, actor: Actor, model: ServedModel) -> Draft:
    """The golden set that the kept requests make, with the answers of the release that answered last as what is expected.

    Nothing is added: whoever looked at it adds it, as any golden set. That it was read is an event.

    Raises:
        Refused: the actor may not edit the model, or is a part of the system: users' requests are for people to read.
        NotFound: `nothing_kept`.
        Invalid: `draft_impossible`: the golden section names no output that holds the answer.
    """
    require(actor, Verb.EDIT_MODEL, model.team.slug, model.slug)
    if actor.user_id is None:
        raise Refused("no_person", "Requests of users are for a person to read; sign in as one.")
    kept, baseline = samples_of(model)
    if not kept:
        raise NotFound(
            "nothing_kept",
            f"No request of {model.slug} is kept. State kept_requests in its gate policy, and wait for a rollout that mirrors.",
        )
    golden, outputs = golden_for(model), tensors_of(model.contract, "outputs")
    try:
        found = draft(kept, golden, outputs, baseline=baseline)
    except ValueError as error:
        raise Invalid("draft_impossible", f"The kept requests make no golden set: {error}.", field="golden") from None
    with transaction.atomic():
        append_event(
            verb="kept_requests.drafted",
            subject_type="model",
            subject_id=model.slug,
            actor=actor,
            facts={"items": found.items, "baseline": baseline, "digest": sha256_of(found.lines)},
        )
    return found


def forget_requests(*, actor: Actor, model: ServedModel) -> int:
    """Deletes all that is kept of the model; how many. Golden sets that were made of them stay. Raises Refused."""
    require(actor, Verb.EDIT_MODEL, model.team.slug, model.slug)
    with transaction.atomic():
        count, _ = KeptRequest.objects.filter(model=model).delete()
        if count:
            append_event(
                verb="kept_requests.forgotten",
                subject_type="model",
                subject_id=model.slug,
                actor=actor,
                facts={"requests": count},
            )
    return count


def forget_old_requests() -> None:
    """Deletes what is older than its model's policy allows, and all of a model whose policy allows none any more."""
    held = set(KeptRequest.objects.values_list("model", flat=True).distinct())
    rules = keep_rules(held)
    KeptRequest.objects.filter(model__in=held - rules.keys()).delete()
    for model_id, rule in rules.items():
        _trim(model_id, rule)


def _trim(model_id: int, rule: KeepRule) -> None:
    mine = KeptRequest.objects.filter(model=model_id)
    oldest = timezone.now() - timedelta(days=rule.max_age_days)
    mine.filter(Q(at__lt=oldest) | Q(size_bytes__gt=rule.max_bytes)).delete()
    beyond = list(mine.order_by("rank", "digest").values_list("pk", flat=True)[rule.most :])
    if beyond:
        mine.filter(pk__in=beyond).delete()
