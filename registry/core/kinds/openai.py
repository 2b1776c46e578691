"""Servers of OpenAI's HTTP API that their owners run and a static environment lists.

Source: answers of vLLM 0.32 on a CPU for `vllm`; the makers' documents for `sglang` and `nim`. The
owner's command line holds the options, so a release states none.
"""

from __future__ import annotations

from typing import Final

from registry.core.kinds.kind import Backend, ServerKind
from registry.core.kinds.llamacpp import LLAMACPP
from registry.core.kinds.texts import EVENTS, INTERFACES
from registry.core.kinds.words import Words

#: vLLM answers 503 when `--max-num-queued-reqs` is reached. The words are those of its error event
#: in a stream.
_WORDS: Final = Words(opens=('{"error":{"message":"',), full="engine is currently busy")


def _owned(name: str, health: str) -> ServerKind:
    return ServerKind(
        name=name,
        backends={name: Backend("artifact/config.json")},
        calls=LLAMACPP.calls,
        words=_WORDS,
        interfaces=INTERFACES,
        events=EVENTS,
        health=health,
        died="cannot schedule new futures after shutdown",
    )


OPENAI: Final = (_owned("vllm", "/health"), _owned("sglang", "/health"), _owned("nim", "/v1/health/ready"))
