"""Simultaneous pushes of the same content with `resume`."""

from __future__ import annotations

import pytest

from accounts.core.access import Role
from registry import actions
from registry.models import Release
from tests.support.worlds.factories import make_actor, make_model
from tests.support.worlds.lock_races import behind
from tests.support.worlds.registry_samples import release_yaml

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]  # threads that wait for one another


def test_both_get_the_same_draft() -> None:
    model, dev = make_model("sentiment", contract={}), make_actor(Role.MODEL_TEAM)

    def draft() -> None:
        actions.create_draft(actor=dev, model=model, spec=release_yaml(), resume=True)

    assert behind(draft, draft) == "done"
    (one,) = Release.objects.all()
    assert one.version == 2  # the second holder of the draft makes the first one's stale
