"""Models, drafts and seals."""

# ruff: noqa: F811 - fixtures are named as they are used
from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from accounts.actions import actor_for
from accounts.core.access import Actor, Role
from ledger.core.errors import Invalid, NotFound, Refused, Stale, StateChanged
from ledger.models import Event
from registry import actions, queries
from registry.core.garbage_collection import Fate, Kind
from registry.core.lifecycle import FileRole, ReleaseState
from registry.models import Blob, Release, ReleaseFile, ServedModel, Upload
from registry.queries.gc_plan import present_plan
from serving.environments.core.lifecycle import ReplicaState
from tests.support.worlds.factories import make_environment, make_replica
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import (
    ONNX,
    announced,
    draft_with,
    person,
    put,
    release_yaml,
    served_model,
    sha256,
)
from tests.support.worlds.registry_setup import dev, model, sealed, stored, verbs  # noqa: F401

pytestmark = pytest.mark.django_db


# --- models


def test_a_model_is_created_once_and_again_only_if_it_is_the_same(dev: Actor) -> None:
    first = served_model(dev, objectives={"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}})
    again = served_model(dev, objectives={"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}})
    assert first.pk == again.pk and verbs("sentiment") == ["model.created"]
    with pytest.raises(StateChanged, match="taken"):
        served_model(dev, title="another")


def test_a_bad_model_names_every_field(dev: Actor) -> None:
    with pytest.raises(Invalid) as caught:
        served_model(
            dev, slug="No Good", contract={"inputs": [{"name": "x"}]}, objectives={"errors_max_frac": 2}, gate_policy=[]
        )
    assert {e["field"] for e in caught.value.facts["errors"]} == {
        "slug", "contract.inputs[0].data_type", "contract.inputs[0].dims", "objectives.errors_max_frac", "gate_policy",
    }  # fmt: skip
    assert not ServedModel.objects.exists()


def test_a_model_states_its_own_time_outs_and_they_must_agree(dev: Actor) -> None:
    with pytest.raises(Invalid) as caught:
        served_model(dev, objectives={"timeout_s": 5, "attempt_timeout_s": 6})
    assert [e["field"] for e in caught.value.facts["errors"]] == ["objectives.attempt_timeout_s"]
    waits = {"timeout_s": 60, "attempt_timeout_s": 20}
    assert served_model(dev, objectives=waits).objectives == waits


def test_a_gate_policy_that_gives_requests_up_before_users_do_is_refused_whenever_either_is_saved(dev: Actor) -> None:
    with pytest.raises(Invalid) as caught:
        served_model(dev, objectives={"timeout_s": 120}, gate_policy={"load": {"timeout_s": 30}, "gate_timeout_s": 60})
    assert [e["field"] for e in caught.value.facts["errors"]] == [
        "gate_policy.load.timeout_s",
        "gate_policy.gate_timeout_s",
    ]
    model = served_model(dev, objectives={"timeout_s": 20}, gate_policy={"load": {"timeout_s": 30}})
    for changes in ({"objectives": {"timeout_s": 40}}, {"gate_policy": {"load": {"timeout_s": 10}}}):
        with pytest.raises(Invalid) as caught:
            actions.change_model(actor=dev, model=model, expected_version=model.version, changes=changes)
        assert [e["field"] for e in caught.value.facts["errors"]] == ["gate_policy.load.timeout_s"]
    longer = {"objectives": {"timeout_s": 600}, "gate_policy": {"load": {}}}
    actions.change_model(actor=dev, model=model, expected_version=model.version, changes=longer)


def test_only_a_model_team_creates_models(dev: Actor) -> None:
    for role in (Role.CI, Role.RELEASE_MANAGER):
        with pytest.raises(Refused, match="model_team"):
            served_model(actor_for(person(role.value, role)))
    with pytest.raises(Refused):
        served_model(dev, team="another-team")
    with pytest.raises(Invalid, match="no team"):
        served_model(Actor.system("test"), team="another-team")


def test_a_change_needs_the_version_that_was_read(dev: Actor, model: ServedModel) -> None:
    changed = actions.change_model(
        actor=dev, model=model, expected_version=1, changes={"gate_policy": {"gates": ["contract"]}}
    )
    assert changed.version == 2 and changed.gate_policy == {"gates": ["contract"]}
    with pytest.raises(Stale, match="version 2"):
        actions.change_model(actor=dev, model=model, expected_version=1, changes={"title": "x"})
    same = actions.change_model(actor=dev, model=model, expected_version=2, changes={"title": ""})
    assert same.version == 2 and verbs("sentiment") == ["model.created", "model.changed"]


def test_the_contract_stays_once_a_release_is_sealed(dev: Actor, model: ServedModel) -> None:
    sealed(dev, model)
    with pytest.raises(Invalid, match="clients rely on it"):
        actions.change_model(actor=dev, model=model, expected_version=1, changes={"contract": {}})


# --- drafts


def test_a_draft_tells_what_it_misses_until_it_is_there(dev: Actor, model: ServedModel) -> None:
    files = announced(artifact__model_onnx=ONNX, tokenizer__tokenizer_json=b"{}")
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml(), files=files)
    assert queries.missing_files(draft) == ["artifact/model.onnx", "tokenizer/tokenizer.json"]
    put(dev, draft, "artifact/model.onnx", ONNX)
    assert queries.missing_files(draft) == ["tokenizer/tokenizer.json"]
    with pytest.raises(Invalid) as caught:
        actions.seal(actor=dev, release=draft)
    assert caught.value.facts["errors"][0]["field"] == "files.tokenizer/tokenizer.json"
    draft.refresh_from_db()
    assert draft.state == ReleaseState.DRAFT and ServedModel.objects.get().last_number == 0


@pytest.mark.parametrize(
    ("spec", "files", "field"),
    [
        ({"surprise": 1}, None, "surprise"),
        ({"runtime.image": "triton:latest"}, None, "runtime.image"),
        ({"model": "other"}, None, "model"),
        ({"serving.outputs.0.dims": [3]}, None, "serving.outputs[0].dims"),
        ({"envelope.limits": {"max_batch_size": 8}}, None, "envelope.limits.max_batch_size"),
        ({}, [{"path": "artifact/../../x.onnx", "sha256": "a" * 64, "size_bytes": 1}], "files[0].path"),
        ({}, [{"path": "artifact/model.onnx", "sha256": "a" * 63, "size_bytes": 1}], "files[0].sha256"),
        ({}, [{"path": "artifact/model.onnx", "sha256": "a" * 64, "size_bytes": -1}], "files[0].size_bytes"),
        ({}, [{"path": "artifact/model.onnx", "sha256": "a" * 64, "size_bytes": 1, "mode": 7}], "files[0].mode"),
        ({}, [{"path": "artifact/model.onnx", "sha256": "a" * 64, "size_bytes": 2**50}], "files[0].size_bytes"),
        ({}, announced(artifact__weights_data=b"x"), "files"),
        ({}, announced(artifact__model_onnx=b"x", artifact__Model_onnx=b"y"), "files[1].path"),
        ({}, "artifact/model.onnx", "files"),
    ],
)  # fmt: skip
def test_a_bad_draft_leaves_nothing(
    dev: Actor, model: ServedModel, spec: dict[str, Any], files: Any, field: str
) -> None:
    events = Event.objects.count()
    with pytest.raises(Invalid) as caught:
        actions.create_draft(actor=dev, model=model, spec=release_yaml(spec), files=files)
    assert field in {error["field"] for error in caught.value.facts["errors"]}
    assert (Release.objects.count(), ReleaseFile.objects.count(), Event.objects.count()) == (0, 0, events)


def test_mistakes_of_the_spec_and_of_the_files_are_named_together(dev: Actor, model: ServedModel) -> None:
    with pytest.raises(Invalid) as caught:
        actions.create_draft(
            actor=dev, model=model, spec=release_yaml({"x": 1}), files=announced(artifact__model_npy=b"")
        )
    assert {error["field"] for error in caught.value.facts["errors"]} == {"x", "files", "files[0].path"}


@pytest.mark.parametrize(
    ("path", "sha", "size", "code", "field"),
    [
        ("artifact/../x.onnx", sha256(b"data"), 4, "invalid_file", "path"),
        ("artifact/x.npy", sha256(b"data"), 4, "invalid_file", "path"),
        ("artifact/model.onnx", "abc", 4, "invalid_file", "sha256"),
        ("artifact/model.onnx", sha256(b"other"), 4, "digest_mismatch", "sha256"),
        ("artifact/model.onnx", sha256(b"data"), 5, "invalid_file", "size_bytes"),
        ("artifact/model.onnx", sha256(b"data"), 2**50, "invalid_file", "size_bytes"),
        ("artifact/A.json/b.json", sha256(b"data"), 4, "invalid_file", "path"),
        ("config.pbtxt", sha256(b"data"), 4, "invalid_config", "config.pbtxt:1:1"),
    ],
)  # fmt: skip
def test_a_bad_upload_leaves_nothing(
    dev: Actor, model: ServedModel, path: str, sha: str, size: int, code: str, field: str
) -> None:
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml())
    put(dev, draft, "artifact/a.json", b"{}")
    with pytest.raises(Invalid) as caught:
        actions.add_file(actor=dev, release=draft, path=path, sha256=sha, stream=io.BytesIO(b"data"), size_bytes=size)
    assert caught.value.code == code and field in {error["field"] for error in caught.value.facts["errors"]}
    assert list(draft.files.values_list("path", flat=True)) == ["artifact/a.json"]
    assert stored() == [sha256(b"{}")] == list(Blob.objects.values_list("sha256", flat=True))


def test_a_file_too_large_leaves_nothing(dev: Actor, model: ServedModel, settings: Any) -> None:
    settings.MAX_UPLOAD_BYTES = 100
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml())
    with pytest.raises(Invalid, match="100 bytes"):
        actions.add_file(
            actor=dev,
            release=draft,
            path="artifact/model.onnx",
            sha256=sha256(b"x" * 101),
            stream=io.BytesIO(b"x" * 101),
        )
    assert stored() == [] and not Blob.objects.exists()


def test_only_announced_files_are_taken(dev: Actor, model: ServedModel) -> None:
    draft, _ = actions.create_draft(
        actor=dev, model=model, spec=release_yaml(), files=announced(artifact__model_onnx=ONNX)
    )
    with pytest.raises(Invalid, match="not announced"):
        put(dev, draft, "tokenizer/vocab.txt", b"x")
    with pytest.raises(Invalid, match="announced"):
        put(dev, draft, "artifact/model.onnx", b"other bytes")
    assert stored() == []


def test_a_file_can_be_sent_again_or_replaced(
    dev: Actor, model: ServedModel, django_capture_on_commit_callbacks: Any
) -> None:
    draft = draft_with(dev, model, b"first")
    put(dev, draft, "artifact/model.onnx", b"first")
    with django_capture_on_commit_callbacks(execute=True):
        put(dev, draft, "artifact/model.onnx", b"second")
    assert [file.blob_id for file in draft.files.all()] == [sha256(b"second")] == stored()


def test_an_uploaded_config_is_compared_with_release_yaml(dev: Actor, model: ServedModel) -> None:
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml())
    with pytest.raises(Invalid) as caught:
        put(dev, draft, "config.pbtxt", b'name: "sentiment"\nmax_batch_size: 8\n')
    assert caught.value.code == "config_disagrees"
    assert caught.value.facts["errors"][0]["field"] == "config.pbtxt:2:1"
    put(dev, draft, "config.pbtxt", b'name: "sentiment"\nmax_batch_size: 16\n')
    assert draft.files.get().role == FileRole.CONFIG


def test_bytes_that_the_model_has_are_not_sent_again(dev: Actor, model: ServedModel) -> None:
    sealed(dev, model, tokenizer__tokenizer_json=b"{}")
    files = announced(artifact__model_onnx=b"new", tokenizer__tokenizer_json=b"{}")
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml(), files=files)
    assert queries.missing_files(draft) == ["artifact/model.onnx"]
    lie = [{**file, "size_bytes": 3} for file in files]
    with pytest.raises(Invalid, match="has 2 bytes, and 3 were announced"):
        actions.create_draft(actor=dev, model=model, spec=release_yaml(), files=lie)
    assert Release.objects.filter(state=ReleaseState.DRAFT).count() == 1


def test_a_sha256_does_not_tell_what_another_model_has(dev: Actor, model: ServedModel) -> None:
    sealed(dev, model)
    other = served_model(actor_for(person("eve", Role.MODEL_TEAM, team="other")), slug="other", team="other")
    draft, _ = actions.create_draft(
        actor=actor_for(person("mallory", Role.CI, team="other")), model=other, spec=release_yaml({"model": "other"}),
        files=announced(artifact__model_onnx=ONNX),
    )  # fmt: skip
    assert queries.missing_files(draft) == ["artifact/model.onnx"]


def test_a_discarded_draft_leaves_only_what_others_have(
    dev: Actor, model: ServedModel, django_capture_on_commit_callbacks: Any
) -> None:
    sealed(dev, model, onnx_file("kept"))
    draft = draft_with(dev, model, onnx_file("kept"), tokenizer__vocab_txt=b"dropped")
    with django_capture_on_commit_callbacks(execute=True):
        actions.discard_draft(actor=dev, release=draft)
    assert stored() == [sha256(onnx_file("kept"))] == list(Blob.objects.values_list("sha256", flat=True))
    assert verbs(draft.pk) == ["release.drafted", "release.discarded"]
    with pytest.raises(NotFound, match="Push again"):
        actions.seal(actor=dev, release=draft)
    with pytest.raises(StateChanged, match="never changes"):
        actions.discard_draft(actor=dev, release=Release.objects.get())


def test_old_drafts_are_purged_and_nothing_else(
    dev: Actor, model: ServedModel, django_capture_on_commit_callbacks: Any
) -> None:
    sealed(dev, model, onnx_file("sealed"))
    old, new = draft_with(dev, model, b"old"), draft_with(dev, model, b"new")
    Release.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(days=8))
    with pytest.raises(Refused):
        actions.purge_drafts(actor=dev, older_than=timedelta(days=7))
    with django_capture_on_commit_callbacks(execute=True):
        assert actions.purge_drafts(actor=Actor.system("purge"), older_than=timedelta(days=7)) == 1
    assert set(Release.objects.filter(state=ReleaseState.DRAFT)) == {new}
    assert stored() == sorted([sha256(onnx_file("sealed")), sha256(b"new")])


def test_a_draft_that_still_gets_files_is_not_abandoned(dev: Actor, model: ServedModel) -> None:
    data = b"a slow line"
    draft, _ = actions.create_draft(
        actor=dev, model=model, spec=release_yaml(), files=announced(artifact__model_onnx=data)
    )
    upload = actions.begin_upload(
        actor=dev, release=draft, path="artifact/model.onnx", sha256=sha256(data), size_bytes=len(data)
    )
    Release.objects.filter(pk=draft.pk).update(created_at=timezone.now() - timedelta(days=8))
    week = {"actor": Actor.system("purge"), "older_than": timedelta(days=7)}
    assert actions.purge_drafts(**week) == 0
    assert [item.fate for item in present_plan().of(Kind.RELEASE, *Fate)] == [Fate.KEEP]
    Upload.objects.filter(pk=upload.pk).update(state="aborted")
    assert [item.fate for item in present_plan().of(Kind.RELEASE, *Fate)] == [Fate.DELETE]
    assert actions.purge_drafts(**week) == 1


# --- seal


def test_a_seal_gives_number_digest_and_manifest(dev: Actor, model: ServedModel) -> None:
    release = sealed(dev, model, tokenizer__tokenizer_json=b"{}")
    assert (release.name, release.state, release.is_code_bearing, release.version) == ("r1", "sealed", False, 2)
    manifest = queries.manifest_of(release)
    assert release.digest == f"sha256:{sha256(release.manifest.encode())}"
    assert [(f["path"], f["role"], f["sha256"]) for f in manifest["files"]] == [
        ("artifact/model.onnx", "artifact", sha256(ONNX)), ("tokenizer/tokenizer.json", "tokenizer", sha256(b"{}")),
    ]  # fmt: skip
    event = Event.objects.get(verb="release.sealed")
    signed_by = release.attestations.earliest("pk").key_id
    assert event.facts == {"model": "sentiment", "number": 1, "digest": release.digest, "signed_by": signed_by}
    assert (event.from_state, event.to_state, event.actor) == ("draft", "sealed", dev.name)
    assert queries.get_release("sentiment", "r1") == queries.get_release("sentiment", 1) == release


def test_the_same_content_is_one_release(
    dev: Actor, model: ServedModel, django_capture_on_commit_callbacks: Any
) -> None:
    first, second = sealed(dev, model), draft_with(dev, model)
    with django_capture_on_commit_callbacks(execute=True):
        assert actions.seal(actor=dev, release=second) == first
    assert actions.seal(actor=dev, release=first) == first
    assert Release.objects.count() == 1 and ServedModel.objects.get().last_number == 1 and stored() == [sha256(ONNX)]
    other = sealed(dev, model, onnx_file("other"))
    assert [r.name for r in queries.newest_releases(model, 5)] == ["r2", "r1"] and other.number == 2


def test_a_seal_holds_the_draft_to_the_objectives_of_that_moment(dev: Actor, model: ServedModel) -> None:
    draft = draft_with(dev, model, changes={"serving.queue_policy": {"default_timeout_us": 900_000}})
    faster = {"objectives": {"attempt_timeout_s": 0.9}}
    actions.change_model(actor=dev, model=model, expected_version=model.version, changes=faster)
    with pytest.raises(Invalid) as caught:
        actions.seal(actor=dev, release=draft)
    assert [e["field"] for e in caught.value.facts["errors"]] == ["serving.queue_policy.default_timeout_us"]
    draft.refresh_from_db()
    assert draft.state == ReleaseState.DRAFT


def test_time_outs_do_not_go_below_what_a_release_in_use_needs(dev: Actor, model: ServedModel) -> None:
    slow = draft_with(dev, model, changes={"serving.queue_policy": {"default_timeout_us": 900_000}})
    release = actions.seal(actor=dev, release=slow)

    def change(attempt_s: float) -> None:
        fresh = ServedModel.objects.get()
        objectives = {"attempt_timeout_s": attempt_s}
        actions.change_model(actor=dev, model=fresh, expected_version=fresh.version, changes={"objectives": objectives})

    change(0.8)  # nobody uses it
    change(2)
    make_replica(release, make_environment("production"), state=ReplicaState.READY)
    with pytest.raises(Invalid) as caught:
        change(0.9)
    (told,) = caught.value.facts["errors"]
    assert told["field"] == "objectives" and "r1 (deployed in production (ready))" in told["message"]
    assert "may wait 0.9 s in the server's queue" in told["message"]
    change(1)


def test_a_seal_needs_the_backends_file(dev: Actor, model: ServedModel) -> None:
    draft, _ = actions.create_draft(actor=dev, model=model, spec=release_yaml())
    put(dev, draft, "tokenizer/tokenizer.json", b"{}")
    with pytest.raises(Invalid, match=r"loads artifact/model\.onnx"):
        actions.seal(actor=dev, release=draft)


def test_a_seal_checks_that_the_bytes_are_there(dev: Actor, model: ServedModel) -> None:
    draft = draft_with(dev, model)
    next(path for path in Path(settings.BLOB_STORE).rglob(sha256(ONNX))).unlink()
    with pytest.raises(Invalid, match=r"bytes of artifact/model\.onnx are not in the store"):
        actions.seal(actor=dev, release=draft)


def test_a_seal_for_another_version_is_stale(dev: Actor, model: ServedModel) -> None:
    with pytest.raises(Stale):
        actions.seal(actor=dev, release=draft_with(dev, model), expected_version=7)


def test_who_may_push(dev: Actor, model: ServedModel) -> None:
    draft = draft_with(dev, model)
    for name, role, team in (("rm", Role.RELEASE_MANAGER, "vision"), ("out", Role.MODEL_TEAM, "other")):
        actor = actor_for(person(name, role, team))
        for attempt in (
            lambda actor=actor: actions.create_draft(actor=actor, model=model, spec=release_yaml()),
            lambda actor=actor: put(actor, draft, "artifact/a.json", b"{}"),
            lambda actor=actor: actions.seal(actor=actor, release=draft),
            lambda actor=actor: actions.discard_draft(actor=actor, release=draft),
        ):
            with pytest.raises(Refused, match="may not push releases of team vision"):
                attempt()
    assert actions.seal(actor=actor_for(person("robot", Role.CI)), release=draft).number == 1
