"""A TensorRT plan, told by its first bytes. The rest is NVIDIA's own and is not read.

Source: the magic that Netron recognises (source/tensorrt.js): `ftrt`, in older versions `ptrt`; a plan that begins
with a length and JSON was written by Ultralytics, and Triton cannot load it.
"""

from __future__ import annotations

from typing import Any, Final

from registry.core.formats.findings import Malformed
from registry.core.formats.window import Window

MAGICS: Final = (b"ftrt", b"ptrt")
_FIX: Final = "Send what build_serialized_network returned, unchanged."


def read(window: Window) -> dict[str, Any]:
    """{"magic", "header"}: the first bytes as hex. Raises Malformed."""
    head = window.head(24)
    if len(head) < 24:
        raise Malformed(f"it has {len(head)} bytes, fewer than a plan's header", _FIX)
    if head[3:5] == b"\x00{":
        raise Malformed("it has metadata before the plan, which Triton cannot load", "Strip the metadata: " + _FIX)
    if head[:4] not in MAGICS:
        raise Malformed("it does not begin as a TensorRT plan does", _FIX)
    return {"magic": head[:4].decode(), "header": head.hex()}
