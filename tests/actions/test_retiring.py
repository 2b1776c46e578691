"""Retiring: what holds a release, and what a retired one may no longer do."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

import registry.tasks  # noqa: F401  # registers the jobs' handlers
from accounts.core.access import Actor, Role
from ledger.core.errors import DomainError, Refused, Stale, StateChanged
from ledger.models import Event
from registry import actions
from registry.models import Alias, AliasEvent, Release, ServedModel, Tombstone
from rollouts.core.lifecycle import RolloutState
from rollouts.models import Rollout
from serving.environments.core.lifecycle import ReplicaState
from serving.models import Route
from tests.support.worlds.collect_setup import OTHER, _route, admin, dev, fate, model, retired, sealed  # noqa: F401
from tests.support.worlds.factories import make_actor, make_environment, make_replica
from tests.support.worlds.registry_samples import draft_with
from validators.models import GateRun

pytestmark = pytest.mark.django_db


def test_retiring_needs_a_reason_a_role_and_the_version(dev: Actor, model: ServedModel) -> None:
    release = sealed(dev, model)
    with pytest.raises(DomainError, match="told for good"):
        actions.retire(actor=dev, release=release, expected_version=release.version, reason=" ")
    with pytest.raises(Stale):
        actions.retire(actor=dev, release=release, expected_version=99, reason="old")
    with pytest.raises(Refused):
        actions.retire(
            actor=make_actor(Role.CI, team="vision"), release=release, expected_version=release.version, reason="old"
        )
    done = retired(dev, release)
    assert (done.state, done.version) == ("retired", release.version + 1) and done.retired_at is not None
    event = Event.objects.get(verb="release.retired")
    assert (event.from_state, event.to_state, event.reason) == ("sealed", "retired", "superseded")
    with pytest.raises(StateChanged, match="only a sealed release"):
        retired(dev, done)
    with pytest.raises(StateChanged, match="only a sealed release"):
        retired(dev, draft_with(dev, model, OTHER))


def _candidate(release: Release, other: Release) -> str:
    where = make_environment("production")
    Route.objects.create(
        environment=where, model=release.model, stable=other, candidate=release, changed_at=timezone.now()
    )
    return "candidate in production"


def _replica(release: Release, other: Release) -> str:
    make_replica(release, make_environment("staging"), state=ReplicaState.FAILED)
    return "deployed in staging (failed)"


def _rollout(release: Release, other: Release, **columns: Any) -> Rollout:
    return Rollout.objects.create(
        model=release.model, environment=make_environment("production"), policy={}, policy_digest="", **columns
    )


def _live_rollout(release: Release, other: Release) -> str:
    _rollout(release, other, candidate=release, stable=other, state=RolloutState.SHIFTING)
    return "candidate of rollout"


def _undo_window(release: Release, other: Release) -> str:
    _rollout(release, other, candidate=other, stable=release, state=RolloutState.PAUSED)
    return "would go back to it"


def _warm(release: Release, other: Release) -> str:
    undo_until = timezone.now() + timedelta(hours=1)
    _rollout(release, other, candidate=other, stable=release, state=RolloutState.PROMOTED, undo_until=undo_until)
    return "kept warm in production"


def _gates(release: Release, other: Release) -> str:
    where = make_environment("staging")
    GateRun.objects.create(release=release, environment=where, policy={}, policy_digest="", requested_by="dev")
    return "its gates run"


def _alias(release: Release, other: Release) -> str:
    point(release)
    return "alias sentiment/champion"


def point(release: Release | None, model: ServedModel | None = None) -> Alias:
    """An alias as its verb writes it."""
    model = release.model if release else model
    alias = Alias.objects.create(model=model, name="champion", release=release, changed_at=timezone.now())
    AliasEvent.objects.create(alias=alias, version=1, to_release=release, actor="dev", at=timezone.now())
    return alias


HOLDS = [_route, _candidate, _replica, _live_rollout, _undo_window, _warm, _gates, _alias]


@pytest.mark.parametrize("use", HOLDS)
def test_a_release_in_use_is_not_retired(
    dev: Actor, model: ServedModel, use: Callable[[Release, Release], str]
) -> None:
    release, other = sealed(dev, model), sealed(dev, model, OTHER)
    said = use(release, other)
    with pytest.raises(StateChanged, match=r"sentiment r1 is in use") as refused:
        retired(dev, release)
    assert any(said in usage for usage in refused.value.facts["used_by"])
    assert said in fate("sentiment/r1").reason


def test_what_is_over_holds_nothing(dev: Actor, model: ServedModel) -> None:
    release, other = sealed(dev, model), sealed(dev, model, OTHER)
    make_replica(release, make_environment("staging"), state=ReplicaState.GONE)
    over = timezone.now() - timedelta(seconds=1)
    _rollout(release, other, candidate=other, stable=release, state=RolloutState.PROMOTED, undo_until=over)
    assert retired(dev, release).state == "retired"


@pytest.mark.parametrize("use", [_route, _candidate, _replica, _live_rollout, _undo_window, _alias])
def test_nothing_begins_to_use_a_retired_release(
    dev: Actor, model: ServedModel, use: Callable[[Release, Release], str]
) -> None:
    """The database refuses it, whoever writes."""
    release, other = retired(dev, sealed(dev, model)), sealed(dev, model, OTHER)
    with pytest.raises(IntegrityError, match="is retired"), transaction.atomic():
        use(release, other)


@pytest.mark.takes("release: draft → sealed", "release: sealed → retired", "release: retired → sealed")
def test_a_retired_release_is_restored_as_it_was(dev: Actor, admin: Actor, model: ServedModel) -> None:
    release = sealed(dev, model)
    gone = retired(dev, release)
    assert actions.collect_unused(actor=admin).marked == 2
    back = actions.restore(actor=dev, release=gone, expected_version=gone.version, reason="still wanted")
    assert (back.state, back.digest, back.manifest) == ("sealed", release.digest, release.manifest)
    assert back.retired_at is None and set(Tombstone.objects.values_list("outcome", flat=True)) == {"restored"}
    assert Event.objects.get(verb="release.restored").reason == "still wanted"
    with pytest.raises(StateChanged, match="nothing to take back"):
        actions.restore(actor=dev, release=back, expected_version=back.version, reason="again")
