"""Environments taken out of use: deleted where nothing ever ran, retired otherwise, refused while in use, and brought back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.core.access import Role
from ledger.core.errors import Invalid, NotFound, Refused, Stale, StateChanged
from ledger.models import Event
from registry.actions.retiring import retire
from registry.hooks.usage import usages_of
from registry.models import Release
from rollouts import actions
from rollouts.actions.retiring import Removal, plan_removal, remove_environment, restore_environment
from rollouts.queries import serving_history
from serving.environments.actions.environments import change_environment, create_environment
from serving.environments.core.sleep_lifecycle import SleepRule
from serving.models import Environment, Gateway, ListedServer, Replica, ReplicaTarget, Sleep
from serving.targets.actions.lifecycle import ensure_replica
from serving.targets.actions.replicas import continue_placing, scale_release
from serving.targets.actions.sleeping import rule_sleep
from serving.targets.actions.static_servers import list_server, remove_server
from serving.targets.queries import all_environments, environment_titles, get_environment
from serving.traffic.actions.gateways import register_gateway
from serving.traffic.actions.routes import set_route
from serving.traffic.control_plane import store
from serving.traffic.queries.stable_files import stable_blobs
from tests.support.worlds.factories import (
    make_actor,
    make_admin,
    make_environment,
    make_node,
    make_release,
    make_replica,
    make_server,
)
from tests.support.worlds.rollout_setup import production, promoted, put, release_of, report_for, serves, started
from validators.actions import request_gate_run

pytestmark = pytest.mark.django_db


def served() -> Release:
    """The stable release of production, with a server that answers."""
    make_node()
    release = release_of()
    serves(release)
    make_server(make_replica(release, production(), state="ready"))
    return release


def remove(environment: Environment, **said: Any) -> Removal:
    told: dict[str, Any] = {"actor": make_admin(), "reason": "moved to eu", "is_confirmed": True, **said}
    return remove_environment(environment=environment, **told)


def gateway(environment: Environment, *, silent_s: float | None) -> Gateway:
    seen_at = None if silent_s is None else timezone.now() - timedelta(seconds=silent_s)
    return Gateway.objects.create(
        environment=environment, name="eu-1", http_url="http://127.0.0.1:1", grpc_address="127.0.0.1:1", seen_at=seen_at
    )


def test_one_in_which_nothing_ran_is_deleted_with_its_silent_gateway_and_its_name_is_free() -> None:
    environment = make_environment("canary")
    gateway(environment, silent_s=None)
    plan = plan_removal(actor=make_admin(), environment=environment)
    assert plan.is_deleted and "eu-1" in plan.says[1] and Environment.objects.exists()
    assert remove(environment, is_confirmed=False) == plan  # no server goes, so nothing is asked
    assert not Environment.objects.exists() and not Gateway.objects.exists()
    assert Event.objects.get(verb="environment.deleted").reason == "moved to eu"
    assert Event.objects.filter(verb="gateway.removed").count() == 1
    create_environment(actor=make_admin(), slug="canary")
    with pytest.raises(NotFound, match="deleted meanwhile"):
        remove(environment)


def listed(environment: Environment) -> None:
    Environment.objects.filter(pk=environment.pk).update(platform="static")
    image = make_node().runtimes[0]["image"]
    address = "127.0.0.1:8000:8001"
    list_server(actor=make_admin(), environment=environment, name="theirs", address=address, runtime=image)


def test_a_deleted_one_lists_no_server_and_a_retired_one_keeps_its_list_for_its_return() -> None:
    environment = make_environment("canary")
    listed(environment)
    plan = remove(environment)
    assert plan.is_deleted and plan.says[1] == "Server theirs is taken off the list."
    assert not ListedServer.objects.exists() and Event.objects.filter(verb="environment.server_removed").exists()

    served()
    listed(production())
    plan = remove(production())
    assert not plan.is_deleted and "Server theirs stays listed, for a return of production." in plan.says[-1]
    remove_server(actor=make_admin(), environment=production(), name="theirs")  # as the plan states
    assert not ListedServer.objects.exists()


def test_one_that_served_is_retired_once_somebody_says_that_its_servers_may_go() -> None:
    release, environment = served(), production()
    scale_release(actor=make_admin(), release=release, environment=environment, replicas=2, reason="")
    with pytest.raises(Invalid) as asked:
        remove(environment, is_confirmed=False)
    assert asked.value.code == "not_confirmed" and "1 server of" in asked.value.facts["plan"][1]
    assert Replica.objects.get().is_wanted and not Event.objects.filter(verb="environment.retired").exists()
    rule_sleep(actor=make_admin(), model=release.model, environment=environment, rule=SleepRule(unload_after_s=600))
    assert not remove(environment).is_deleted
    assert not Sleep.objects.exists()
    environment.refresh_from_db()
    assert (
        environment.retired_at is not None and environment.retire_reason == "moved to eu" and environment.version == 2
    )
    assert not Replica.objects.get().is_wanted and not ReplicaTarget.objects.exists()
    assert Event.objects.get(verb="environment.retired").facts["says"]
    assert continue_placing(actor=make_admin()) == [] and Replica.objects.count() == 1  # nothing brings a server back


def test_nothing_goes_but_what_was_read() -> None:
    release, environment = served(), production()
    read = plan_removal(actor=make_admin(), environment=environment)
    make_server(make_replica(release_of(release.model), environment, state="ready"))
    with pytest.raises(StateChanged) as changed:
        remove(environment, plan_digest=read.plan_digest)  # nor where `is_confirmed` is said beside it
    assert changed.value.code == "plan_changed" and len(changed.value.facts["plan"]) == len(read.says) + 1
    assert Replica.objects.filter(is_wanted=True).count() == 2
    remove(environment, is_confirmed=False, plan_digest=changed.value.facts["plan_digest"])
    environment.refresh_from_db()
    assert environment.retired_at is not None and not Replica.objects.filter(is_wanted=True).exists()


def test_a_retired_one_is_in_no_picker_and_its_history_is_readable() -> None:
    release = served()
    files = set(release.files.values_list("blob_id", flat=True))
    assert files and stable_blobs() == files
    make_environment("canary")
    remove(production())
    assert [one.slug for one in all_environments()] == ["canary"]
    assert [one.slug for one in all_environments(with_retired=True)] == ["canary", "production"]
    assert environment_titles() == [("canary", "Canary"), ("production", "Production (retired)")]
    told = serving_history.served_at(release.model, get_environment("production"))
    assert (told.arms, told.reason) == ((), "moved to eu")
    assert "production" not in store.load().tables
    assert stable_blobs() == set()
    with pytest.raises(NotFound, match="there are canary\\."):
        get_environment("nowhere")


def test_its_history_tells_until_when_it_served_and_since_when_again() -> None:
    release, environment = served(), production()
    served_by = lambda at=None: serving_history.served_at(release.model, environment, at)  # noqa: E731
    everywhere = lambda at: serving_history.served_everywhere([release.model], at, 9)[0][1]  # noqa: E731
    arms = served_by().arms
    remove(environment, reason="")
    ended, then = served_by(), served_by(Event.objects.get(verb="environment.retired").at - timedelta(microseconds=1))
    assert (ended.arms, ended.until, ended.reason) == ((), None, "The environment was taken out of use.")
    assert ended.since is not None and then.until == ended.since and then.arms == arms and arms
    Replica.objects.update(state="gone")
    restore_environment(actor=make_admin(), environment=environment, reason="again")
    again = served_by()
    assert (again.arms, again.until, again.reason) == (arms, None, "again")
    assert again.since is not None and served_by(ended.since).until == again.since
    for at, of in ((then.at, then), (ended.since, ended), (timezone.now(), again)):
        change = everywhere(at)
        assert change is not None and (change.arms, change.at, change.event) == (of.arms, of.since, of.event)
    changes, *_ = serving_history.changes_between(release.model, environment, then.at, timezone.now(), 9)
    assert [change.arms for change in changes] == [arms, (), arms]


def test_of_a_model_that_came_later_an_earlier_retirement_says_nothing() -> None:
    served()
    remove(environment := production())
    Replica.objects.update(state="gone")
    restore_environment(actor=make_admin(), environment=environment)
    other = release_of()
    assert serving_history.served_at(other.model, environment).since is None
    serves(other)
    assert serving_history.moves_of(other.model, environment).count() == 1


def test_nothing_is_given_to_a_retired_one() -> None:
    release = served()
    remove(environment := production())
    admin, other = make_admin(), release_of(release.model)
    known = {"actor": admin, "environment": environment}
    addresses = {"admin_url": "http://127.0.0.1:1", "http_url": "http://127.0.0.1:2", "grpc_address": "127.0.0.1:2"}
    for give in (
        lambda: actions.start_rollout(**known, candidate=other),
        lambda: ensure_replica(**known, release=other, reason=""),
        lambda: scale_release(**known, release=release, replicas=2, reason=""),
        lambda: rule_sleep(**known, model=release.model, rule=SleepRule(unload_after_s=600)),
        lambda: set_route(**known, model=release.model, stable=other, reason=""),
        lambda: register_gateway(**known, name="g", **addresses),
        lambda: change_environment(**known, expected_version=None, changes={"title": "x"}),
        lambda: remove(environment),
    ):
        with pytest.raises(StateChanged) as refused:
            give()
        assert (
            refused.value.code == "environment_retired" and "/environments/production/restore" in refused.value.message
        )
    with pytest.raises(StateChanged, match="name of a retired environment"):
        create_environment(actor=admin, slug="production")


def test_no_gate_runs_in_a_retired_one() -> None:
    make_environment("staging", is_routed=False)
    release = make_release()
    report_for(release)
    remove(environment := get_environment("staging"))
    with pytest.raises(StateChanged) as refused:
        request_gate_run(actor=make_admin(), release=release, environment=environment)
    assert refused.value.code == "environment_retired"


def test_a_release_that_was_stable_there_alone_is_free_and_keeps_the_environment_from_coming_back() -> None:
    release = served()
    remove(production())
    Replica.objects.update(state="gone")
    assert release.pk not in usages_of()
    retire(actor=make_admin(), release=release, reason="old", expected_version=release.version)
    with pytest.raises(StateChanged) as refused:
        restore_environment(actor=make_admin(), environment=production())
    assert (
        refused.value.code == "not_sealed"
        and release.name in refused.value.message
        and production().retired_at is not None
    )


def test_brought_back_it_gets_a_server_of_each_stable_release() -> None:
    release = served()
    remove(production())
    with pytest.raises(StateChanged) as refused:
        restore_environment(actor=make_admin(), environment=production())
    assert refused.value.code == "deployment_draining"
    Replica.objects.update(state="gone")
    found = restore_environment(actor=make_admin(), environment=production(), reason="again")
    assert found.retired_at is None and found.retired_by == "" and found.version == 3
    assert Replica.objects.filter(release=release, is_wanted=True, state="fetching").count() == 1
    assert restore_environment(actor=make_admin(), environment=production()).version == 3
    assert Event.objects.get(verb="environment.restored").reason == "again"
    assert "production" in store.load().tables


def test_a_rollout_under_way_keeps_it() -> None:
    serves(release_of(model := release_of().model))
    rollout = put(started(candidate=release_of(model)), "shifting", weight_bp=500)
    with pytest.raises(StateChanged, match=f"rollout abort {rollout.pk}") as refused:
        remove(production())
    assert refused.value.code == "environment_in_use" and refused.value.facts["rollout"] == rollout.pk


def test_an_undo_window_goes_with_it() -> None:
    rollout, _ = promoted()
    remove(production())
    with pytest.raises(StateChanged) as refused:
        actions.roll_back_model(actor=make_admin(), model=rollout.model, environment=production(), reason="late")
    assert refused.value.code == "environment_retired"


def test_a_gateway_that_speaks_keeps_it() -> None:
    gateway(environment := production(), silent_s=-3600)
    with pytest.raises(StateChanged, match="Gateway eu-1 .* Drain it on the environment's page"):
        remove(environment)
    Gateway.objects.update(seen_at=timezone.now() - timedelta(minutes=1))
    assert remove(environment).is_deleted


def test_where_gates_run_is_kept_while_others_let_in_only_what_they_measured() -> None:
    staging, lab = make_environment("staging", is_routed=False), make_environment("lab", is_routed=False)
    make_environment("production", needs_passed_report=True)
    assert remove(lab).is_deleted
    with pytest.raises(StateChanged, match="PATCH /environments/production needs_passed_report:=false"):
        remove(staging)
    gate_run, _ = request_gate_run(actor=make_admin(), release=make_release())
    Environment.objects.filter(slug="production").update(needs_passed_report=False)
    with pytest.raises(StateChanged, match=f"Gate run {gate_run.pk}"):
        remove(staging)


def test_who_may_not_and_who_saw_an_older_one() -> None:
    environment = make_environment("canary")
    for verb in (plan_removal, lambda **said: remove(said.pop("environment"), **said), restore_environment):
        with pytest.raises(Refused):
            verb(actor=make_actor(Role.RELEASE_MANAGER), environment=environment)
    with pytest.raises(Stale):
        remove(environment, expected_version=7)
    with pytest.raises(Invalid) as refused:
        remove(environment, reason="x" * 2001)
    assert refused.value.code == "reason_too_long"
