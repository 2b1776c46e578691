"""The rules of a release folder: the verdict, and the list of files that systems add."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.core.folder_rules import WORDS, MemberKind, added_part, arrange, for_pages
from sluicegate.client.folder import ReleaseFolder, read_folder
from tests.support.worlds.folder_members import ADDED, MEMBERS, SENT, listed


@pytest.mark.parametrize("path", ADDED)
def test_what_systems_and_tools_add_is_left_out(path: str) -> None:
    assert added_part(path) == ADDED[path]
    found = arrange(listed("release.yaml", "artifact/model.onnx", path))
    assert (found.left_out, found.problems) == ((ADDED[path],), ()) and path not in found.files


@pytest.mark.parametrize("path", SENT)
def test_what_looks_like_it_is_sent(path: str) -> None:
    assert added_part(path) == "" and path in arrange(listed("release.yaml", path)).files


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("links", ["link", "link"]), ("devices", ["special", "special"]), ("twice", ["twice", "twice"]),
        ("wrong kinds", ["folder_for_file", "folder_for_file", "file_for_folder"]), ("misplaced", ["misplaced"] * 3),
    ],
)  # fmt: skip
def test_every_mistake_of_a_folder_is_told_at_once(name: str, words: list[str]) -> None:
    problems = arrange(MEMBERS[name]).problems
    assert [(one.problem.message, one.problem.fix) for one in problems] == [WORDS[word] for word in words]


def test_too_many_files_are_counted() -> None:
    [problem] = arrange(MEMBERS["too many files"]).problems
    assert problem.problem.message == "the release has 10051 files, and 10000 are the most."


def told(release: ReleaseFolder) -> tuple[list[str], tuple[str, ...], list[tuple[str, str]]]:
    """(paths, paths left out, mistakes) of a release folder."""
    return (
        [path for path, _ in release.files],
        release.left_out,
        [(one.file, one.problem.message) for one in release.problems],
    )


def test_a_folder_on_disk_gets_the_verdict_of_its_members(tmp_path: Path) -> None:
    folder = tmp_path / "r1"
    for path in ["artifact/model.onnx", "tokeniser/a.txt", "notes.txt", "artifact/run.sh", "release.yaml", *ADDED]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("model: sentiment\n")
    (folder / "artifact" / "link.json").symlink_to("model.onnx")
    found = told(read_folder(folder))
    assert found[0] == ["artifact/model.onnx", "artifact/run.sh"]
    assert found[1] == tuple(sorted({*ADDED.values(), "notes.txt"}))
    assert [file for file, _ in found[2]] == ["artifact/link.json", "tokeniser/"]


def test_the_pages_get_the_whole_list_as_json() -> None:
    rules = json.loads(json.dumps(for_pages()))
    assert set(rules["words"]) == set(WORDS) and rules["added"]["names"]
    assert all(name == name.lower() for name in (*rules["added"]["names"], *rules["added"]["prefixes"]))
    assert {kind.value for kind in MemberKind} == {"file", "folder", "link", "other"}
