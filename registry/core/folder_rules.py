"""The rules of a release folder, one set for folders, archives and the upload page: sent, left out, or refused.

The upload page applies the same rules in the browser, before anything is sent. It reads `for_pages` and holds no list or message
of its own; `tests/pages/test_folder_rules.py` compares both implementations member by member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from registry.core.file_rules import CONFIG_FILES, MOST_FILES
from registry.core.kinds import BACKEND_FILES
from registry.core.located import Located
from registry.core.schema import Problem

DOCUMENT: Final = "release.yaml"
#: The folders of a release folder that are sent.
PARTS: Final = ("artifact", "tokenizer")
#: Paths that are a file wherever they are.
_ONE_FILE: Final = (DOCUMENT, *sorted(CONFIG_FILES))
#: Members of every kind, so that a list of folders or of notes is bounded too.
MOST_MEMBERS: Final = 2 * MOST_FILES + 1000
#: Deflate packs at most 1032 to 1; a member that claims more is built to fill a disk. Source: zlib's technical details.
LARGEST_RATIO: Final = 1100

#: Files and folders that operating systems and tools add by themselves, in lower case. A path is left out if one of its parts has
#: such a name, begins with such a prefix or ends with such an ending.
ADDED_NAMES: Final = frozenset(
    {
        # macOS
        "__macosx", ".ds_store", ".appledouble", ".lsoverride", ".spotlight-v100", ".trashes", ".fseventsd",
        ".temporaryitems", ".documentrevisions-v100", ".apdisk",
        # Windows
        "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "system volume information",
        # Linux desktops
        ".directory", ".trash",
        # Python
        "__pycache__", ".ipynb_checkpoints", ".pytest_cache", ".mypy_cache", ".ruff_cache",
        # version control
        ".git", ".gitkeep", ".keep", ".gitignore", ".gitattributes", ".gitmodules", ".lfsconfig", ".hg", ".hgignore", ".svn",
        ".dvc", ".dvcignore",
        # caches of downloads
        ".cache", ".huggingface", ".locks",
        # editors
        ".idea", ".vscode", ".editorconfig",
    }
)  # fmt: skip
ADDED_PREFIXES: Final = ("._", ".#", "~$", ".~lock.", ".nfs", ".fuse_hidden", ".trash-")
ADDED_ENDINGS: Final = ("~", ".pyc", ".pyo", ".swp", ".swo", ".swx")

#: What each mistake of a folder is called: (message, fix). The pages show the same words.
WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "link": ("it is a link; releases hold bytes, not pointers.", "Put a copy of the file in its place."),
    "special": ("it is neither a file nor a folder.", "Remove it, or put an ordinary file in its place."),
    "folder_for_file": ("it is a folder, and must be a file.", "Put the file in its place."),
    "file_for_folder": ("it is a file, and must be a folder.", "Make it a folder, and put the files there."),
    "misplaced": (
        "it is neither artifact/ nor tokenizer/, and would not be sent.",
        "Move it into one of the two, or out of the release folder.",
    ),
    "twice": ("it is there twice.", "Keep one of the two."),
    "no_document": (
        f"there is no {DOCUMENT}.",
        f"Write {DOCUMENT} at the top of the folder; examples/sentiment/build.py makes examples.",
    ),
    "too_many_files": ("the release has {count} files, and {most} are the most.", "Pack small files together."),
    "too_many_members": (
        "there are more than {most} files and folders.",
        "Choose only the release folder.",
    ),
    "unsafe": ("its name is absolute, leads out of the folder, or has an empty part.", "Rename it."),
    "packed": (
        "{size} bytes are said to be packed in {packed}.",
        "Pack the archive again; this one is damaged, or a bomb.",
    ),
    "overlapping": (
        "its bytes are also those of another member.",
        "Pack the archive again; this one is damaged, or a bomb.",
    ),
}


class MemberKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True)
class Member:
    """One file or folder as a folder names it."""

    name: str
    kind: MemberKind
    size_bytes: int


@dataclass(frozen=True)
class Arranged:
    """`files`: path in the release → position of its member, release.yaml included. `left_out`: paths, each once."""

    files: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    problems: tuple[Located, ...] = ()

    @property
    def has_document(self) -> bool:
        return DOCUMENT in self.files


def added_part(path: str) -> str:
    """The path as far as the part that a system or a tool added; empty if it has none."""
    parts = path.split("/")
    for count, part in enumerate(parts, 1):
        name = part.lower()
        if name in ADDED_NAMES or name.startswith(ADDED_PREFIXES) or name.endswith(ADDED_ENDINGS):
            return "/".join(parts[:count]) + ("/" if count < len(parts) else "")
    return ""


def problem_of(file: str, word: str, **facts: Any) -> Located:
    """A mistake of the folder in the words of `WORDS`."""
    message, fix = WORDS[word]
    return Located(file, Problem("path" if file else "files", message.format(**facts), fix))


def arrange(members: Sequence[Member], *, has_top: bool = True) -> Arranged:
    """What of these members belongs to the release. Names are relative, and are not checked for safety here.

    With `has_top`, all members may lie in one folder above, as an archive of the folder has them. Every mistake is collected.
    """
    if len(members) > MOST_MEMBERS:
        return Arranged(problems=(problem_of("", "too_many_members", most=MOST_MEMBERS),))
    top = top_of(members) if has_top else ""
    files, left_out, problems = dict[str, int](), dict[str, None](), list[Located]()
    misplaced = set[str]()
    for position, member in enumerate(members):
        path = plain(member.name)[len(top) :]
        if not path or path == ".":
            continue
        if added := added_part(path):
            left_out[f"{added}/" if added == path and member.kind is MemberKind.FOLDER else added] = None
            continue
        folder, _, inside = path.partition("/")
        if above := next((one for one in _ONE_FILE if path.startswith(f"{one}/")), ""):
            problems.append(problem_of(above, "folder_for_file"))
        elif folder in PARTS or path in _ONE_FILE:
            if word := _wrong_kind(path, member.kind):
                problems.append(problem_of(path, word))
            elif member.kind is MemberKind.FILE and path in files:
                problems.append(problem_of(path, "twice"))
            elif member.kind is MemberKind.FILE:
                files[path] = position
        elif inside or member.kind is MemberKind.FOLDER:
            if folder.startswith("."):
                left_out[f"{folder}/"] = None
            else:
                misplaced.add(folder)
        else:
            left_out[path] = None
    problems = sorted(dict.fromkeys(problems), key=lambda one: one.file)
    problems += [problem_of(f"{folder}/", "misplaced") for folder in sorted(misplaced)]
    count = len(files) - (DOCUMENT in files)
    if count > MOST_FILES:
        problems.append(problem_of("", "too_many_files", count=count, most=MOST_FILES))
    return Arranged(files, tuple(sorted(left_out)), tuple(problems))


def plain(name: str) -> str:
    """The member's name without `./` before and `/` after it."""
    return name.removesuffix("/").removeprefix("./")


def top_of(members: Iterable[Member]) -> str:
    """`folder/` if everything lies in the release folder itself, else empty."""
    named = [(plain(member.name), member.kind) for member in members]
    tops = {name.split("/")[0] for name, _ in named if name and name != "." and not added_part(name.split("/")[0])}
    files = {name for name, kind in named if kind is MemberKind.FILE}
    if len(tops) != 1 or DOCUMENT in files:
        return ""
    [top] = tops
    has_parts = top not in PARTS and any(name.startswith(f"{top}/{part}/") for name, _ in named for part in PARTS)
    return f"{top}/" if f"{top}/{DOCUMENT}" in files or has_parts else ""


def _wrong_kind(path: str, kind: MemberKind) -> str:
    """The word for a member that is not what its place asks for; empty if it is."""
    if kind is MemberKind.LINK:
        return "link"
    if kind is MemberKind.OTHER:
        return "special"
    if path in PARTS:
        return "file_for_folder" if kind is MemberKind.FILE else ""
    return "folder_for_file" if path in _ONE_FILE and kind is MemberKind.FOLDER else ""


def for_pages() -> dict[str, Any]:
    """The rules as plain JSON, for the upload page."""
    return {
        "document": DOCUMENT,
        "parts": list(PARTS),
        "configs": sorted(CONFIG_FILES),
        "added": {
            "names": sorted(ADDED_NAMES),
            "prefixes": list(ADDED_PREFIXES),
            "endings": list(ADDED_ENDINGS),
        },
        "most_members": MOST_MEMBERS,
        "most_files": MOST_FILES,
        "largest_ratio": LARGEST_RATIO,
        "models": sorted({path.rpartition("/")[2] for path in BACKEND_FILES.values()}),
        "words": {word: list(said) for word, said in WORDS.items()},
    }
