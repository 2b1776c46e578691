"""What notes and review comments may hold: plain text, tags, and the places of a comparison that a comment may stand at."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from registry.core.file_rules import path_problems
from registry.core.schema import Problem

LONGEST_TEXT: Final = 4_000
MOST_TAGS: Final = 20
#: Parts of a comparison, in the order of its page.
SECTIONS: Final = ("verdict", "metrics", "golden", "configuration", "code", "tensors")
SIDES: Final = ("old", "new")
_TAG: Final = re.compile(r"[a-z0-9][a-z0-9._=:/-]{0,39}")
_MOST_LINE: Final = 2_000_000


def note_problems(text: str, tags: Sequence[str]) -> list[Problem]:
    """Why this cannot be a note. Text may be empty where there are tags, and tags may be none: so a note is taken back."""
    problems = text_problems(text)
    if len(tags) > MOST_TAGS:
        problems.append(Problem("tags", f"{len(tags)} tags are too many.", f"Keep to {MOST_TAGS}."))
    for tag in tags[:MOST_TAGS]:
        if not _TAG.fullmatch(tag):
            fix = "Use 1 to 40 lower-case letters, digits and . _ = : / -, such as precision=int8."
            problems.append(Problem("tags", f"{ascii(tag)[:60]} is no tag.", fix))
    if len(set(tags)) != len(tags):
        problems.append(Problem("tags", "a tag is there twice.", "Name each once."))
    return problems


def text_problems(text: str, *, is_needed: bool = False) -> list[Problem]:
    """Why this cannot be the text of a note or a comment: lines and tabs are its only controls."""
    if is_needed and not text.strip():
        return [Problem("text", "it is empty.", "Write what you want to say.")]
    if len(text) > LONGEST_TEXT:
        return [Problem("text", f"it has {len(text)} characters.", f"Write at most {LONGEST_TEXT}.")]
    if any(unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t\r" for char in text):
        return [Problem("text", "it holds control characters.", "Write plain text.")]
    return []


def place_problems(section: str, path: str, side: str, line: int | None) -> list[Problem]:
    """Why a comment cannot stand there. A line needs a path; a path may stand by itself for the whole file."""
    problems = []
    if section not in SECTIONS:
        problems.append(
            Problem("section", f"there is no section {ascii(section)[:40]}.", f"One of {', '.join(SECTIONS)}.")
        )
    if side not in SIDES:
        problems.append(Problem("side", f"{ascii(side)[:40]} is no side.", "Write old or new."))
    if path and path_problems(path):
        problems.append(Problem("path", "it is no path of a release's file.", "Name one, such as artifact/model.py."))
    if line is not None and (not path or not 1 <= line <= _MOST_LINE):
        problems.append(Problem("line", "it is no line of a file.", "Name a file and one of its lines, from 1."))
    return problems
