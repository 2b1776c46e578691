"""Server kinds: what each asks of release.yaml, its requests and answers, and its words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from registry.core.kinds import BACKEND_FILES, KINDS, SPOKEN, kind_of, spoken, spoken_by
from registry.core.kinds.llamacpp import LLAMACPP
from registry.core.kinds.texts import BODY, CHAT, COMPLETIONS, INTERFACES, PROMPT, TEXT
from registry.core.kinds.words import meant_status
from registry.core.spec import Spec, read_spec
from serving.ports import InferenceError
from serving.servers.text_server import body_of
from serving.traffic.control_plane.calls import NAMING_PATHS
from validators.execution.runners.contract import gateway_bytes

IMAGE = "local/llamacpp@sha256:" + "a" * 64


def read(serving: dict[str, Any], **runtime: str) -> tuple[Spec | None, list[tuple[str, str]]]:
    own = {"image": IMAGE, "server": "llamacpp", "backend": "gguf"} | runtime
    spec, problems = read_spec({"model": "chatter", "runtime": own, "serving": serving})
    return spec, [(one.field, one.fix) for one in problems]


def test_each_kind_is_known_by_its_name_and_no_two_share_a_backend() -> None:
    assert all(kind.name == name for name, kind in KINDS.items())
    assert len(BACKEND_FILES) == sum(len(kind.backends) for kind in KINDS.values())
    assert kind_of({"runtime": {}}).name == "triton"  # manifests of before kinds were named
    with pytest.raises(KeyError):
        kind_of({"runtime": {"server": "of another version"}})


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_each_kind_states_paths_that_an_http_server_has(kind: Any) -> None:
    paths = [*kind.calls.inference.values(), *kind.calls.stream.values(), *kind.calls.question.values()]
    assert all(re.compile(path) for path in paths) and all(
        path.startswith("^") and path.endswith("$") for path in paths
    )
    assert "http" in kind.calls.protocols
    for path in kind.calls.names:
        assert re.match(kind.calls.inference["http"], path) and path in NAMING_PATHS
    assert {codec.path for codec in kind.interfaces.values()} <= set(kind.calls.names)


def test_a_text_release_needs_an_interface_and_nothing_else() -> None:
    spec, problems = read({"interface": "chat"})
    assert spec is not None and problems == []
    assert spec.serving["options"] == {"n_ctx": 4096, "n_predict": 256}
    assert [one["name"] for side in ("inputs", "outputs") for one in spec.serving[side]] == [PROMPT, TEXT]
    assert read_spec(spec.as_json()) == (spec, [])
    manifest = {"runtime": spec.runtime, "serving": spec.serving}
    assert spoken(spoken_by(manifest)) == (LLAMACPP, CHAT) and spoken_by(manifest) in SPOKEN


@pytest.mark.parametrize("kind", ["vllm", "sglang", "nim"])
def test_a_release_for_a_server_that_its_owner_runs_states_no_options(kind: str) -> None:
    spec, problems = read({"interface": "chat"}, server=kind, backend=kind)
    assert spec is not None and problems == [] and spec.serving["options"] == {} and not KINDS[kind].runnable
    assert spoken_by({"runtime": spec.runtime, "serving": spec.serving}) == f"{kind}/chat"
    _, problems = read({"interface": "chat", "options": {"n_ctx": 256}}, server=kind, backend=kind)
    assert [field for field, _ in problems] == ["serving.options.n_ctx"]


@pytest.mark.parametrize(
    ("serving", "runtime", "problem"),
    [
        ({}, {}, ("serving.interface", "Write completions or chat.")),
        ({"interface": "embeddings"}, {}, ("serving.interface", "Write completions or chat.")),
        ({"interface": "chat", "max_batch_size": 4}, {}, ("serving.max_batch_size", "Remove it.")),
        ({"interface": "chat", "decoupled": True}, {}, ("serving.decoupled", "Remove it.")),
        ({"interface": "chat", "options": {"n_ctx": 0}}, {}, ("serving.options.n_ctx", None)),
        ({"interface": "chat", "options": {"ctx": 9}}, {}, ("serving.options.ctx", None)),
        ({"interface": "chat", "instance_group": [{"kind": "gpu"}]}, {}, ("serving.instance_group[0].kind", "Write cpu.")),
        ({"interface": "chat"}, {"backend": "python"}, ("runtime.backend", "Write runtime.server triton, or runtime.backend gguf.")),
    ],
)  # fmt: skip
def test_what_a_text_release_cannot_have_is_refused(
    serving: dict[str, Any], runtime: dict[str, str], problem: tuple[str, str | None]
) -> None:
    spec, problems = read(serving, **runtime)
    assert spec is None
    field, fix = problem
    assert any(at == field and fix in (None, said) for at, said in problems), problems


def test_a_server_of_tensors_has_no_interface() -> None:
    tensor = {"name": "x", "data_type": "FP32", "dims": [1]}
    serving = {"max_batch_size": 0, "inputs": [tensor], "outputs": [tensor]}
    runtime = {"server": "triton", "backend": "python"}
    assert read(serving, **runtime)[1] == []
    assert read(serving | {"interface": "chat"}, **runtime)[1] == [("serving.interface", "Remove it.")]
    spec, _ = read(serving, **runtime)
    assert spec is not None and not {"interface", "options"} & spec.serving.keys()  # its digest is that of before
    assert spoken_by({"runtime": spec.runtime, "serving": spec.serving}) == ""


def test_one_text_has_one_request_and_its_answer_is_read() -> None:
    asked = json.loads(CHAT.request("chatter", "hé"))
    assert asked == {
        "model": "chatter", "messages": [{"role": "user", "content": "hé"}], "temperature": 0, "seed": 0,
    }  # fmt: skip
    assert json.loads(COMPLETIONS.request("chatter", "hi"))["prompt"] == "hi"
    assert CHAT.answer(b'{"choices": [{"message": {"content": "yes"}}]}') == "yes"
    assert COMPLETIONS.answer(b'{"choices": [{"text": "yes"}]}') == "yes"


@pytest.mark.parametrize("codec", INTERFACES.values(), ids=INTERFACES.keys())
@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"choices": []}', b'{"choices": [{"text": 1, "message": {}}]}'])
def test_an_answer_without_a_text_is_none(codec: Any, body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own error is one too
        codec.answer(body)


def test_a_request_is_one_text() -> None:
    def one(*values: object) -> Any:
        return {PROMPT: np.array(values, dtype=object)}

    assert body_of(CHAT, "m", one(b"hi")) == body_of(CHAT, "m", one("hi")) == CHAT.request("m", "hi")
    assert body_of(CHAT, "m", {BODY: np.array([b"{"], dtype=object)}) == b"{"
    for inputs in (one("a", "b"), one(1), one(b"\xff"), {**one("a"), "x": np.zeros(1)}, {}):
        with pytest.raises(InferenceError) as caught:
            body_of(CHAT, "m", inputs)
        assert caught.value.reason == "rejected"


def test_a_kind_with_a_codec_of_its_own_is_asked_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(LLAMACPP, name="other", interfaces={"chat": COMPLETIONS})
    monkeypatch.setitem(KINDS, "other", other)  # type: ignore[arg-type]
    inputs = {PROMPT: np.array(["hi"], dtype=object)}
    assert gateway_bytes("m", inputs, speaks="other/chat") == len(COMPLETIONS.request("m", "hi"))
    assert gateway_bytes("m", inputs, speaks="llamacpp/chat") == len(CHAT.request("m", "hi"))


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (500, "image input is not supported - hint", 400),
        (500, "Failed to parse tools: Unsupported tool type", 400),
        (501, "This server does not support embeddings.", 400),
        (500, "Compute error.", 500),
        (500, "the model says: image input is not supported", 500),
        (400, "Unable to generate parser for this template. Automatic", 400),  # a caller may be to blame
        (503, "Loading model", 503),
    ],
)
def test_llamacpps_words(status: int, said: str, expected: int) -> None:
    assert meant_status(LLAMACPP.words, status, said, is_front=True) == expected
