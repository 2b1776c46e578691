"""The REST views of the registry: a push in three calls, every refusal a problem, nothing half-made left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpRequest, UnreadablePostError
from django.test import AsyncClient

from accounts.actions import actor_for, issue_token
from accounts.core.access import Role
from ledger.models import Event
from tests.api.registry_calls import counts, refused, send_json
from tests.support.worlds.factories import make_node, make_user
from tests.support.worlds.model_files import onnx_file
from tests.support.worlds.registry_samples import ONNX, announced, person, release_yaml, served_model, sha256

pytestmark = pytest.mark.django_db
Api = Callable[..., Any]


def draft(client: Any, changes: dict[str, Any] | None = None, files: Any = None) -> Any:
    body = release_yaml(changes) | ({"files": files} if files is not None else {})
    return send_json(client, "post", "/models/sentiment/releases", body)


def upload(client: Any, release: str, path: str, data: bytes, sha: str | None = None, **headers: str) -> Any:
    headers = {"X-Content-SHA256": sha if sha is not None else sha256(data), **headers}
    return client.put(
        f"/api/v1/releases/{release}/files/{path}", data, content_type="application/octet-stream", headers=headers
    )


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
    make_node(
        "weak", runtimes=[runtime], facts={"containment": {"tier": "not contained", "allows_uncontained_code": False}}
    )
    granted = send_json(manager, "post", url, {"reason": "Read it."})
    assert granted.status_code == 201 and granted.json()["granted_by"] == "rm"
    says = "This code will run with the service's rights, keys and all: it is not contained."
    wanted = [{"node": "weak", "containment": "not contained", "says": says, "may_run": False}]
    assert granted.json()["code_runs"] == wanted
    assert dev.get("/api/v1/models/sentiment/releases/r1").json()["code_runs"] == wanted
    assert Event.objects.get(verb="release.waived").facts["containment"] == {"weak": "not contained"}
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
