"""Whether bytes are a pickle stream, and what it would import: read opcode by opcode, never run.

Source: pickletools, which names every opcode and runs none.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any, Final

#: The opcodes that bring in a name, and those that call what was brought in.
_IMPORTS: Final = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"}
#: Of a stream that states no protocol, these alone count as imports: weights close to 128 hold the other opcodes by chance.
#: EXT1 to EXT4 name what code registered before (copyreg.add_extension); without that, loading fails.
_OLD_IMPORTS: Final = _IMPORTS - {"EXT1", "EXT2", "EXT4"}
_RUNS: Final = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"}
_TEXTS: Final = ([pickletools.pyunicode], [pickletools.pybytes_or_str])
#: A stream that says its protocol and is longer than what was read of it counts after this many opcodes.
_ENOUGH: Final = 8
MOST_IMPORTS: Final = 200
#: Placeholder for names that the opcodes do not show, because the stream computes them while it is loaded.
HIDDEN: Final = "what cannot be told"


def is_pickle(head: bytes) -> bool:
    """Whether these first bytes of a file are those of a pickle.

    A stream of protocol 2 or later says so at once. An older one, which text can look like, is told by importing a name and
    then running something, with all that this takes on its stack; what comes after that would not be too late. A name that is
    taken from the stack (STACK_GLOBAL) needs a text before it.
    """
    says_so = head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5
    stack, count, has_import, has_text = list[bool](), 0, False, False  # True is a mark
    for opcode, _, _ in _opcodes(head):
        count += 1
        if says_so:
            if opcode.name == "STOP" or count >= _ENOUGH:
                return True
            continue
        if not _applied(opcode, stack):
            return False
        has_text = has_text or opcode.stack_after in _TEXTS
        has_import = has_import or (opcode.name in _OLD_IMPORTS and (has_text or opcode.name != "STACK_GLOBAL"))
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


def imports(data: bytes, *, is_whole: bool = True) -> list[str]:
    """The names that loading would import, such as `collections.OrderedDict`, then HIDDEN where there may be others.

    Several streams may follow one another, as `torch.save` once wrote them. `is_whole`: whether these are all the bytes.
    A name counts as told when its two parts are texts that were pushed, or fetched from the memo, right before it.
    """
    found: dict[str, None] = {}
    is_told, at = is_whole, 0
    while at < len(data) and (at == 0 or data[at : at + 1] == b"\x80"):
        names, ended_at = _imports_of_stream(data[at:])
        found |= dict.fromkeys(names)
        if not ended_at:
            is_told = False
            break
        at += ended_at
    hidden = [] if is_told and at and len(found) <= MOST_IMPORTS and HIDDEN not in found else [HIDDEN]
    return [name[:200] for name in found if name != HIDDEN][:MOST_IMPORTS] + hidden


def _imports_of_stream(data: bytes) -> tuple[list[str], int]:
    """What one stream imports, and where it ends; 0 for one that does not."""
    found: list[str] = []
    memo = dict[int, str | None]()
    texts: list[str | None] = []  # on top of the stack; None for one that is not known
    for opcode, argument, at in _opcodes(data):
        name = opcode.name
        if name == "STOP":
            return found, at + 1
        if name in {"MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"}:
            memo[len(memo) if name == "MEMOIZE" else int(argument)] = texts[-1] if texts else None
        elif name in {"GET", "BINGET", "LONG_BINGET"}:
            texts = [*texts[-1:], memo.get(int(argument))]
        elif isinstance(argument, str) and opcode.stack_after in _TEXTS:
            texts = [*texts[-1:], argument]
        elif name not in {"PROTO", "FRAME"}:
            if name in {"GLOBAL", "INST"}:
                found.append(str(argument).replace(" ", ".", 1))
            elif name in _IMPORTS:
                parts = [one for one in texts if one is not None] if name == "STACK_GLOBAL" else []
                found.append(".".join(parts) if len(parts) == 2 else HIDDEN)
            texts = []
    return found, 0


def _opcodes(data: bytes) -> Iterator[tuple[pickletools.OpcodeInfo, Any, int]]:
    """(opcode, argument, place) of each up to STOP, or to where the bytes are no pickle."""
    try:
        for opcode, argument, at in pickletools.genops(data):
            yield opcode, argument, at or 0
    except Exception:  # any parse error: keep what was read so far
        return
