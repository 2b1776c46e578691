"""A TorchScript archive: a zip file that holds code. It is recognised, never loaded.

Source: pytorch torch/csrc/jit/docs/serialization.md: <name>/code/…, <name>/data.pkl, <name>/constants.pkl,
and the tensors' bytes, unpacked, as <name>/data/0, … and <name>/constants/0, ….
"""

from __future__ import annotations

import re
from typing import Any, Final

from registry.core.formats import pickles, zipped
from registry.core.formats.findings import Malformed
from registry.core.formats.window import Window

#: So much is read of a pickle.
MOST_READ: Final = 1 << 20
#: Records that hold the bytes of tensors.
_RECORD: Final = re.compile(r"/(data|constants)/[^/]+$")
_FIX: Final = "Export it with torch.jit.save, or send the weights as safetensors."


def read(window: Window) -> dict[str, Any]:
    """{"members", "code_files", "imports", "weights_bytes"}. Raises Malformed if torch.jit.load could not load the file."""
    head = window.head(1 << 16)
    if not head.startswith(b"PK\x03\x04"):
        what = "a bare pickle" if pickles.is_pickle(head) else "no zip archive"
        raise Malformed(f"it is {what}, and a TorchScript file is a zip archive", _FIX)
    members = zipped.members(window)
    code = [member for member in members if "/code/" in member.name and member.name.endswith(".py")]
    if not code or not any(member.name.endswith("/data.pkl") for member in members):
        raise Malformed("it holds no TorchScript code: it is a state_dict or another archive", _FIX)
    return {
        "members": len(members),
        "code_files": len(code),
        "imports": zipped_imports(window, "/data.pkl"),
        "weights_bytes": min(sum(one.size_bytes for one in members if _RECORD.search(one.name)), window.size),
    }


def zipped_imports(window: Window, ending: str) -> list[str]:
    """What the pickles of a zip archive would import whose names have this ending, in the order of their names."""
    found: dict[str, None] = {}
    for one in zipped.members(window):
        if one.name.endswith(ending):
            data = zipped.stored(window, one, MOST_READ)
            found |= dict.fromkeys(pickles.imports(data, is_whole=len(data) == one.size_bytes))
    return sorted(found, key=lambda name: (name == pickles.HIDDEN, name))
