"""The REST views of the registry: a push in three calls, every refusal a problem, nothing half-made left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, UnreadablePostError
from django.test import AsyncClient

from accounts.actions import actor_for, issue_token
from accounts.core.access import Role
from ledger.models import Event
from registry.models import Blob, Release, ReleaseFile, ServedModel
from sluicegate.api import FIXES
from tests.factories import make_node, make_user
from tests.model_files import onnx_file
from tests.registry_samples import CONTRACT, ONNX, announced, person, release_yaml, served_model, sha256

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]


def counts() -> tuple[int, ...]:
    files = [path for path in Path(settings.BLOB_STORE).rglob("*") if path.is_file()]
    rows = (ServedModel, Release, ReleaseFile, Blob, Event)
    return (*(kind.objects.count() for kind in rows), len(files))


@pytest.fixture
def dev(api: Api) -> Any:
    """A signed-in member of the model's team, whose model is there."""
    user = person("dev")
    served_model(actor_for(user))
    return api(user)


def send_json(client: Any, method: str, url: str, body: Any, **headers: str) -> Any:
    return getattr(client, method)(f"/api/v1{url}", body, format="json", headers=headers)


def draft(client: Any, changes: dict[str, Any] | None = None, files: Any = None) -> Any:
    body = release_yaml(changes) | ({"files": files} if files is not None else {})
    return send_json(client, "post", "/models/sentiment/releases", body)


def upload(client: Any, release: str, path: str, data: bytes, sha: str | None = None, **headers: str) -> Any:
    headers = {"X-Content-SHA256": sha if sha is not None else sha256(data), **headers}
    return client.put(
        f"/api/v1/releases/{release}/files/{path}", data, content_type="application/octet-stream", headers=headers
    )


def refused(response: Any, status: int, code: str) -> dict[str, dict[str, str]]:
    """{field: error} of a problem answer, whose form is checked."""
    body = response.json()
    assert (response.status_code, response["Content-Type"], body["code"]) == (
        status,
        "application/problem+json",
        code,
    ), body
    assert body["status"] == status and body["title"] and body["detail"]
    errors = {error["field"]: error for error in body.get("errors", [])}
    assert all(error["message"] and error["fix"] for error in errors.values())
    return errors


# --- the way through


def test_a_push_is_a_draft_its_files_and_a_seal(dev: Any) -> None:
    answer = draft(dev, files=announced(artifact__model_onnx=ONNX, tokenizer__tokenizer_json=b"{}"))
    assert answer.status_code == 201 and answer["ETag"] == '"1"'
    body = answer.json()
    assert body["missing"] == ["artifact/model.onnx", "tokenizer/tokenizer.json"] and body["state"] == "draft"
    assert body["links"]["seal"] == f"/api/v1/releases/{body['id']}/seal"

    first = upload(dev, body["id"], "artifact/model.onnx", ONNX)
    assert first.status_code == 200
    assert first.json() == {
        "path": "artifact/model.onnx",
        "role": "artifact",
        "sha256": sha256(ONNX),
        "size_bytes": len(ONNX),
    }
    assert dev.get(f"/api/v1/releases/{body['id']}").json()["missing"] == ["tokenizer/tokenizer.json"]
    assert upload(dev, body["id"], "tokenizer/tokenizer.json", b"{}", f"sha256:{sha256(b'{}')}").status_code == 200

    sealed = dev.post(body["links"]["seal"])
    assert sealed.status_code == 200
    release = sealed.json()
    assert (release["name"], release["number"], release["state"], release["author"]) == ("r1", 1, "sealed", "dev")
    assert release["digest"].startswith("sha256:") and release["manifest"]["model"] == "sentiment"
    assert dev.post(body["links"]["seal"]).json()["digest"] == release["digest"]

    read = dev.get("/api/v1/models/sentiment/releases/r1").json()
    assert read == release and read["links"]["gate_runs"].endswith("/models/sentiment/releases/r1/gate-runs")
    listed = dev.get("/api/v1/models/sentiment/releases").json()
    assert [item["name"] for item in listed["results"]] == ["r1"] and "next" in listed

    again = draft(dev, files=announced(artifact__model_onnx=ONNX, tokenizer__tokenizer_json=b"{}")).json()
    assert again["missing"] == []
    assert dev.post(again["links"]["seal"]).json()["id"] == release["id"]


def test_a_file_comes_back_as_it_was_sent(dev: Any) -> None:
    data = onnx_file(bytes(range(256)) * 9000)  # more than two pieces
    made = draft(dev).json()
    upload(dev, made["id"], "artifact/model.onnx", data)
    dev.post(made["links"]["seal"])
    answer = dev.get("/api/v1/models/sentiment/releases/r1/files/artifact/model.onnx")
    assert b"".join(answer.streaming_content) == data
    assert answer["ETag"] == f'"{sha256(data)}"' and answer["X-Content-SHA256"] == sha256(data)
    assert answer["Content-Length"] == str(len(data)) and answer["X-Content-Type-Options"] == "nosniff"
    refused(dev.get("/api/v1/models/sentiment/releases/r1/files/artifact/other.onnx"), 404, "no_such_file")


@pytest.mark.django_db(transaction=True)
def test_a_file_is_streamed_under_asgi_too() -> None:
    user = person("dev")
    token = issue_token(user=user, name="test", actor=actor_for(user))
    served_model(actor_for(user))
    headers = {"Authorization": f"Bearer {token}"}

    async def push_and_read() -> tuple[bytes, bool]:
        client = AsyncClient()
        made = (
            await client.post(
                "/api/v1/models/sentiment/releases",
                json.dumps(release_yaml()),
                content_type="application/json",
                headers=headers,
            )
        ).json()
        data = onnx_file(b"x" * 3_000_000)
        await client.put(f"/api/v1/releases/{made['id']}/files/artifact/model.onnx", data, content_type="application/octet-stream",
                         headers=headers | {"X-Content-SHA256": sha256(data)})  # fmt: skip
        await client.post(made["links"]["seal"], headers=headers)
        answer = await client.get("/api/v1/models/sentiment/releases/r1/files/artifact/model.onnx", headers=headers)
        content = b"".join([chunk async for chunk in answer.streaming_content])
        await sync_to_async(connections.close_all)()  # the thread of the views has a connection of its own
        return content, answer.is_async

    data, is_async = asyncio.run(push_and_read())
    assert data == onnx_file(b"x" * 3_000_000) and is_async


def test_an_upload_is_read_in_pieces_and_never_held(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = draft(dev).json(), []
    read = HttpRequest.read

    def spy(self: Any, *args: Any) -> bytes:
        asked.append(args)
        return read(self, *args)

    monkeypatch.setattr(HttpRequest, "read", spy)
    monkeypatch.setattr(HttpRequest, "body", property(lambda _: pytest.fail("the whole body was read")))
    assert upload(dev, made["id"], "artifact/model.onnx", b"x" * 5_000_000).status_code == 200
    assert len(asked) >= 5 and all(0 < size <= 1 << 20 for (size,) in asked)


def test_drafts_can_be_discarded_and_releases_cannot(dev: Any) -> None:
    made = draft(dev).json()
    assert dev.delete(f"/api/v1/releases/{made['id']}").status_code == 204
    refused(dev.get(f"/api/v1/releases/{made['id']}"), 404, "no_such_release")
    sealed = draft(dev).json()
    upload(dev, sealed["id"], "artifact/model.onnx", ONNX)
    dev.post(sealed["links"]["seal"])
    refused(dev.delete(f"/api/v1/releases/{sealed['id']}"), 409, "not_a_draft")
    refused(upload(dev, sealed["id"], "artifact/more.json", b"{}"), 409, "not_a_draft")


# --- bad input: one problem, naming field and fix, and nothing remains


@pytest.mark.parametrize(
    ("changes", "files", "field", "fix"),
    [
        ({"surprise": 1}, None, "surprise", "Remove it"),
        ({"serving.max_batchsize": 1}, None, "serving.max_batchsize", "max_batch_size"),
        ({"runtime.image": "triton-local:latest"}, None, "runtime.image", "triton-local@sha256:"),
        ({"serving.inputs.0.data_type": "float"}, None, "serving.inputs[0].data_type", "FP32"),
        ({"envelope.limits.max_batch_size": 64}, None, "envelope.limits.max_batch_size", "16"),
        ({"serving.instance_group": [{"kind": "gpu"}]}, None, "envelope.accelerator.vendor", "kind: cpu"),
        ({}, announced(artifact__weights_data=b"x"), "files", "Add artifact/model.onnx"),
        ({}, [{"path": "artifact/../../etc/x.json", "sha256": "0" * 64, "size_bytes": 0}], "files[0].path", "Remove"),
        ({}, [{"path": "/etc/x.json", "sha256": "0" * 64, "size_bytes": 0}], "files[0].path", "relative"),
        ({}, [{"path": "artifact/model.onnx", "sha256": "zz", "size_bytes": 0}], "files[0].sha256", "64 hex digits"),
        ({}, {"artifact/model.onnx": "x"}, "files", "list"),
        ({}, {}, "files", "list"),
        ({}, "", "files", "list"),
    ],
)  # fmt: skip
def test_a_bad_release_is_refused_and_leaves_nothing(
    dev: Any, changes: dict[str, Any], files: Any, field: str, fix: str
) -> None:
    before = counts()
    errors = refused(draft(dev, changes, files), 422, "invalid_spec")
    assert fix in errors[field]["fix"]
    assert counts() == before


@pytest.mark.parametrize(
    ("path", "data", "sha", "code", "field", "fix"),
    [
        ("artifact/model.onnx", b"data", sha256(b"other"), "digest_mismatch", "sha256", "Compute the sha256"),
        ("artifact/model.onnx", b"data", "12", "invalid_file", "sha256", "64 hex digits"),
        ("artifact/model.onnx", b"data", "", "invalid_file", "X-Content-SHA256", "Send the sha256"),
        ("artifact/%2e%2e/%2e%2e/etc/x.json", b"data", None, "invalid_file", "path", "Remove"),
        ("artifact/..%2f..%2fetc/x.json", b"data", None, "invalid_file", "path", "Remove"),
        ("%2fetc/x.json", b"data", None, "invalid_file", "path", "relative"),
        ("artifact/a%00.json", b"data", None, "invalid_file", "path", "printable"),
        ("artifact/weights.npy", b"data", None, "invalid_file", "path", "safetensors"),
        ("config.pbtxt", b"max_batch_size: 16\nbogus: 1", None, "invalid_config", "config.pbtxt:2:1", "Correct the line"),
        ("config.pbtxt", b"max_batch_size: -1", None, "invalid_config", "config.pbtxt:1:1", "0 to"),
        ("artifact/config.pbtxt", b"\nmax_batch_size: 8", None, "config_disagrees", "artifact/config.pbtxt:2:1", "equal"),
    ],
)  # fmt: skip
def test_a_bad_upload_is_refused_and_leaves_nothing(
    dev: Any, path: str, data: bytes, sha: str | None, code: str, field: str, fix: str
) -> None:
    made = draft(dev).json()
    before = counts()
    errors = refused(upload(dev, made["id"], path, data, sha), 422, code)
    assert fix in errors[field]["fix"]
    assert counts() == before


def test_an_upload_of_the_wrong_size_is_refused(dev: Any, settings: Any) -> None:
    lie = [{"path": "artifact/model.onnx", "sha256": sha256(b"data"), "size_bytes": 9}]
    made = draft(dev, files=lie).json()
    before = counts()
    wrong = upload(dev, made["id"], "artifact/model.onnx", b"data")
    assert "has 4 bytes, and 9 were announced" in refused(wrong, 422, "invalid_file")["size_bytes"]["message"]
    settings.MAX_UPLOAD_BYTES = 3
    assert "size_bytes" in refused(upload(dev, made["id"], "artifact/model.onnx", b"data"), 422, "invalid_file")
    assert counts() == before


def test_an_upload_that_is_cut_short_leaves_nothing(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = draft(dev).json()
    before = counts()

    def cut(self: Any, *args: Any) -> bytes:
        raise UnreadablePostError("connection reset")

    monkeypatch.setattr(HttpRequest, "read", cut)
    refused(upload(dev, made["id"], "artifact/model.onnx", b"data"), 422, "upload_cut_short")
    assert counts() == before


def test_a_missing_file_is_named_at_the_seal(dev: Any) -> None:
    made = draft(dev, files=announced(artifact__model_onnx=ONNX, tokenizer__vocab_txt=b"a")).json()
    upload(dev, made["id"], "artifact/model.onnx", ONNX)
    errors = refused(dev.post(made["links"]["seal"]), 422, "incomplete_release")
    assert "Upload it" in errors["files.tokenizer/vocab.txt"]["fix"]
    assert dev.get(f"/api/v1/releases/{made['id']}").json()["state"] == "draft"
    unannounced = draft(dev).json()
    errors = refused(dev.post(unannounced["links"]["seal"]), 422, "incomplete_release")
    assert "artifact/model.onnx" in errors["files.artifact/model.onnx"]["fix"]


@pytest.mark.parametrize("body", ["[]", '"x"', "null", "3"])
def test_a_body_that_is_no_object_is_refused(dev: Any, body: str) -> None:
    for url in ("/models", "/models/sentiment/releases"):
        refused(dev.post(f"/api/v1{url}", body, content_type="application/json"), 422, "not_an_object")
    assert dev.post("/api/v1/models", "{", content_type="application/json").status_code == 400


def test_a_nul_anywhere_is_refused_before_the_database(dev: Any, api: Api) -> None:
    nul = "a\x00b"
    body = {"slug": nul, "team": "vision", "title": nul, "description": nul, "gate_policy": {"a": nul}}
    errors = refused(send_json(dev, "post", "/models", body), 422, "invalid_model")
    assert set(errors) == {"slug", "title", "description", "gate_policy.a"}
    admin = api(make_user("root", is_admin=True))
    assert "team" in refused(send_json(admin, "post", "/models", {"slug": "a", "team": nul}), 422, "invalid_model")
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    changes = {"provenance.notes": nul, "serving.warmup.0.inputs.text": nul, "serving.parameters": {nul: "x"}}
    errors = refused(draft(dev, {**changes, "serving.warmup.0.batch_size": deep}), 422, "invalid_spec")
    assert set(errors) >= {"provenance.notes", "serving.warmup[0].inputs.text", "serving.parameters"}
    assert (
        "50 deep"
        in refused(draft(dev, {"serving.warmup.0.inputs.text": deep}), 422, "invalid_spec")[
            "serving.warmup[0].inputs.text"
        ]["fix"]
    )
    made = draft(dev).json()
    upload(dev, made["id"], "artifact/model.onnx", ONNX)
    dev.post(made["links"]["seal"])
    refused(dev.get("/api/v1/models/sentiment/releases/r1/files/artifact/%00.json"), 404, "no_such_file")


# --- models


def test_models_are_created_read_changed_and_listed(dev: Any) -> None:
    body = {"slug": "second", "team": "vision", "contract": CONTRACT, "objectives": {"errors_max_frac": 0.01}}
    made = send_json(dev, "post", "/models", body)
    assert made.status_code == 201 and made.json()["version"] == 1 and made.json()["last_release"] is None
    assert send_json(dev, "post", "/models", body).status_code == 200
    refused(send_json(dev, "post", "/models", body | {"title": "x"}), 409, "model_exists")
    assert [model["slug"] for model in dev.get("/api/v1/models").json()["results"]] == ["second", "sentiment"]

    assert send_json(dev, "patch", "/models/second", {"title": "x"}).status_code == 428
    gates = {"gates": ["contract"]}
    changed = send_json(dev, "patch", "/models/second", {"gate_policy": gates}, **{"If-Match": '"1"'})
    assert changed.status_code == 200 and changed["ETag"] == '"2"' and changed.json()["gate_policy"] == gates
    refused(send_json(dev, "patch", "/models/second", {"title": "x"}, **{"If-Match": "1"}), 412, "stale")
    errors = refused(
        send_json(dev, "patch", "/models/second", {"slug": "x", "gate_policy": 3}, **{"If-Match": "2"}),
        422,
        "invalid_model",
    )
    assert set(errors) == {"slug", "gate_policy"}


def test_a_models_policies_are_read_when_it_is_saved(dev: Any) -> None:
    body = {"slug": "second", "team": "vision", "contract": CONTRACT, "objectives": {"errors_max_frac": 0.01}}
    wrong = {"rollout_policy": {"preset": "fats", "approvals": {"step 9": 1}}, "gate_policy": {"gates": ["golden"]}}
    errors = refused(send_json(dev, "post", "/models", {**body, **wrong}), 422, "invalid_model")
    assert set(errors) == {"rollout_policy.preset", "gate_policy.golden.set"}
    assert "Was fast meant?" in errors["rollout_policy.preset"]["fix"]
    slow = {"guards": [{"indicator": "slow"}]}
    errors = refused(send_json(dev, "post", "/models", {**body, "rollout_policy": slow}), 422, "invalid_model")
    assert set(errors) == {"rollout_policy.guards[0].threshold_ms"}  # no objective names one
    watched = {"errors_max_frac": 0.01, "slow": {"threshold_ms": 250, "max_frac": 0.01}}
    saved = send_json(dev, "post", "/models", {**body, "objectives": watched, "rollout_policy": slow})
    assert saved.status_code == 201
    match = {"If-Match": "1"}
    errors = refused(
        send_json(dev, "patch", "/models/second", {"objectives": {"errors_max_frac": 0.01}}, **match),
        422,
        "invalid_model",
    )
    assert set(errors) == {"rollout_policy.guards[0].threshold_ms"}  # the policy rests on what would be taken away
    ServedModel.objects.filter(slug="second").update(rollout_policy={"preset": "of-long-ago"})
    assert send_json(dev, "patch", "/models/second", {"title": "Still to be renamed"}, **match).status_code == 200


def test_a_bad_model_names_its_fields(dev: Any) -> None:
    before = counts()
    assert set(refused(send_json(dev, "post", "/models", {"title": 1}), 422, "invalid_model")) == {"slug", "team"}
    errors = refused(send_json(dev, "post", "/models", {"slug": 3, "x": 1}), 422, "invalid_model")
    assert {name: error["fix"] for name, error in errors.items()} == {
        "slug": FIXES["not_text"], "team": FIXES["required"], "x": FIXES["unknown_field"],
    }  # fmt: skip
    bad = {"slug": "a b", "team": "vision", "contract": {"inputs": 3}, "objectives": {"slow_ms": 5}}
    errors = refused(send_json(dev, "post", "/models", bad), 422, "invalid_model")
    assert (
        set(errors) == {"slug", "contract.inputs", "objectives.slow_ms"}
        and "threshold_ms" in errors["objectives.slow_ms"]["fix"]
    )
    assert counts() == before


# --- who sees what


def test_outsiders_see_nothing_in_the_words_of_nothing(dev: Any, api: Api) -> None:
    made = draft(dev).json()
    upload(dev, made["id"], "artifact/model.onnx", ONNX)
    dev.post(made["links"]["seal"])
    outsider = api(person("out", Role.MODEL_TEAM, team="other"))
    for url in ("", "/releases", "/releases/r1", "/releases/r1/files/artifact/model.onnx"):
        seen, absent = outsider.get(f"/api/v1/models/sentiment{url}"), outsider.get(f"/api/v1/models/nothing{url}")
        refused(seen, 404, "no_such_model")
        assert seen.json()["detail"] == absent.json()["detail"].replace("nothing", "sentiment")
    refused(outsider.get(f"/api/v1/releases/{made['id']}"), 404, "no_such_release")
    refused(upload(outsider, made["id"], "artifact/x.json", b"{}"), 404, "no_such_release")
    refused(outsider.post(made["links"]["seal"]), 404, "no_such_release")
    refused(send_json(outsider, "post", "/models/sentiment/releases/r1/waivers", {"reason": "x"}), 404, "no_such_model")
    assert outsider.get("/api/v1/models").json()["results"] == []


def test_every_route_wants_a_sign_in(dev: Any, api: Api) -> None:
    made = draft(dev).json()
    nobody = api()
    for method, url in [
        ("get", "/models"), ("post", "/models"), ("get", "/models/sentiment"), ("patch", "/models/sentiment"),
        ("get", "/models/sentiment/releases"), ("post", "/models/sentiment/releases"), ("get", "/models/sentiment/releases/r1"),
        ("get", "/models/sentiment/releases/r1/files/artifact/model.onnx"), ("post", "/models/sentiment/releases/r1/waivers"),
        ("get", f"/releases/{made['id']}"), ("delete", f"/releases/{made['id']}"), ("post", f"/releases/{made['id']}/seal"),
        ("put", f"/releases/{made['id']}/files/artifact/model.onnx"),
    ]:  # fmt: skip
        assert getattr(nobody, method)(f"/api/v1{url}").status_code == 401, (method, url)


def test_readers_who_may_not_push_are_told_which_role_would(dev: Any, api: Api) -> None:
    manager = api(person("rm", Role.RELEASE_MANAGER))
    made = draft(dev).json()
    before = counts()
    for answer in (draft(manager), upload(manager, made["id"], "artifact/model.onnx", ONNX), manager.post(made["links"]["seal"]),
                   manager.delete(f"/api/v1/releases/{made['id']}")):  # fmt: skip
        refused(answer, 403, "forbidden")
        assert answer.json()["roles"] == ["ci", "model_team"]
    assert counts() == before


def test_a_waiver_is_granted_over_the_api(dev: Any, api: Api) -> None:
    made = draft(dev, {"runtime.backend": "python"}).json()
    upload(dev, made["id"], "artifact/model.py", b"x = 1")
    assert dev.post(made["links"]["seal"]).json()["is_code_bearing"] is True
    url = "/models/sentiment/releases/r1/waivers"
    refused(send_json(dev, "post", url, {"reason": "mine"}), 403, "forbidden")
    manager = api(person("rm", Role.RELEASE_MANAGER))
    assert "reason" in refused(send_json(manager, "post", url, {}), 422, "invalid_waiver")
    image = dev.get("/api/v1/models/sentiment/releases/r1").json()["manifest"]["runtime"]["image"]
    runtime = {"image": image, "server": "triton", "backends": ["python"], "versions": {}}
    make_node("weak", runtimes=[runtime], facts={"containment": {"tier": "none", "allows_uncontained_code": False}})
    granted = send_json(manager, "post", url, {"reason": "Read it."})
    assert granted.status_code == 201 and granted.json()["granted_by"] == "rm"
    says = "This code will run with the service's rights, keys and all."
    wanted = [{"node": "weak", "containment": "none", "says": says, "may_run": False}]
    assert granted.json()["code_runs"] == wanted
    assert dev.get("/api/v1/models/sentiment/releases/r1").json()["code_runs"] == wanted
    assert Event.objects.get(verb="release.waived").facts["containment"] == {"weak": "none"}
    read = dev.get("/api/v1/models/sentiment/releases/r1").json()
    assert read["has_code_waiver"] is True and read["waivers"] == [granted.json()]


def test_the_schema_tells_of_every_route(client: Any) -> None:
    paths = client.get("/api/v1/schema").json()["paths"]
    assert {"get", "post"} <= set(paths["/api/v1/models"])
    assert {"get", "patch"} <= set(paths["/api/v1/models/{slug}"])
    put = paths["/api/v1/releases/{release_id}/files/{path}"]["put"]
    assert "application/octet-stream" in put["requestBody"]["content"]
    assert "X-Content-SHA256" in {parameter["name"] for parameter in put["parameters"]}
    assert set(paths["/api/v1/models/{slug}/releases/{name}"]["get"]["responses"]) == {
        "200",
        "401",
        "403",
        "404",
        "406",
        "503",
    }


def test_a_draft_is_made_of_the_text_of_release_yaml(dev: Any) -> None:
    text = yaml.safe_dump(release_yaml())
    body = {
        "release_yaml": text,
        "provenance": {"git_commit": "4f2a9c1"},
        "files": announced(artifact__model_onnx=ONNX),
    }
    made = send_json(dev, "post", "/models/sentiment/releases", body)
    assert made.status_code == 201, made.json()
    spec = Release.objects.get(pk=made.json()["id"]).spec
    assert spec["runtime"] == release_yaml()["runtime"] and spec["provenance"] == {"git_commit": "4f2a9c1"}


@pytest.mark.parametrize(
    ("text", "says"),
    [("model: sentiment\nmodel: other", "line 2"), ("- 1", "has no fields"), ("", "has no fields"), ([1], "no text"), ("a: [", "line 1")],
)  # fmt: skip
def test_mistakes_of_that_text_are_told_with_their_lines(dev: Any, text: Any, says: str) -> None:
    answer = send_json(dev, "post", "/models/sentiment/releases", {"release_yaml": text})
    assert answer.status_code == 422 and says in answer.json()["detail"]
    assert not Release.objects.exists()


def test_no_text_is_read_for_somebody_who_may_not_push(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    served_model(actor_for(person("dev")))
    monkeypatch.setattr("registry.api.releases.read_text", lambda text: pytest.fail("it was read"))
    viewer = api(person("vic", Role.VIEWER))
    answer = send_json(viewer, "post", "/models/sentiment/releases", {"release_yaml": "a: 1"})
    assert answer.status_code == 403 and answer.json()["code"] == "forbidden"
