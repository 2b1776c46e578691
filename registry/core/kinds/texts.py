"""Text models behind OpenAI's HTTP API, as several server kinds have it: one text in, one text out.

The calls that gates, probes and golden sets make ask for the likeliest words (temperature 0), so
that one text always has one answer. The length of an answer is the server's own default, which the
release declares. Source: OpenAI's API reference, `/v1/completions` and `/v1/chat/completions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.core.kinds.events import Events
from registry.core.kinds.kind import Codec

#: Names of the one input and the one output.
PROMPT, TEXT = "prompt", "text"
#: In the place of the input: the whole body of a request, sent as it is.
BODY = "body"


@dataclass(frozen=True)
class TextCodec:
    """Implements `Codec`."""

    path: str
    member: str  # of a request, which holds the text
    asked: Callable[[str], dict[str, Any]]
    answered: Callable[[Any], Any]
    models: str = "/v1/models"

    def request(self, model: str, text: str) -> bytes:
        return json.dumps({"model": model, **self.asked(text), "temperature": 0, "seed": 0}).encode()

    def answer(self, body: bytes) -> str:
        try:
            text = self.answered(json.loads(body)["choices"][0])
        except (LookupError, TypeError) as error:
            raise ValueError("no choice with a text") from error
        if not isinstance(text, str):
            raise ValueError("the text of the choice is none")
        return text

    def wrong(self, model: str) -> dict[str, bytes]:
        def body(**changes: Any) -> bytes:
            return json.dumps({"model": model, **self.asked("hello"), **changes}).encode()

        return {
            "a body that is no JSON": b"{",
            f"a request without {self.member}": json.dumps({"model": model}).encode(),
            f"{self.member} of another type": body(**{self.member: {"of": "another type"}}),
            "a length of the answer that is no number": body(max_tokens="many"),
        }

    def listed(self, body: bytes) -> set[str]:
        try:
            return {str(one["id"]) for one in json.loads(body)["data"]}
        except (LookupError, TypeError, ValueError):
            return set()


COMPLETIONS: Final[Codec] = TextCodec(
    "/v1/completions", "prompt", lambda text: {"prompt": text}, lambda choice: choice["text"]
)
CHAT: Final[Codec] = TextCodec(
    "/v1/chat/completions",
    "messages",
    lambda text: {"messages": [{"role": "user", "content": text}]},
    lambda choice: choice["message"]["content"],
)
#: Of both interfaces: `delta.content` of chats and `text` of completions, reasoning, refusals and tool
#: calls. Source: OpenAI's API reference; errors and reasons of servers: llama.cpp, vLLM, SGLang.
EVENTS: Final = Events(
    done="[DONE]",
    texts=("content", "text", "reasoning_content", "reasoning", "refusal"),
    lists=("tool_calls",),
    error="error",
    code="code",
    busy=(429, 503),
    reason="finish_reason",
    failures=("error", "abort"),
)
#: What `serving` is for every text model. The server batches by itself.
SERVING: Final[Mapping[str, Any]] = {
    "max_batch_size": 0,
    "inputs": [{"name": PROMPT, "data_type": "BYTES", "dims": [1]}],
    "outputs": [{"name": TEXT, "data_type": "BYTES", "dims": [1]}],
}
#: By `serving.interface`.
INTERFACES: Final = {"completions": COMPLETIONS, "chat": CHAT}
