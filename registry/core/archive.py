"""What an archive of a release folder holds, judged by its list of members before a byte of it is unpacked.

Everything that could land outside its folder, twice in one place, or never end is refused; nothing is mended or passed
over in silence but what systems add by themselves (`__MACOSX`, `.DS_Store`) and loose notes beside release.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from registry.core.file_rules import CONFIG_FILES, MOST_FILES, name_problems, set_problems
from registry.core.schema import Problem

DOCUMENT: Final = "release.yaml"
PARTS: Final = ("artifact", "tokenizer")
#: Members of every kind, so that a list of folders or of notes cannot be endless either.
MOST_MEMBERS: Final = 2 * MOST_FILES + 1000
#: Deflate packs at most 1032 to 1; what claims more is built to fill a disk. Source: zlib's technical details.
LARGEST_RATIO: Final = 1100
_ADDED_BY_SYSTEMS: Final = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini")


class MemberKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True)
class Member:
    """One member as the archive names it. `start` is where its packed bytes lie, where that can be told."""

    name: str
    kind: MemberKind
    size_bytes: int
    packed_bytes: int | None = None
    start: int | None = None


@dataclass(frozen=True)
class Contents:
    """`files`: path in the release folder → position of its member. Empty with problems."""

    files: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    size_bytes: int = 0


def read_members(members: Sequence[Member], *, most_bytes: int) -> Contents:
    """What may be unpacked, and as what. `most_bytes` is all that the place for it can take."""
    problems = [*_too_much(members, most_bytes), *(p for member in members[:MOST_MEMBERS] for p in _unsafe(member))]
    if problems:
        return Contents(problems=tuple(problems))
    top = _top(members)
    named = [(member.name.rstrip("/").removeprefix(top), i) for i, member in enumerate(members)]
    inside = [(path, i) for path, i in named if path and members[i].kind is MemberKind.FILE and not _is_added(path)]
    problems += _misplaced(path for path, i in named if not _is_added(path))
    kept = [(path, i) for path, i in inside if path == DOCUMENT or path in CONFIG_FILES or path.split("/")[0] in PARTS]
    paths = [path for path, _ in kept]
    if paths.count(DOCUMENT) != 1:
        fix = "Pack the release folder, or what is in it, with one release.yaml at the top."
        problems.append(Problem(DOCUMENT, f"the archive has {paths.count(DOCUMENT)} of it at its top.", fix))
    sent = [path for path in paths if path != DOCUMENT]
    found = set_problems(sent)
    problems += [problem.at(sent[_index(problem.field)]) for problem in found]
    if len(sent) > MOST_FILES:
        problems.append(
            Problem("files", f"{len(sent)} files are more than {MOST_FILES}.", "Pack small files together.")
        )
    if problems:
        return Contents(problems=tuple(problems))
    return Contents(dict(kept), size_bytes=sum(members[i].size_bytes for _, i in kept))


def _too_much(members: Sequence[Member], most_bytes: int) -> list[Problem]:
    """A bomb, by what the members claim. Unpacking checks each member against its claimed size."""
    problems = []
    if len(members) > MOST_MEMBERS:
        problems.append(
            Problem("", f"the archive has more than {MOST_MEMBERS} members.", "Pack only the release folder.")
        )
    total = sum(member.size_bytes for member in members)
    if total > most_bytes:
        said = f"unpacked it takes {total} bytes, and there is room for {most_bytes}."
        problems.append(Problem("", said, "Free disk space, set TMPDIR to a larger place, or push the folder itself."))
    for member in members:
        if member.packed_bytes is not None and member.size_bytes > LARGEST_RATIO * max(member.packed_bytes, 1):
            said = f"{member.size_bytes} bytes are said to be packed in {member.packed_bytes}."
            problems.append(
                Problem(_shown(member.name), said, "Pack the archive again; this one is damaged, or a bomb.")
            )
    return problems + _overlapping(members)


def _overlapping(members: Iterable[Member]) -> list[Problem]:
    """Members that share packed bytes: how a small archive claims to be a large one."""
    placed = sorted((m.start, m.packed_bytes or 0, m.name) for m in members if m.start is not None)
    end = 0
    for start, packed, name in placed:
        if start < end:
            fix = "Pack the archive again; this one is damaged, or a bomb."
            return [Problem(_shown(name), "its bytes are also those of another member.", fix)]
        end = start + packed
    return []


def _unsafe(member: Member) -> list[Problem]:
    name = member.name
    where = _shown(name)
    if member.kind in (MemberKind.LINK, MemberKind.OTHER):
        what = "a link" if member.kind is MemberKind.LINK else "neither a file nor a folder"
        return [Problem(where, f"it is {what}; releases hold bytes.", "Pack a copy of the file in its place.")]
    if member.size_bytes < 0:
        return [Problem(where, "its size is below zero.", "Pack the archive again.")]
    plain = name.removesuffix("/").removeprefix("./")
    if plain in ("", ".") and member.kind is MemberKind.FOLDER and name in (".", "./"):
        return []
    return [problem.at(where) for problem in name_problems(plain)]


def _top(members: Sequence[Member]) -> str:
    """`folder/` where the archive holds the release folder itself, `./` where it holds `.`, else empty."""
    tops = {member.name.rstrip("/").removeprefix("./").split("/")[0] for member in members} - {"", "."}
    tops = {top for top in tops if top not in _ADDED_BY_SYSTEMS}
    dot = "./" if members and all(m.name.startswith("./") or m.name == "." for m in members) else ""
    names = {member.name.removeprefix(dot) for member in members if member.kind is MemberKind.FILE}
    if len(tops) == 1 and DOCUMENT not in names and f"{next(iter(tops))}/{DOCUMENT}" in names:
        return f"{dot}{next(iter(tops))}/"
    return dot


def _misplaced(paths: Iterable[str]) -> list[Problem]:
    """Folders that would not be sent: a misspelt tokenizer/ must not be left behind."""
    folders = {path.split("/")[0] for path in paths if "/" in path} - set(PARTS)
    return [
        Problem(
            f"{_shown(folder)}/",
            "it is neither artifact/ nor tokenizer/, and would not be sent.",
            "Move it or leave it out.",
        )
        for folder in sorted(folders)
        if not folder.startswith(".")
    ]


def _is_added(path: str) -> bool:
    parts = path.split("/")
    return parts[0] in _ADDED_BY_SYSTEMS or parts[-1] in _ADDED_BY_SYSTEMS or parts[-1].startswith("._")


def _index(at: str) -> int:
    return int(at[at.index("[") + 1 : at.index("]")])


def _shown(name: str) -> str:
    text = ascii(name)[1:-1]
    return text if len(text) <= 120 else f"{text[:117]}..."
