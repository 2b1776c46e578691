"""Layers, heads and head size of a transformer by its config.json, which decide the size of its key-value cache.

Source: Hugging Face transformers, PretrainedConfig and LlamaConfig: `num_key_value_heads` is `num_attention_heads` if it is left
out, and `head_dim` is `hidden_size / num_attention_heads`. `dtype` was called `torch_dtype` before transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from registry.core.formats.findings import LARGEST

_SIZES: Final = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
#: Bytes of an element, by the `dtype` of a config.json.
ELEMENT_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}


def facts_of(document: Any) -> dict[str, Any]:
    """{"transformer": {name: size, "dtype"?}} of a document that states layers, heads and hidden size; {} of others."""
    if not isinstance(document, Mapping):
        return {}
    sizes = {name: size for name in _SIZES if (size := _size(document, name))}
    if not {"num_hidden_layers", "num_attention_heads", "hidden_size"} <= set(sizes):
        return {}
    data_type = document.get("dtype") or document.get("torch_dtype")
    is_known = isinstance(data_type, str) and data_type in ELEMENT_BYTES
    return {"transformer": sizes | ({"dtype": data_type} if is_known else {})}


def cache_bytes_per_token(sizes: Mapping[str, Any], element_bytes: int | None = None) -> int | None:
    """Bytes of keys and values of one token in all layers: 2 × layers × key-value heads × head size × bytes of an element.

    `element_bytes` None: those of the stated `dtype`. None if a size is missing. Full attention in every layer is assumed: layers
    with a sliding window hold less.
    """
    layers, heads = _size(sizes, "num_hidden_layers"), _size(sizes, "num_attention_heads")
    own = _size(sizes, "num_key_value_heads") if "num_key_value_heads" in sizes else heads
    head = _size(sizes, "head_dim") or (_size(sizes, "hidden_size") // heads if heads else 0)
    each = element_bytes or ELEMENT_BYTES.get(sizes.get("dtype", ""), 0)
    return 2 * layers * own * head * each or None


def _size(sizes: Mapping[str, Any], name: str) -> int:
    """0 for a value that is no size, such as a list of one number for each layer."""
    value = sizes.get(name)
    return value if type(value) is int and 0 < value <= LARGEST else 0
