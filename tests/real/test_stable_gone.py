"""Stable's server dies and does not load again, on a real Envoy and with real agents: its fix takes all traffic, and users are answered."""

from __future__ import annotations

from collections import Counter

import pytest

from rollouts import actions
from rollouts.models import Rollout
from rollouts.queries.rollout_view import view_of
from serving.models import Gateway, Replica
from serving.ports import LaunchError, LaunchSpec, RunningServer
from serving.traffic.control_plane import store
from sluicegate.cli.rollout import status_lines
from tests.real.test_replica_replaced import REQUESTS, Site, Stubs, nodes  # noqa: F401 - the nodes are a fixture
from tests.support.rigs.engine_rig import _no_waiting  # noqa: F401 - one moment with failures is proof
from tests.support.rigs.gateway_rig import Rig
from tests.support.worlds.factories import make_admin

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.real("envoy"), pytest.mark.timeout(600)]
STAGE = {"min_s": 0, "min_samples": 40, "deadline_s": 100_000}
LICENSE = "RuntimeError: license expired"


class Licensed(Site):
    """A site whose stable release loads no more once its license has ended. `statuses` are those of the last turn's requests."""

    statuses: Counter[int]
    has_ended = False

    def end_license(self) -> None:
        """Kills stable's one server, which then does not load again."""
        type(self).has_ended = True
        (replica,) = self.answering(self.stable)
        backend = self.backend_of(replica)
        launcher = self.agents[str(replica.node_id)]
        launcher.running[next(folder for folder, one in launcher.backends.items() if one is backend)][1].is_down = True
        backend.stop()
        self.wait_for(lambda: not self.answering(self.stable), "stable's server is gone")
        self.obey()

    def turn(self, **_: object) -> None:
        self.statuses = Counter(self.parts.envoy.http().status for _ in range(REQUESTS))
        self.parts.envoy.flushed()
        self.clock.turns += 1
        store.write_seen([Gateway.objects.get().pk], self.clock.now())
        self.engine.step()
        self.obey()
        self.rollout.refresh_from_db()

    def told(self) -> str:
        """What the command line shows of the rollout."""
        return "\n".join(status_lines(view_of(Rollout.objects.get(pk=self.rollout.pk))))


@pytest.fixture
def site(nodes: tuple[Rig, dict[str, Stubs]], monkeypatch: pytest.MonkeyPatch) -> Licensed:  # noqa: F811 - the fixture
    start = Stubs.start

    def licensed(self: Stubs, spec: LaunchSpec) -> RunningServer:
        if spec.release_name == "r1" and Licensed.has_ended:
            raise LaunchError("load_failed", LICENSE)
        return start(self, spec)

    monkeypatch.setattr(Licensed, "has_ended", False)
    monkeypatch.setattr(Stubs, "start", licensed)
    steps = [{"weight_pct": 50, **STAGE}]
    return Licensed(*nodes, replicas=(1, 1), steps=steps, bake={**STAGE, "min_samples": 400}, stable_gone_s=5)


def test_users_are_answered_again_once_a_release_manager_says_so_and_what_comes_back_is_the_target(
    site: Licensed,
) -> None:
    site.end_license()
    site.turn()
    assert site.statuses == {503: REQUESTS}
    site.until(lambda: "has no serving server" in site.rollout.reason, "it is told")
    assert site.rollout.state == "preparing" and "There is no rollback target: r1 has no serving server." in site.told()

    actions.promote_now(
        actor=make_admin(), rollout=site.rollout, expected_version=site.rollout.version, reason="Users get 503."
    )
    site.obey()
    site.turn()
    assert site.statuses == {200: REQUESTS} and site.rollout.displaced_id == site.stable.pk
    assert "r2 took the place of r1, which has no server. r2 keeps its traffic" in site.told()

    type(site).has_ended = False
    site.wait_for(lambda: bool(site.answering(site.stable)), "stable answers again")
    assert "r1 answers again: a rollback goes to it." in site.told() and site.rollout.state == "shifting"
    actions.abort(actor=make_admin(), rollout=site.rollout, expected_version=None, reason="Back to what was proven.")
    site.obey()
    site.until(lambda: site.rollout.state == "rolled_back", "traffic is back")
    site.turn()
    assert site.statuses == {200: REQUESTS} and site.rollout.stable_id == site.stable.pk


def test_the_policy_answers_users_again_and_promotes_the_fix_by_evidence(site: Licensed) -> None:
    Rollout.objects.update(policy={**site.rollout.policy, "when_stable_is_gone": "replace"})
    site.end_license()
    site.until(lambda: site.rollout.displaced_id is not None, "the candidate takes all traffic")
    assert site.codes()[-1] == "stable_gone"
    site.until(lambda: site.rollout.state == "promoted", "it is promoted")
    assert site.statuses == {200: REQUESTS} and site.rollout.reason == "All traffic went to r2."
    site.wait_for(lambda: not Replica.objects.filter(release=site.stable, is_wanted=True).exists(), "r1 is let go")
