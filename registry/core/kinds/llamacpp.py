"""llama.cpp's HTTP server, from the wheel `xllamacpp`: one GGUF file, behind OpenAI's API.

Source: the server itself (2026.10); `tests/real/test_llamacpp.py` holds the requests behind
`WORDS`.
"""

from __future__ import annotations

from typing import Final

from registry.core.kinds.kind import HTTP, Backend, Calls, Image, ServerKind, ServerPlace, Start
from registry.core.kinds.texts import EVENTS, INTERFACES
from registry.core.kinds.words import Words
from registry.core.schema import Integer, Record, may

_PATH: Final = r"^/v1/(chat/)?completions$"
#: The server answers 500 to some requests that the model never sees. Its 400 stays, also if a
#: release's chat template refuses the chat: most templates do so for some callers' mistakes.
WORDS: Final = Words(
    opens=tuple(f'{{"error":{{"code":{status},"message":"' for status in (400, 500, 501)),
    mistakes=(
        "image input is not supported", "audio input is not supported", "video input is not supported",
        "Failed to parse tools", "Failed to parse messages", "Failed to parse tool choice",
        "This server does not support",
    ),
)  # fmt: skip
OPTIONS: Final = Record(
    {
        "n_ctx": may(Integer(16, 1 << 22, unit="tokens of one slot's context"), 4096),
        "n_predict": may(Integer(1, 1 << 20, unit="tokens of an answer"), 256),
    }
)


def _start(place: ServerPlace) -> Start:
    program = place.venv / "bin" / "python", "-I", place.loads / "model.py"
    return Start((*map(str, program), place.address, str(place.ports[HTTP]), place.model))


LLAMACPP: Final = ServerKind(
    name="llamacpp",
    backends={"gguf": Backend("artifact/model.gguf", runs_as="llama.cpp", runner="llamacpp_server.py")},
    calls=Calls(
        inference={HTTP: _PATH},
        words="POST to /v1/chat/completions and /v1/completions, and ready",
        stream={HTTP: _PATH},
        names=("/v1/completions", "/v1/chat/completions"),
    ),
    words=WORDS,
    image=Image(
        "local/llamacpp",
        "llamacpp.lock",
        (("xllamacpp",),),
        ("xllamacpp/",),
        lambda _: {"server": "xllamacpp/xllamacpp.*.so"},
        ("llamacpp_server.py",),
    ),
    start=_start,
    # A stream in flight goes on for a while after the signal. The gateway sends none to a server that leaves.
    exit_grace_s=10.0,
    writes={"gguf": ("model.py", "sluicegate.json")},
    interfaces=INTERFACES,
    options=OPTIONS,
    has_gpu=False,
    health="/health",
    events=EVENTS,
)
