"""A TensorRT plan, told by its first bytes. The rest is NVIDIA's own and is not read.

| bytes | what | source |
|---|---|---|
| 0 to 3 | `ftrt` since TensorRT 8.6, `ptrt` before | Netron, source/tensorrt.js; NVIDIA/TensorRT, samples/common/sampleEngines.cpp |
| 4 to 7 | serialization version, little endian | printPlanVersion in sampleEngines.cpp (`trtexec --getPlanVersionOnly`) |
| 24 to 27 | where that is 0 after `ftrt`: TensorRT's major, minor, patch, build | the same |

No public source says where a plan holds its compute capability, its optimization profiles, or whether it was built to load in
other versions or on other hardware, and NVIDIA offers no way to ask without loading it (NVIDIA/TensorRT issues 3073, 4233): the
envelope declares those. A plan that begins with a length and JSON was written by Ultralytics, and Triton cannot load it.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from registry.core.formats.findings import Malformed
from registry.core.formats.window import Window

MAGICS: Final = (b"ftrt", b"ptrt")
HEADER_BYTES: Final = 28
_FIX: Final = "Send what build_serialized_network returned, unchanged."


def read(window: Window) -> dict[str, Any]:
    """{"magic", "header", "serialization", "tensorrt"}: `header` is the first bytes as hex; `tensorrt`, such as 10.3.0.26, is
    None where the header is of a kind of which it is not known where the version stands. Raises Malformed."""
    head = window.head(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        raise Malformed(f"it has {len(head)} bytes, fewer than a plan's header", _FIX)
    if head[3:5] == b"\x00{":
        raise Malformed("it has metadata before the plan, which Triton cannot load", "Strip the metadata: " + _FIX)
    if head[:4] not in MAGICS:
        raise Malformed("it does not begin as a TensorRT plan does", _FIX)
    (serialization,) = struct.unpack_from("<I", head, 4)
    is_known = head[:4] == b"ftrt" and serialization == 0 and head[24] > 0
    version = ".".join(str(part) for part in head[24:28]) if is_known else None
    return {"magic": head[:4].decode(), "header": head.hex(), "serialization": serialization, "tensorrt": version}
