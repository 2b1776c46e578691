"""What reviewers of source code cannot see: characters that change how it is shown, and encodings that change what it says.

Such a file is sealed as it is; whoever judges its waiver is told. Source: Boucher and Anderson, "Trojan Source" (CVE-2021-42574);
Unicode UTS 55, section 3.1.
"""

from __future__ import annotations

import re
from typing import Any, Final

from registry.core.formats.window import Window

#: So much of a file is read, and so many places in it are told of.
MOST_READ: Final = 4 << 20
MOST_TOLD: Final = 20
#: Bidirectional controls, invisible separators and joiners, and a byte order mark beyond the beginning.
_HIDDEN: Final = re.compile("[\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
#: A declared encoding (PEP 263) counts in the first two lines alone, however long they are and whichever way they end.
_LINE_END: Final = re.compile(rb"\r\n?|\n")
_CODING: Final = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN: Final = re.compile(rb"(?i)utf-?8(-sig)?|us-?ascii|ascii")


def hidden_in(data: bytes) -> list[str]:
    """`line 3: U+202E`, for every such character, and the declared encoding where it is another one than UTF-8."""
    found = []
    for first in _LINE_END.split(data, maxsplit=2)[:2]:
        coding = _CODING.match(first)
        if coding is not None and not _PLAIN.fullmatch(coding[1]):
            found.append(f"declared encoding {coding[1].decode('ascii', 'replace')}")
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    for number, line in enumerate(text.split("\n"), start=1):
        found += [f"line {number}: U+{ord(char):04X}" for char in dict.fromkeys(_HIDDEN.findall(line))]
        if len(found) >= MOST_TOLD:
            return [*found[: MOST_TOLD - 1], "and more"]
    return found


def facts_of_source(window: Window) -> dict[str, Any]:
    """{"hidden"}, where there is anything of the kind in the first 4 MiB; what lies beyond those is said to be unread."""
    found = hidden_in(window.head(MOST_READ))
    if window.size > MOST_READ:
        found.append(f"nothing beyond the first {MOST_READ} bytes was read")
    return {"hidden": found} if found else {}
