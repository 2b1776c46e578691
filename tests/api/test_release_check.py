"""The dry check of a release: every mistake at once, with file, line and column, and nothing stored."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from django.utils import timezone

from accounts.actions import actor_for
from ledger.models import Event
from registry.models import Blob, Release, Upload
from serving.models import Node
from tests.support.worlds.factories import make_node
from tests.support.worlds.model_files import plan_file
from tests.support.worlds.registry_samples import CONTRACT, IMAGE, ONNX, person, served_model, sha256
from tests.support.worlds.tiny_gguf import tiny_gguf

pytestmark = pytest.mark.django_db

GOOD = """\
model: sentiment
runtime:
  image: {image}
  backend: sluicegate-onnx
serving:
  max_batch_size: 16
  inputs:
    - {{name: text, data_type: BYTES, dims: [1]}}
  outputs:
    - {{name: probabilities, data_type: FP32, dims: [2]}}
"""
TEXT = GOOD.format(image=IMAGE)


@pytest.fixture
def dev(api: Callable[..., Any]) -> Any:
    user = person("dev")
    served_model(actor_for(user), contract={})
    return api(user)


def one(path: str, data: bytes, *, head: bool = True, hashed: bool = True) -> dict[str, Any]:
    more = {"head": base64.b64encode(data).decode()} if head else {}
    return {"path": path, "size_bytes": len(data)} | more | ({"sha256": sha256(data)} if hashed else {})


def check(client: Any, document: Any, files: list[dict[str, Any]] | None = None, slug: str = "sentiment") -> Any:
    listed = [one("artifact/model.onnx", ONNX)] if files is None else files
    return client.post(f"/api/v1/models/{slug}/releases:check", {"document": document, "files": listed}, format="json")


def problems(answer: Any) -> list[tuple[str, int | None, int | None, str]]:
    assert answer.status_code == 200, answer.json()
    return [(p["file"], p["line"], p["column"], p["field"]) for p in answer.json()["problems"]]


def test_a_release_that_is_fine_is_told_its_digest_and_stores_nothing(dev: Any) -> None:
    before = Event.objects.count()
    answer = check(dev, TEXT, [one("artifact/model.onnx", ONNX, head=False)])
    body = answer.json()
    assert problems(answer) == [] and body["is_fine"] is True
    assert yaml.safe_load(body["text"]) == body["document"]
    assert body["waivers_needed"] == [] and body["is_offered"] is False
    assert (Release.objects.count(), Upload.objects.count(), Blob.objects.count()) == (0, 0, 0)
    assert Event.objects.count() == before
    same = check(dev, body["document"], [one("artifact/model.onnx", ONNX, head=False)]).json()
    assert same["digest"] == body["digest"] and body["digest"].startswith("sha256:")
    assert check(dev, TEXT, [one("artifact/model.onnx", ONNX, head=False, hashed=False)]).json()["digest"] is None


def test_a_text_release_is_fine_without_tensors(dev: Any) -> None:
    runtime = {"image": IMAGE, "server": "llamacpp", "backend": "gguf"}
    document = {"model": "sentiment", "runtime": runtime, "serving": {"interface": "chat"}}
    body = check(dev, yaml.safe_dump(document), [one("artifact/model.gguf", tiny_gguf())]).json()
    assert (body["problems"], body["is_fine"]) == ([], True)
    del document["serving"]["interface"]
    assert "serving.interface" in [p[3] for p in problems(check(dev, yaml.safe_dump(document), []))]


def test_the_digest_is_that_of_the_seal(dev: Any) -> None:
    files = [one("artifact/model.py", b"class TritonPythonModel: ...\n")]
    document = yaml.safe_load(TEXT.replace("sluicegate-onnx", "python"))
    told = check(dev, yaml.safe_dump(document), files).json()
    assert told["waivers_needed"] == ["code"] and told["problems"] == []
    listed = [{k: v for k, v in f.items() if k != "head"} for f in files]
    draft = dev.post("/api/v1/models/sentiment/releases", document | {"files": listed}, format="json").json()
    dev.put(
        f"/api/v1/releases/{draft['id']}/files/artifact/model.py", b"class TritonPythonModel: ...\n",
        content_type="application/octet-stream", HTTP_X_CONTENT_SHA256=listed[0]["sha256"],
    )  # fmt: skip
    assert dev.post(f"/api/v1/releases/{draft['id']}/seal").json()["digest"] == told["digest"]


def test_every_mistake_is_told_at_once_with_its_place(dev: Any) -> None:
    text = TEXT.replace("max_batch_size: 16", "max_batch_size: -1").replace("[2]", "[0]").replace("backend", "backnd")
    files = [
        one("artifact/../model.onnx", b"x"),
        one("artifact/w.npy", b"x"),
        one("artifact/a.json", b'{"a": 1, "a": 2}'),
    ]
    found = problems(check(dev, text, files))
    assert ("release.yaml", 6, 19, "serving.max_batch_size") in found
    assert ("release.yaml", 10, 53, "serving.outputs[0].dims[0]") in found
    assert ("release.yaml", 4, 11, "runtime.backnd") in found  # an unknown field
    assert ("release.yaml", 2, 1, "runtime.backend") in found  # what is missing stands where it is missing
    assert [f for f in found if f[0] != "release.yaml"] == [
        ("artifact/../model.onnx", None, None, "path"),
        ("artifact/w.npy", None, None, "path"),
        ("artifact/a.json", None, None, "artifact/a.json"),
    ]


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("", (1, 1), "it is empty"),
        ("- a\n- b\n", (1, 1), "not a mapping"),
        ("model: a\nmodel: b\n", (2, 1), "occurs twice"),
        ("model: sentiment\nx: [1\n", None, "expected ',' or ']'"),
        ("model: a\x00b\n", (1, 9), "cannot stand in YAML"),
        ("a: &a [x]\nb: !!python/name:os.system ''\n", (2, 4), "JSON has nothing like"),
        ("a: " + "[" * 200 + "]" * 200, None, "nested deeper"),
        ("".join(f"k{i}: &k{i}\n  <<: [{', '.join([f'*k{i - 1}'] * 40)}]\n" if i else "k0: &k0 {a: 1}\n" for i in range(9)),
         None, "merges more than"),
        ("k0: &k0 [x]\n" + "".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 30)}]\n" for i in range(1, 9)), None, "anchors"),
    ],
)  # fmt: skip
def test_text_that_is_no_document(dev: Any, text: str, place: Any, says: str) -> None:
    [first, *_] = check(dev, text).json()["problems"]
    assert says in first["message"] and first["file"] == "release.yaml"
    assert place is None or (first["line"], first["column"]) == place


def test_mistakes_of_the_text_do_not_hide_those_of_the_fields(dev: Any) -> None:
    text = TEXT.replace("max_batch_size: 16", "max_batch_size: .nan").replace(
        "image: triton-local@sha256:", "image: triton:v"
    )
    found = check(dev, text).json()["problems"]
    assert [(p["line"], p["field"]) for p in found] == [(6, "serving.max_batch_size"), (3, "runtime.image")]


def test_the_contract_and_the_graph_are_held_against_it(api: Callable[..., Any]) -> None:
    user = person("dev")
    served_model(actor_for(user), contract=CONTRACT)
    text = TEXT.replace("dims: [2]", "dims: [3]")
    answer = check(api(user), text, [one("artifact/model.onnx", ONNX)])
    assert ("release.yaml", 10, 46, "serving.outputs[0].dims") in problems(answer)
    assert answer.json()["suggested_serving"] == CONTRACT


def test_its_declared_latency_is_held_against_the_models_time_outs(api: Callable[..., Any]) -> None:
    user = person("dev")
    served_model(actor_for(user), objectives={"attempt_timeout_s": 1})
    text = TEXT + (
        "envelope:\n  performance:\n    - {hardware: L4, workload: own, source: declared, latency_ms: {p99: 1500}}\n"
    )
    answer = check(api(user), text, [one("artifact/model.onnx", ONNX)])
    assert [field for _, _, _, field in problems(answer)] == ["envelope.performance[0].latency_ms.p99"]
    document = yaml.safe_load(text)
    refused = api(user).post("/api/v1/models/sentiment/releases", document, format="json")
    assert [error["field"] for error in refused.json()["errors"]] == ["envelope.performance[0].latency_ms.p99"]


def test_config_pbtxt_is_told_by_line(dev: Any) -> None:
    config = b'name: "sentiment"\nmax_batch_size: 8\n'
    files = [one("artifact/model.onnx", ONNX, head=False), one("config.pbtxt", config)]
    assert [(f, line) for f, line, *_ in problems(check(dev, TEXT, files))] == [("config.pbtxt", 2)]


def test_a_head_that_does_not_reach_is_no_mistake(dev: Any) -> None:
    part = one("artifact/model.onnx", ONNX) | {"head": base64.b64encode(ONNX[:20]).decode()}
    assert problems(check(dev, TEXT, [part])) == []
    pickled = one("artifact/model.data", pickle.dumps({"a": list(range(100))}))
    assert problems(check(dev, TEXT, [part, pickled]))[0][0] == "artifact/model.data"
    assert check(dev, TEXT, [part | {"head": "%%%"}]).json()["code"] == "invalid_check"


def test_hostile_names_are_each_told(dev: Any) -> None:
    names = ["artifact/a\u202eb.json", "artifact/x\x00.json", "artifact/é.json", "artifact/e\u0301.json", "artifact/A.json",
             "artifact/a.json", "/etc/passwd", "artifact\\b.json", "artifact/" + "n" * 400 + ".json"]  # fmt: skip
    files = [one("artifact/model.onnx", ONNX, head=False)]
    files += [{"path": name, "size_bytes": 1, "sha256": sha256(name.encode())} for name in names]
    told = {file for file, *_ in problems(check(dev, TEXT, files))}
    assert told == set(names) - {"artifact/e\u0301.json", "artifact/A.json"}  # the first of two twins stands


def test_what_the_nodes_offer_is_listed(dev: Any) -> None:
    own = {"image": IMAGE, "server": "triton", "backends": ["sluicegate-onnx"], "versions": {}}
    for name in ("n1", "n2"):
        Node.objects.create(name=name, runtimes=[own], facts={}, seen_at=timezone.now())
    body = check(dev, TEXT).json()
    assert body["runtimes"] == [
        {"image": IMAGE, "server": "triton", "backends": ["sluicegate-onnx"], "nodes": ["n1", "n2"]}
    ]
    assert body["is_offered"] is True


def test_other_peoples_models_are_not_there(dev: Any, api: Callable[..., Any]) -> None:
    assert check(api(person("eve", team="audio")), TEXT).status_code == 404
    assert check(api(), TEXT).status_code == 401
    assert check(dev, "x" * 300_000).json()["code"] == "document_too_long"


def test_a_plan_tells_its_tensorrt_and_where_it_cannot_load(dev: Any) -> None:
    runtime = {"image": IMAGE, "server": "triton", "backends": ["tensorrt"], "versions": {"tensorrt": "10.4.0"}}
    make_node("newer", runtimes=[runtime])
    make_node("same", runtimes=[{**runtime, "versions": {"tensorrt": "10.3.0"}}])
    document = yaml.safe_load(TEXT)
    document["runtime"]["backend"] = "tensorrt"
    document["serving"]["instance_group"] = [{"kind": "gpu", "count": 1}]
    document["envelope"] = {"accelerator": {"vendor": "nvidia"}}
    told = check(dev, document, [one("artifact/model.plan", plan_file())]).json()
    assert told["problems"] == [] and told["plan_tensorrt"] == "10.3.0.26"
    assert told["warnings"] == ["newer: The node has TensorRT 10.4.0; the plan loads in 10.3.0.26 only."]
    assert told["plan_flavour"] == "standard"
    unread = check(dev, document, [one("artifact/model.plan", plan_file(), head=False)]).json()
    assert (unread["plan_tensorrt"], unread["warnings"]) == (None, [])
