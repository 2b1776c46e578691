"""Releases that nothing tells apart on somebody else's server: what is stable there is not taken for what comes after it."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import pytest

from registry.models import ServedModel
from serving.models import Environment, Node
from serving.traffic.queries.alike import stable_alike
from tests.support.worlds.replica_setup import Clock, S, World, clock, model, node, sealed, staging  # noqa: F401
from tests.support.worlds.rollout_setup import serves

pytestmark = pytest.mark.django_db


def test_a_release_is_alike_the_stable_one_of_its_model_and_runtime(
    model: ServedModel, staging: Environment, node: Node, clock: Clock
) -> None:
    stable, after = sealed(model), sealed(model)
    other = sealed(model, image=f"local/triton-onnx@sha256:{'b' * 64}")
    assert stable_alike(after) == ()
    serves(stable)
    assert (stable_alike(after), stable_alike(other), stable_alike(stable)) == ((stable.name,), (), ())


@pytest.mark.parametrize("runs_here", [True, False])
def test_the_launcher_of_somebody_elses_server_is_told(
    model: ServedModel, staging: Environment, node: Node, clock: Clock, runs_here: bool
) -> None:
    serves(stable := sealed(model))
    world = World(sealed(model), staging, clock)
    world.launcher.runs_here = runs_here
    world.until(S.READY)
    assert [one.alike for one in world.launcher.started] == [() if runs_here else (stable.name,)]
