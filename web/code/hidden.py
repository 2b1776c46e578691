"""Characters that a reader does not see, or that make text look like other text: shown as their boxed code points.

Source: Boucher and Anderson, "Trojan Source" (CVE-2021-42574); Unicode UTS 55, section 3.1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

#: Controls (but tabs, which are shown as such, and line ends), bidirectional controls, separators and joiners without width, line
#: and paragraph separators, tags, fillers that are drawn as nothing, and halves of characters.
HIDDEN: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
#: Characters that change the order in which later text is drawn.
_ORDER: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: Places that a warning names.
MOST_NAMED: Final = 5


def code_point(char: str) -> str:
    return f"U+{ord(char):04X}"


def name_of(char: str) -> str:
    """The character's name, such as RIGHT-TO-LEFT OVERRIDE; controls have none."""
    return unicodedata.name(char, "a control character")


def warning_of(lines: Iterable[str]) -> str:
    """A sentence on the hidden characters in these lines, which begin at 1; empty without any."""
    places: list[str] = []
    count, told_of, is_reordered = 0, 0, False
    for number, line in enumerate(lines, 1):
        found = HIDDEN.findall(line)
        count += len(found)
        told_of += bool(found)
        is_reordered = is_reordered or _ORDER.search(line) is not None
        if found and len(places) < MOST_NAMED:
            places.append(f"line {number}: {', '.join(dict.fromkeys(map(code_point, found[:10])))}")
    if not count:
        return ""
    dangers = (
        "some of them draw text in another order than it is read in" if is_reordered else "a reader does not see them"
    )
    noun = "character" if count == 1 else "characters"
    return f"{count} hidden {noun} ({'; '.join(places)}{'; …' if told_of > len(places) else ''}): {dangers}."
