"""What is recorded of a test's moves (tests/support/house/arrows.py): what the product writes, and nothing else."""

from __future__ import annotations

import pytest

from rollouts import actions
from tests.support.house.arrows import recorded
from tests.support.worlds.factories import make_admin
from tests.support.worlds.rollout_setup import put, with_stable

pytestmark = pytest.mark.django_db


def test_what_a_test_writes_into_a_row_is_no_move_and_what_an_app_writes_is() -> None:
    rollout, _ = with_stable()
    with recorded() as seen:
        put(rollout, "baking")
        assert seen == set()
        actions.pause(actor=make_admin(), rollout=rollout, expected_version=rollout.version, reason="Lunch.")
    assert seen == {"rollout: baking → paused"}
    put(rollout, "shifting")
    assert len(seen) == 1
