"""What an archive of a release folder holds, judged by its list of members before a byte of it is unpacked.

Whatever could land outside its folder, twice in one place, or never end is refused here. All other rules are those of a folder
(`folder_rules`), so that the archive and the folder get the same list of mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from registry.core.file_rules import name_problems, set_problems
from registry.core.folder_rules import (
    LARGEST_RATIO,
    MOST_MEMBERS,
    WORDS,
    Member,
    MemberKind,
    arrange,
    plain,
)
from registry.core.located import Located
from registry.core.schema import Problem


@dataclass(frozen=True)
class Contents:
    """`files`: path in the release folder → position of its member. `problems`: why nothing may be unpacked; no files then.

    `mistakes`: what is wrong with the release folder in it, which may be unpacked nevertheless.
    """

    files: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    size_bytes: int = 0
    left_out: tuple[str, ...] = ()
    mistakes: tuple[Located, ...] = ()


def read_members(members: Sequence[Member], *, most_bytes: int) -> Contents:
    """The members to be unpacked, by their paths. `most_bytes` is the room for them."""
    unsafe = [*_too_much(members, most_bytes), *(p for member in members[:MOST_MEMBERS] for p in _unsafe(member))]
    if unsafe:
        return Contents(problems=tuple(unsafe))
    arranged = arrange(members)
    paths = list(arranged.files)
    # `arrange` finds two members of one name; here are names that some file systems take for one file.
    unsafe = [problem.at(paths[_index(problem.field)]) for problem in set_problems(paths, judge=name_problems)]
    unsafe += [one.problem.at(one.file) for one in arranged.problems if one.problem.message == WORDS["twice"][0]]
    if unsafe:
        return Contents(problems=tuple(unsafe))
    size_bytes = sum(members[i].size_bytes for i in arranged.files.values())
    return Contents(arranged.files, (), size_bytes, arranged.left_out, arranged.problems)


def _too_much(members: Sequence[Member], most_bytes: int) -> list[Problem]:
    """A bomb, by what the members claim. Unpacking checks each member against its claimed size."""
    problems = []
    if len(members) > MOST_MEMBERS:
        message, fix = WORDS["too_many_members"]
        problems.append(Problem("", message.format(most=MOST_MEMBERS), fix))
    total = sum(member.size_bytes for member in members)
    if total > most_bytes:
        said = f"unpacked it takes {total} bytes, and there is room for {most_bytes}."
        problems.append(Problem("", said, "Free disk space, set TMPDIR to a larger place, or push the folder itself."))
    for member in members:
        if member.packed_bytes is not None and member.size_bytes > LARGEST_RATIO * max(member.packed_bytes, 1):
            message, fix = WORDS["packed"]
            said = message.format(size=member.size_bytes, packed=member.packed_bytes)
            problems.append(Problem(_shown(member.name), said, fix))
    return problems + _overlapping(members)


def _overlapping(members: Iterable[Member]) -> list[Problem]:
    """Members that share packed bytes: how a small archive claims to be a large one."""
    placed = sorted((m.start, m.packed_bytes or 0, m.name) for m in members if m.start is not None)
    end = 0
    for start, packed, name in placed:
        if start < end:
            return [Problem(_shown(name), *WORDS["overlapping"])]
        end = start + packed
    return []


def _unsafe(member: Member) -> list[Problem]:
    name = member.name
    where = _shown(name)
    if member.size_bytes < 0:
        return [Problem(where, "its size is below zero.", "Pack the archive again.")]
    path = plain(name)
    if path in ("", ".") and member.kind is MemberKind.FOLDER and name in (".", "./"):
        return []
    return [problem.at(where) for problem in name_problems(path)]


def _index(at: str) -> int:
    return int(at[at.index("[") + 1 : at.index("]")])


def _shown(name: str) -> str:
    text = ascii(name)[1:-1]
    return text if len(text) <= 120 else f"{text[:117]}..."
