"""Whether bytes are a pickle stream, and what it would import: read opcode by opcode, never run.

Source: pickletools, which names every opcode and runs none.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any, Final

#: The opcodes that call or import something: a stream without them is data.
_CALLS: Final = {
    "GLOBAL",
    "STACK_GLOBAL",
    "INST",
    "OBJ",
    "NEWOBJ",
    "NEWOBJ_EX",
    "REDUCE",
    "BUILD",
    "EXT1",
    "EXT2",
    "EXT4",
}
_RUNS: Final = _CALLS - {"GLOBAL", "STACK_GLOBAL"}
#: A stream that is longer than what was read of it counts after this many opcodes.
_ENOUGH: Final = 8
MOST_IMPORTS: Final = 200


def is_pickle(head: bytes) -> bool:
    """Whether these first bytes of a file are those of a pickle.

    A stream of protocol 2 or later says so at once; an older one is told by reaching its end, having run something.
    """
    seen: list[str] = []
    for name, _ in _opcodes(head):
        seen.append(name)
    ended = "STOP" in seen
    if head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5:
        return ended or len(seen) >= _ENOUGH
    return bool(_RUNS & set(seen)) and (ended or len(seen) >= 8 * _ENOUGH)


def imports(data: bytes) -> list[str]:
    """The names that the stream imports, such as `collections.OrderedDict`, as far as these bytes go."""
    found: dict[str, None] = {}
    texts: list[str] = []
    for name, argument in _opcodes(data):
        if name in {"GLOBAL", "INST"} and isinstance(argument, str):
            found[argument.replace(" ", ".", 1)] = None
        elif name == "STACK_GLOBAL":
            found[".".join(texts[-2:]) or "?"] = None
        elif isinstance(argument, str):
            texts = [*texts[-1:], argument]
    return [name[:200] for name in found][:MOST_IMPORTS]


def _opcodes(data: bytes) -> Iterator[tuple[str, Any]]:
    """(name, argument) of each opcode up to STOP, or to where the bytes are no pickle."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            yield opcode.name, argument
    except Exception:  # whatever it stumbles over, what was read so far is what is known
        return
