"""The header of an engine plan. What follows the header is NVIDIA's own format and is not read.

| bytes | content | source |
|---|---|---|
| 0 to 3 | `ftrt` since TensorRT 8.6, `ptrt` before | Netron, source/tensorrt.js; NVIDIA/TensorRT, samples/common/sampleEngines.cpp |
| 0 to 3 | `vtrt` in TensorRT for RTX | measured |
| 4 to 7 | serialization version, little endian | printPlanVersion in sampleEngines.cpp (`trtexec --getPlanVersionOnly`) |
| 24 to 27 | the builder's major, minor, patch, build, if bytes 4 to 7 are 0 and the magic is not `ptrt` | the same; for RTX measured |
| 16 to 23 | TensorRT for RTX: bytes of the whole plan, little endian | measured |
| 28 to 31 | TensorRT for RTX: `vtrt` again | measured |
| 32 to 35 | TensorRT for RTX: one bit for each compute capability, little endian | measured |

*Measured*: plans that 1.5.0, 1.6.1 and 1.7.1 built for each compute capability and for several. tests/real/test_engine_plans.py repeats the
measurement with the installed version. Of a plan without the second `vtrt` these three fields are not read.

No public source names the place of optimization profiles and workspace, of the compute capability in a plan of TensorRT itself, or of
whether the plan loads in other versions or on other GPUs. NVIDIA answers that only by loading the plan (NVIDIA/TensorRT issues 3073,
4233): the envelope declares it. A plan that begins with a length and JSON was written by Ultralytics, and Triton cannot load it.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from registry.core.engine_flavour import RTX, STANDARD, Flavour
from registry.core.formats.findings import Malformed
from registry.core.formats.window import Window

_RTX_MAGIC: Final = b"vtrt"
MAGICS: Final[dict[bytes, Flavour]] = {b"ftrt": STANDARD, b"ptrt": STANDARD, _RTX_MAGIC: RTX}
HEADER_BYTES: Final = 28
_RTX_HEADER_BYTES: Final = 36
_FIX: Final = "Send what build_serialized_network returned, unchanged."


def read(window: Window) -> dict[str, Any]:
    """{"flavour", "magic", "header", "serialization", "tensorrt", "compute_capabilities"}. Raises Malformed.

    `header` is the first bytes as hex. `tensorrt` is the builder's version, such as 10.3.0.26, and `compute_capabilities` a list of
    texts such as 8.9; each is None if the place of the value in such a header is not known.
    """
    head = window.head(_RTX_HEADER_BYTES)
    if len(head) < (_RTX_HEADER_BYTES if head.startswith(_RTX_MAGIC) else HEADER_BYTES):
        raise Malformed(f"it has {len(head)} bytes, fewer than a plan's header", _FIX)
    if head[3:5] == b"\x00{":
        raise Malformed("it has metadata before the plan, which Triton cannot load", "Strip the metadata: " + _FIX)
    flavour = MAGICS.get(head[:4])
    if flavour is None:
        raise Malformed("it does not begin as a TensorRT plan does", _FIX)
    (serialization,) = struct.unpack_from("<I", head, 4)
    is_known = head[:4] != b"ptrt" and serialization == 0 and head[24] > 0
    return {
        "flavour": flavour.name,
        "magic": head[:4].decode(),
        "header": head[:HEADER_BYTES].hex(),
        "serialization": serialization,
        "tensorrt": ".".join(str(part) for part in head[24:28]) if is_known else None,
        "compute_capabilities": _capabilities(head, window.size) if flavour is RTX and is_known else None,
    }


def _capabilities(head: bytes, size_bytes: int) -> list[str] | None:
    """Those that a plan of TensorRT for RTX was built for; None if its header is laid out otherwise. Raises Malformed."""
    (whole,) = struct.unpack_from("<Q", head, 16)
    if head[28:32] != _RTX_MAGIC:
        return None
    if whole != size_bytes:
        kind = "truncated" if whole > size_bytes else "longer than the plan in it"
        raise Malformed(f"it is {kind}: its header counts {whole} bytes, and it has {size_bytes}", _FIX)
    (bits,) = struct.unpack_from("<I", head, 32)
    # The lowest bit is 7.5. A plan that was built for no named compute capability has a seventh bit, whose meaning is not known.
    if bits >> len(RTX.capabilities):
        return None  # a bit without a known meaning: the plan may run on more than the known ones
    return [name for bit, name in enumerate(RTX.capabilities) if bits >> bit & 1] or None
