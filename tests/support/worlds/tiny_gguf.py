"""A GGUF file of a Llama with random weights: 0.5 MB, loaded in a second, and it answers as any other."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

_WIDTH, _HEADS, _INNER, _LAYERS = 64, 4, 128, 2
#: The vocabulary of a sentencepiece tokenizer: three special tokens, every byte, and the printable letters.
_BYTES = [f"<0x{number:02X}>" for number in range(256)]
_LETTERS = ["\u2581", *map(chr, range(33, 127))]
_TOKENS = ["<unk>", "<s>", "</s>", *_BYTES, *_LETTERS]
_UNKNOWN, _CONTROL, _BYTE, _NORMAL = 2, 3, 6, 1
_TYPES = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * len(_BYTES), *[_NORMAL] * len(_LETTERS)]


#: A chat template that takes every role.
PLAIN_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
#: The same, but it asks roles to alternate, as the templates of several published models do.
STRICT_TEMPLATE = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% endfor %}" + PLAIN_TEMPLATE
)


def tiny_gguf(seed: int = 0, template: str = PLAIN_TEMPLATE) -> bytes:
    """`seed` draws the weights. Source: ggml docs/gguf.md."""
    tensors = _tensors(np.random.default_rng(seed))
    settings = _settings() | {"tokenizer.chat_template": template}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    head += b"".join(_text(name) + _value(value) for name, value in settings.items())
    data = b""
    for name, array in tensors.items():
        sizes = b"".join(struct.pack("<Q", size) for size in reversed(array.shape))
        head += _text(name) + struct.pack("<I", array.ndim) + sizes + struct.pack("<IQ", 0, len(data))
        data += array.tobytes() + bytes(-array.nbytes % 32)
    return head + bytes(-len(head) % 32) + data


def _settings() -> dict[str, Any]:
    scores = [0.0] * (3 + len(_BYTES)) + [-float(rank) for rank in range(len(_LETTERS))]
    return {
        "general.architecture": "llama", "general.name": "tiny", "llama.block_count": _LAYERS,
        "llama.context_length": 512, "llama.embedding_length": _WIDTH, "llama.feed_forward_length": _INNER,
        "llama.attention.head_count": _HEADS, "llama.attention.head_count_kv": _HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": _WIDTH // _HEADS,
        "llama.vocab_size": len(_TOKENS), "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": _TOKENS,
        "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": _TYPES, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip


def _tensors(random: np.random.Generator) -> dict[str, Any]:
    def drawn(*shape: int) -> Any:
        return (random.standard_normal(shape) * 0.2).astype("<f4")

    ones, words = np.ones(_WIDTH, "<f4"), len(_TOKENS)
    output = drawn(words, _WIDTH)
    output[: 3 + len(_BYTES)] *= 0.01  # it writes letters, hardly ever bytes, and seldom ends
    found = {"token_embd.weight": drawn(words, _WIDTH), "output_norm.weight": ones, "output.weight": output}
    for layer in range(_LAYERS):
        own = {name: drawn(_WIDTH, _WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        own |= {"attn_norm": ones, "ffn_norm": ones, "ffn_down": drawn(_WIDTH, _INNER)}
        own |= {name: drawn(_INNER, _WIDTH) for name in ("ffn_gate", "ffn_up")}
        found |= {f"blk.{layer}.{name}.weight": array for name, array in own.items()}
    return found


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: Any) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + _text(value)
        case float():
            return struct.pack("<If", 6, value)
        case int():
            return struct.pack("<II", 4, value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case [float(), *_]:
            return struct.pack("<IIQ", 9, 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
    return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
