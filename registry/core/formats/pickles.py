"""Whether bytes are a pickle stream, and what it would import: read opcode by opcode, never run.

Source: pickletools, which names every opcode and runs none.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any, Final

#: The opcodes that bring in a name, and those that call what was brought in.
_IMPORTS: Final = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"}
_RUNS: Final = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"}
#: A stream that says its protocol and is longer than what was read of it counts after this many opcodes.
_ENOUGH: Final = 8
MOST_IMPORTS: Final = 200


def is_pickle(head: bytes) -> bool:
    """Whether these first bytes of a file are those of a pickle.

    A stream of protocol 2 or later says so at once. An older one, which text can look like, is told by importing a name and
    then running something, with all that this takes on its stack; what comes after that would not be too late.
    """
    says_so = head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5
    stack, count, has_import = list[bool](), 0, False  # True is a mark
    for opcode, _ in _opcodes(head):
        count += 1
        if says_so:
            if opcode.name == "STOP" or count >= _ENOUGH:
                return True
            continue
        if not _applied(opcode, stack):
            return False
        has_import = has_import or opcode.name in _IMPORTS
        if has_import and opcode.name in _RUNS:
            return True
    return False


def _applied(opcode: pickletools.OpcodeInfo, stack: list[bool]) -> bool:
    """Whether the stack has what the opcode takes; then it has what the opcode leaves. Source: pickletools.dis."""
    before, after = list(opcode.stack_before), list(opcode.stack_after)
    takes = len(before)
    if pickletools.markobject in before or (opcode.name == "POP" and stack and stack[-1]):
        if True not in stack:
            return False
        while not stack.pop():
            pass
        takes = before.index(pickletools.markobject) if pickletools.markobject in before else 0
    if len(stack) < takes:
        return False
    del stack[len(stack) - takes :]
    stack.extend(one is pickletools.markobject for one in after)
    return True


def imports(data: bytes) -> list[str]:
    """The names that the stream imports, such as `collections.OrderedDict`, as far as these bytes go."""
    found: dict[str, None] = {}
    texts: list[str] = []
    for opcode, argument in _opcodes(data):
        name = opcode.name
        if name in {"GLOBAL", "INST"} and isinstance(argument, str):
            found[argument.replace(" ", ".", 1)] = None
        elif name == "STACK_GLOBAL":
            found[".".join(texts[-2:]) or "?"] = None
        elif isinstance(argument, str):
            texts = [*texts[-1:], argument]
    return [name[:200] for name in found][:MOST_IMPORTS]


def _opcodes(data: bytes) -> Iterator[tuple[pickletools.OpcodeInfo, Any]]:
    """(opcode, argument) of each up to STOP, or to where the bytes are no pickle."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            yield opcode, argument
    except Exception:  # whatever it stumbles over, what was read so far is what is known
        return
