"""The undo window of a promotion: it closes by evidence that the promoted release meets its objectives, or a person closes it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from accounts.core.access import Actor, Verb
from ledger.actions import append_event, enqueue
from ledger.core.errors import DomainError, StateChanged
from ledger.hooks.job_handlers import Again
from ledger.queries import clock
from registry.models import Release
from rollouts.actions.control import end_control, is_followed
from rollouts.actions.preconditions import lock_and_check, require_reason
from rollouts.actions.tick_records import ENGINE
from rollouts.actions.transitions import drain_release, named
from rollouts.core.lifecycle import ACTIVE, WITHOUT_TRAFFIC, RolloutState
from rollouts.core.watch.undo import ObjectiveResult, UndoVerdict
from rollouts.models import Rollout
from rollouts.queries.alarms import judged_since_promotion
from rollouts.queries.release_usage import is_in_use
from rollouts.queries.undo_window import ending_undo_windows, serves
from serving.environments.actions.locks import lock_routes
from serving.targets.platforms import platform_of

#: A window that is held open is prolonged by this, in seconds, again and again: all that is warm only for it reads one instant.
HOLD_S = 60.0
DRAIN_PREVIOUS = "rollouts.drain_previous"
_RETRY_S = 30.0


@transaction.atomic
def settle_undo_window(rollout: Rollout) -> None:
    """Closes a window that is over, or holds it open. Idempotent.

    It closes when each objective is proven to be met, when another rollout has begun, and without proof after `undo_max_s`. While an
    objective burns, it never closes by itself. A policy whose `undo_max_s` is 0 asks the clock alone.
    """
    lock_routes(rollout.environment, rollout.stable)  # before the promoted row, lock order: CONTRIBUTING.md
    found = ending_undo_windows(clock.now()).select_for_update(no_key=True, of=("self",)).filter(pk=rollout.pk).first()
    if found is None or found.undo_until is None:
        return
    now, plan = clock.now(), found.effective_policy
    following = Rollout.objects.filter(
        environment=found.environment_id,
        model=found.model_id,
        pk__gt=found.pk,
        state__in=sorted(s.value for s in ACTIVE),
    ).first()
    if following is not None and following.state in WITHOUT_TRAFFIC:
        end_control(found, actor=ENGINE)
    is_judged = bool(plan.undo_max_s) and following is None and serves(found)
    verdict, judged = judged_since_promotion(found) if is_judged else (None, [])
    began_at = found.ended_at or found.created_at
    is_too_long = now >= began_at + timedelta(seconds=plan.undo_max_s)
    if verdict is UndoVerdict.BURNING or (verdict is UndoVerdict.NOT_JUDGED and not is_too_long):
        _hold(found, verdict, judged)
    elif found.undo_until <= now:
        reason = _why_closed(found, following, verdict, judged)
        _close(found, ENGINE, reason, {"verdict": verdict, "objectives": [asdict(one) for one in judged]})


@transaction.atomic
def close_undo_window(*, actor: Actor, rollout: Rollout, expected_version: int, reason: str) -> Rollout:
    """Ends the undo window at once, without evidence. From then on, going back takes a rollout.

    Raises StateChanged("no_undo_window").
    """
    lock_routes(rollout.environment, rollout.stable)
    found = lock_and_check(
        actor, Verb.PROMOTE_NOW, rollout, expected_version, {RolloutState.PROMOTED}, "close the undo window"
    )
    if found.undo_until is None:
        raise StateChanged(
            "no_undo_window", f"Rollout {found.pk} has no open undo window. Nothing is kept warm for it."
        )
    _close(found, actor, f"{actor.name} closed the undo window: {require_reason(reason)}", {})
    return found


def _hold(rollout: Rollout, verdict: UndoVerdict, judged: list[ObjectiveResult]) -> None:
    """Prolongs the window. The first time an event states why."""
    assert rollout.undo_until is not None and rollout.stable is not None
    is_first = not rollout.is_undo_prolonged
    until = max(rollout.undo_until, clock.now()) + timedelta(seconds=HOLD_S)
    told = {"version": F("version") + 1} if is_first else {}  # the version counts the rollout's events
    Rollout.objects.filter(pk=rollout.pk).update(undo_until=until, **told)
    if not is_first:
        return
    because = "an objective burns" if verdict is UndoVerdict.BURNING else "not every objective is proven to be met yet"
    append_event(
        verb="rollout.undo_held", subject_type="rollout", subject_id=rollout.pk, actor=ENGINE,
        reason=f"{rollout.stable.name} stays warm, because {because}: {_listed(judged)}.",
        facts=named(rollout) | {"verdict": verdict, "objectives": [asdict(one) for one in judged]},
    )  # fmt: skip


def _why_closed(
    rollout: Rollout, following: Rollout | None, verdict: UndoVerdict | None, judged: list[ObjectiveResult]
) -> str:
    before, now = rollout.stable.name if rollout.stable else "the release before", rollout.candidate.name
    if not serves(rollout):
        return f"{now} serves no more, so nothing goes back from it to {before}."
    if following is not None:
        return f"Rollout {following.pk} has begun and goes back to {now}, so {before} is not kept warm any more."
    if verdict is UndoVerdict.MET:
        return f"{now} has met each objective since its promotion: {_listed(judged)}."
    if verdict is UndoVerdict.NOT_JUDGED:
        return f"The longest time for the undo window is over. Whether {now} meets its objectives was not judged: {_listed(judged)}."
    return f"The undo window's time is over. Its policy asks for no evidence, so nothing checked how {now} served."


def _listed(judged: list[ObjectiveResult]) -> str:
    return "; ".join(one.sentence for one in judged) or "no objective is judged"


def _close(rollout: Rollout, actor: Actor, reason: str, facts: dict[str, Any]) -> None:
    end_control(rollout, actor=actor)  # before the window is closed: it is the control while it is open
    Rollout.objects.filter(pk=rollout.pk).update(undo_until=None, version=F("version") + 1)
    rollout.refresh_from_db(fields=["undo_until", "version"])
    append_event(
        verb="rollout.undo_closed", subject_type="rollout", subject_id=rollout.pk, actor=actor, reason=reason,
        facts=named(rollout) | facts,
    )  # fmt: skip
    before = rollout.stable
    if before is None or is_in_use(before, rollout.environment):
        return
    if rollout.effective_policy.control.share_bp and not is_followed(rollout):
        enqueue(kind=DRAIN_PREVIOUS, key=f"{rollout.pk}", args={"rollout": rollout.pk, "reason": reason})
    else:
        drain_release(rollout, before, actor=actor, reason=reason)


def drain_previous(rollout: Rollout, reason: str) -> None:
    """Drains the release before once no gateway sends it the control's share any more. Raises Again until then."""
    if rollout.stable is not None:
        drain_when_followed(rollout, rollout.stable, reason)


def drain_when_followed(rollout: Rollout, release: Release, reason: str) -> None:
    """Drains a release that lost its traffic, unless it serves again or is rolled out again.

    Raises Again while a gateway may still follow the route of before.
    """
    with transaction.atomic():
        lock_routes(rollout.environment)
        if is_in_use(release, rollout.environment):
            return
        if not is_followed(rollout):
            raise Again(_RETRY_S, f"Not every gateway has acknowledged that {release.name} gets no more traffic.")
        try:
            platform_of(rollout.environment).stop(
                release, rollout.environment, actor=Actor.system("rollouts"), reason=reason
            )
        except DomainError as error:  # a server that stays warm costs memory, and nothing else
            raise Again(_RETRY_S, error.message) from error
